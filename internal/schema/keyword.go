package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"sync"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// typeSet is a set of JSON types.
type typeSet uint8

const (
	isObject typeSet = 1 << iota
	isArray
	isString
	isInteger
	isNumber
	isBoolean
	isUnknownType
)

// typesOf returns the types that n allows. 0 means any type.
func typesOf(n *node) typeSet {
	if n.intOrString {
		return isInteger | isString
	}
	switch n.typ {
	case "":
		return 0
	case "object":
		return isObject
	case "array":
		return isArray
	case "string":
		return isString
	case "integer":
		return isInteger
	case "number":
		return isNumber
	case "boolean":
		return isBoolean
	}
	return isUnknownType
}

// typeText returns n's type as errors print it.
func typeText(n *node) string {
	if n.intOrString {
		return "integer,string"
	}
	return n.typ
}

// typeOf returns the type of a value other than null.
func typeOf(v any) typeSet {
	switch v.(type) {
	case string:
		return isString
	case object.Tree:
		return isObject
	case []any:
		return isArray
	case int64:
		return isInteger
	case bool:
		return isBoolean
	}
	return isNumber
}

// String returns the name of a single type.
func (t typeSet) String() string {
	switch t {
	case isObject:
		return "object"
	case isArray:
		return "array"
	case isString:
		return "string"
	case isInteger:
		return "integer"
	case isBoolean:
		return "boolean"
	}
	return "number"
}

// goFormat returns the name of the format that upstream derives from the Go type of a number.
func (t typeSet) goFormat() string {
	switch t {
	case isInteger:
		return "int64"
	case isNumber:
		return "float64"
	}
	return ""
}

// numberFits reports whether v is a number that is also a value of one of the types in t. Each integer is a
// number, and each whole float is an integer.
func numberFits(v any, t typeSet) bool {
	switch v := v.(type) {
	case int64:
		return t&isNumber != 0
	case float64:
		return t&isInteger != 0 && isWhole(v)
	}
	return false
}

// pattern is a regular expression that is compiled on first use.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
	err  error
	cost int // steps for one byte
}

func (w *walk) matchesPattern(s string, p *pattern) bool {
	p.once.Do(func() {
		p.re, p.err = regexp.Compile(p.text)
		p.cost = instructions(p.text)
	})
	return p.err == nil && w.spend(len(s)*p.cost) && p.re.MatchString(s)
}

// enumeration is an enum that is decoded on first use.
type enumeration struct {
	text string // a JSON array
	once sync.Once
	list []any

	scalars map[any]bool // the scalars of a long list, for fast lookups

	printOnce sync.Once
	printed   string
	names     []string
}

func (e *enumeration) values() []any {
	e.once.Do(func() {
		var v any
		if kjson.UnmarshalCaseSensitivePreserveInts([]byte(e.text), &v) == nil {
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

// has reports whether v is in the enumeration. As upstream does, it converts values between Go types before it
// compares them. Therefore 65 equals "A", and 1.5 equals 1. Null is in no enumeration.
func (e *enumeration) has(v any) bool {
	list := e.values()
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

// messageTexts returns the values in two forms: as upstream's internal message prints them, and as errors list them.
func (e *enumeration) messageTexts() (printed string, names []string) {
	e.printOnce.Do(func() {
		e.printed = fmt.Sprint(e.values())
		for _, v := range e.values() {
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

// longer reports whether s has more than n characters.
func longer(s string, n int64) bool {
	return int64(len(s)) > n && int64(utf8.RuneCountInString(s)) > n
}

// shorter reports whether s has fewer than n characters.
func shorter(s string, n int64) bool {
	return int64(len(s)) < n || n > 0 && int64(utf8.RuneCountInString(s)) < n
}

// isWhole reports whether a float counts as an integer. It must fit in 53 bits and may differ from a whole number
// by a relative error of 1e-9.
func isWhole(f float64) bool {
	const most, epsilon = 1<<53 - 1, 1e-9
	if math.IsNaN(f) || f < -most || f > most {
		return false
	}
	rounded := math.Round(f)
	return f == rounded || math.Abs(f-rounded) < epsilon*math.Abs(rounded)
}

// inRange reports whether a float is in the range of n's type and format.
func inRange(f float64, n *node) bool {
	switch n.types {
	case isInteger:
		bits := 63
		if n.checkedFormat() == formatInt32 {
			bits = 31
		}
		limit := math.Ldexp(1, bits)
		// Upstream compares the shortest decimal form of the float. That of -2⁶³ is less than -2⁶³, so upstream
		// rejects it.
		return f == math.Trunc(f) && f < limit && (f > -limit || f == -limit && bits == 31)
	case isNumber:
		return n.checkedFormat() != formatFloat || !math.IsInf(float64(float32(f)), 0)
	}
	return true
}

// isMultiple reports whether f is a multiple of factor, which must be positive.
func isMultiple(f, factor float64) bool {
	if factor < 1 {
		return isWhole(1 / factor * f)
	}
	return isWhole(f / factor)
}
