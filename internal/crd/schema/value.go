package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TypeSet is a set of JSON types.
type TypeSet uint8

const (
	Object TypeSet = 1 << iota
	Array
	String
	Integer
	Number
	Boolean
	unknownType
)

// TypesOf returns the types that n allows. 0 means any type.
func TypesOf(n *Node) TypeSet {
	if n.IntOrString {
		return Integer | String
	}
	return typeNamed(n.Type)
}

// typeNamed returns the type with the given name. "" means any type.
func typeNamed(name string) TypeSet {
	switch name {
	case "":
		return 0
	case "object":
		return Object
	case "array":
		return Array
	case "string":
		return String
	case "integer":
		return Integer
	case "number":
		return Number
	case "boolean":
		return Boolean
	}
	return unknownType
}

// TypeText returns n's type as errors print it.
func TypeText(n *Node) string {
	if n.IntOrString {
		return "integer,string"
	}
	return n.Type
}

// TypeOf returns the type of a value other than null.
func TypeOf(v any) TypeSet {
	switch v.(type) {
	case string:
		return String
	case object.Tree:
		return Object
	case []any:
		return Array
	case int64:
		return Integer
	case bool:
		return Boolean
	}
	return Number
}

// String returns the name of a single type.
func (t TypeSet) String() string {
	switch t {
	case Object:
		return "object"
	case Array:
		return "array"
	case String:
		return "string"
	case Integer:
		return "integer"
	case Boolean:
		return "boolean"
	}
	return "number"
}

// GoFormat returns the name of the format that upstream derives from the Go type of a number.
func (t TypeSet) GoFormat() string {
	switch t {
	case Integer:
		return "int64"
	case Number:
		return "float64"
	}
	return ""
}

// NumberFits reports whether v is a number that is also a value of one of the types in t. Each integer is a
// number, and each whole float is an integer.
func NumberFits(v any, t TypeSet) bool {
	switch v := v.(type) {
	case int64:
		return t&Number != 0
	case float64:
		return t&Integer != 0 && IsWhole(v)
	}
	return false
}

// Pattern is a regular expression that is compiled on first use.
type Pattern struct {
	Text string
	once sync.Once
	re   *regexp.Regexp
	err  error
	cost int
}

// Compile compiles the pattern. cost is the number of steps for one byte of a matched text.
func (p *Pattern) Compile() (re *regexp.Regexp, cost int, err error) {
	p.once.Do(func() {
		p.re, p.err = regexp.Compile(p.Text)
		p.cost = instructions(p.Text)
	})
	return p.re, p.cost, p.err
}

// instructions estimates the number of instructions in the program of a regular expression.
func instructions(pattern string) int {
	if !strings.Contains(pattern, "{") {
		return len(pattern)
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return len(pattern)
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return len(pattern)
	}
	return len(prog.Inst)
}

// Enumeration is an enum that is decoded on first use.
type Enumeration struct {
	Text string // a JSON array
	once sync.Once
	list []any

	scalars map[any]bool // the scalars of a long list, for fast lookups

	printOnce sync.Once
	printed   string
	names     []string
}

// Values returns the values of the enumeration.
func (e *Enumeration) Values() []any {
	e.once.Do(func() {
		var v any
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(e.Text), &v) == nil {
			e.list, _ = v.([]any)
		}
		if len(e.list) <= shortEnum {
			return
		}
		e.scalars = map[any]bool{}
		for _, v := range e.list {
			switch v.(type) {
			case string, int64, float64, bool:
				e.scalars[v] = true
			}
		}
	})
	return e.list
}

// shortEnum is the maximum length of a list that is faster to scan than to index.
const shortEnum = 16

// Has reports whether v is in the enumeration. As upstream does, it converts values between Go types before it
// compares them. Therefore 65 equals "A", and 1.5 equals 1. Null is in no enumeration.
func (e *Enumeration) Has(v any) bool {
	list := e.Values()
	if e.scalars != nil {
		switch x := v.(type) {
		case string, bool:
			return e.scalars[v]
		case int64:
			return e.scalars[v] || e.scalars[float64(x)] || e.scalars[runeText(x)]
		case float64:
			return e.scalars[v] || e.scalars[int64(x)]
		}
	}
	for _, allowed := range list {
		if enumEqual(v, allowed) {
			return true
		}
	}
	return false
}

func enumEqual(v, allowed any) bool {
	if v == nil {
		return false
	}
	switch allowed := allowed.(type) {
	case string:
		switch v := v.(type) {
		case string:
			return v == allowed
		case int64:
			return runeText(v) == allowed
		}
		return false
	case int64:
		if f, ok := v.(float64); ok {
			return int64(f) == allowed
		}
	case float64:
		if i, ok := v.(int64); ok {
			return float64(i) == allowed
		}
	}
	return allowed != nil && object.Equal(v, allowed)
}

func runeText(i int64) string {
	if i < 0 || i > utf8.MaxRune {
		return string(utf8.RuneError)
	}
	return string(rune(i))
}

// MessageTexts returns the values in two forms: as upstream's internal message prints them, and as errors list them.
func (e *Enumeration) MessageTexts() (printed string, names []string) {
	e.printOnce.Do(func() {
		e.printed = fmt.Sprint(e.Values())
		for _, v := range e.Values() {
			if s, ok := v.(string); ok {
				e.names = append(e.names, s)
				continue
			}
			js, _ := json.Marshal(v)
			e.names = append(e.names, string(js))
		}
	})
	return e.printed, e.names
}

// IsWhole reports whether a float counts as an integer. It must fit in 53 bits and may differ from a whole number
// by a relative error of 1e-9.
func IsWhole(f float64) bool {
	const most, epsilon = 1<<53 - 1, 1e-9
	if math.IsNaN(f) || f < -most || f > most {
		return false
	}
	rounded := math.Round(f)
	return f == rounded || math.Abs(f-rounded) < epsilon*math.Abs(rounded)
}
