// Package schema compiles structural schemas. A compiled schema is one tree of nodes that prunes, defaults and
// validates objects. The package must not import kinds or storage.
package schema

import (
	"errors"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Schema is one compiled schema. It is immutable and safe for concurrent use.
type Schema struct {
	root          *node // nil means that the version has no schema
	preserve      bool  // spec.preserveUnknownFields; nothing is pruned
	nonStructural bool  // if true, the schema only validates values

	fingerprintOnce sync.Once
	fingerprint     uint64

	defaultsOnce sync.Once

	once      sync.Once
	parseable typed.ParseableType
	err       error

	rulesOnce sync.Once
	ruleTree  *ruleTree
}

var errNotObject = errors.New("schema: the openAPIV3Schema is not a JSON object")

// Compile reads the JSON of an openAPIV3Schema. nil or "null" means that the version has no schema. Compile reads
// only the keywords that pruning, defaulting, validation, merging and publishing need. It does not check whether a
// CRD may contain the schema. js must not change afterwards, because the strings of the Schema share its memory.
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
	s.nonStructural = preserveUnknownFields && !structural(object.NewCursor(openAPIV3Schema))
	s.root.collectTraits()
	return s, nil
}

// Parseable returns the schema for structured-merge-diff, including metadata. The first call computes it.
func (s *Schema) Parseable() (typed.ParseableType, error) {
	s.once.Do(func() { s.parseable, s.err = newParseable(s.root, s.preserve) })
	return s.parseable, s.err
}

// Fingerprint returns a hash of all parts of the schema that affect pruning and defaulting. Two schemas with the same
// fingerprint have the same effect on every object. The fingerprint is stable across processes, because it is stored
// with objects. The first call computes it.
func (s *Schema) Fingerprint() uint64 {
	s.fingerprintOnce.Do(func() { s.fingerprint = s.root.fingerprint(s.preserve) })
	return s.fingerprint
}
