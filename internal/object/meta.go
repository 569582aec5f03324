package object

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Meta holds the metadata that selectors and deletion need. It is read without decoding the rest of the object. Its
// strings may point into the scanned bytes, which therefore must not change.
type Meta struct {
	Name, Namespace   string
	UID               types.UID
	Generation        int64
	DeletionTimestamp string
	Finalizers        []string
	Labels            Labels
}

// Label is the key and value of one label.
type Label struct{ Key, Value string }

// Labels is a list of labels, sorted by key. It implements labels.Labels of apimachinery.
type Labels []Label

// Has reports whether the label key is set.
func (l Labels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get returns the value of label key, or "".
func (l Labels) Get(key string) string {
	v, _ := l.Lookup(key)
	return v
}

// Lookup returns the value of label key and reports whether the label is set.
func (l Labels) Lookup(key string) (string, bool) {
	for i := range l {
		if l[i].Key == key {
			return l[i].Value, true
		}
	}
	return "", false
}

// ScanMeta reads the metadata of an object's JSON in one pass and stops at its end. Like Field, it expects valid
// JSON. It treats a field of an unexpected type as absent. If the object has no metadata, the Meta is empty.
func ScanMeta(js []byte) (*Meta, error) { return scanMeta(js, nil) }

// ScanOwners does the same as ScanMeta and also returns the owner references. They share no memory with js.
func ScanOwners(js []byte) (*Meta, []v1.OwnerReference, error) {
	var raw string
	m, err := scanMeta(js, &raw)
	if err != nil || raw == "" {
		return m, nil, err
	}
	var refs []v1.OwnerReference
	if json.Unmarshal([]byte(raw), &refs) != nil {
		return m, nil, nil // ignored like every field of an unexpected type
	}
	return m, refs, nil
}

// scanMeta implements ScanMeta. If owners is not nil, it stores the JSON of the owner references in *owners.
func scanMeta(js []byte, owners *string) (*Meta, error) {
	s := scanner{s: alias(js)}
	m := new(Meta)
	if s.peek() != '{' {
		return nil, errScan
	}
	s.pos++
	for {
		key, ok := s.member()
		if !ok {
			break
		}
		if key == keyMetadata && s.s[s.pos] == '{' {
			if !m.scan(&s, owners) {
				return nil, errScan
			}
			return m, nil
		}
		if !s.next() {
			return nil, errScan
		}
	}
	if s.bad {
		return nil, errScan
	}
	return m, nil
}

// next skips the value at pos and the comma after it.
func (s *scanner) next() bool { return s.skip() && s.comma() }

func (s *scanner) comma() bool {
	if s.peek() == ',' {
		s.pos++
	}
	return true
}

func (m *Meta) scan(s *scanner, owners *string) bool {
	for s.pos++; ; {
		key, ok := s.member()
		if !ok {
			return !s.bad
		}
		switch key {
		case "name":
			ok = s.text(&m.Name)
		case "namespace":
			ok = s.text(&m.Namespace)
		case "uid":
			ok = s.text((*string)(&m.UID))
		case "deletionTimestamp":
			ok = s.text(&m.DeletionTimestamp)
		case "generation":
			ok = s.integer(&m.Generation)
		case "finalizers":
			m.Finalizers, ok = s.list()
		case "labels":
			m.Labels, ok = s.labels()
		case "ownerReferences":
			start := s.pos
			if ok = s.skip(); owners != nil {
				*owners = s.s[start:s.pos]
			}
		default:
			ok = s.skip()
		}
		if !ok {
			return false
		}
		s.comma()
	}
}

// text reads the value at pos into v if it is a string, and skips it otherwise.
func (s *scanner) text(v *string) (ok bool) {
	if s.s[s.pos] != '"' {
		return s.skip()
	}
	*v, s.pos, ok = scanString(s.s, s.pos+1)
	return ok
}

func (s *scanner) integer(v *int64) bool {
	start := s.pos
	if !s.skip() {
		return false
	}
	if i, err := strconv.ParseInt(s.s[start:s.pos], 10, 64); err == nil {
		*v = i
	}
	return true
}

// list reads an array of strings. It skips elements of other types.
func (s *scanner) list() (out []string, ok bool) {
	if s.s[s.pos] != '[' {
		return nil, s.skip()
	}
	for s.pos++; ; s.comma() {
		switch s.peek() {
		case ']':
			s.pos++
			return out, true
		case '"':
			var v string
			if !s.text(&v) {
				return nil, false
			}
			out = append(out, v)
		case 0, ',', '}':
			return nil, false
		default:
			if !s.skip() {
				return nil, false
			}
		}
	}
}

func (s *scanner) labels() (Labels, bool) {
	if s.s[s.pos] != '{' {
		return nil, s.skip()
	}
	var out Labels
	for s.pos++; ; s.comma() {
		key, ok := s.member()
		if !ok {
			break
		}
		if s.s[s.pos] != '"' {
			if !s.skip() {
				return nil, false
			}
			continue
		}
		if out == nil {
			out = make(Labels, 0, 4)
		}
		var v string
		if !s.text(&v) {
			return nil, false
		}
		out = append(out, Label{key, v})
	}
	byKey := func(a, b Label) int { return strings.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(out, byKey) {
		slices.SortStableFunc(out, byKey)
	}
	return out, !s.bad
}
