// Package schema is the compiled form of a structural schema: one tree of nodes
// that prunes, defaults and validates objects. It knows no kinds and no storage.
package schema

import (
	"errors"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Schema is one compiled schema. It is immutable and safe for concurrent use.
type Schema struct {
	root     *node // nil: no schema at all
	preserve bool  // spec.preserveUnknownFields: nothing is pruned
	loose    bool  // not structural: only values are validated by it

	printOnce   sync.Once
	fingerprint uint64

	defaultsOnce sync.Once

	once      sync.Once
	parseable typed.ParseableType
	err       error

	rulesOnce sync.Once
	ruleTree  *ruleTree
}

var errNotObject = errors.New("schema: the openAPIV3Schema is not a JSON object")

// Compile reads the JSON of an openAPIV3Schema; nil or "null" is a version
// without one. It only looks at what pruning, merging and publishing need; whether a CRD
// may carry the schema at all is decided when the CRD is written. The JSON must
// not change afterwards: the Schema's strings point into it.
func Compile(openAPIV3Schema []byte, preserveUnknownFields bool) (*Schema, error) {
	s := &Schema{preserve: preserveUnknownFields}
	r := &reader{Cursor: object.NewCursor(openAPIV3Schema)}
	switch r.Kind() {
	case '{':
		s.root = r.node()
	case 0, 'n':
	default:
		return nil, errNotObject
	}
	s.loose = preserveUnknownFields && !structural(object.NewCursor(openAPIV3Schema))
	s.root.gather()
	return s, nil
}

// Parseable is the schema as structured-merge-diff wants it, metadata included.
// It is made on first use.
func (s *Schema) Parseable() (typed.ParseableType, error) {
	s.once.Do(func() { s.parseable, s.err = newParseable(s.root, s.preserve) })
	return s.parseable, s.err
}

// Fingerprint is over all that pruning and defaulting do: two schemas with the
// same one make the same of any object. It is stable across processes, for it lies
// beside stored objects. It is made on first use: a CRD that is only checked needs none.
func (s *Schema) Fingerprint() uint64 {
	s.printOnce.Do(func() { s.fingerprint = s.root.fingerprint(s.preserve) })
	return s.fingerprint
}
