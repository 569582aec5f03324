// Package schema reads the schemas of custom kinds. A schema is one tree of nodes, and a node holds every keyword of
// its JSON once. All packages that use a schema read this tree.
package schema

import (
	"errors"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Schema is the schema of one version of a kind. It is immutable.
type Schema struct {
	JSON     []byte // the schema as it was read
	Root     *Node  // nil means that the version has no schema
	Preserve bool   // spec.preserveUnknownFields; nothing is pruned
	// NonStructural means that the schema only validates values. Only a CRD that preserves unknown fields can have
	// such a schema.
	NonStructural bool
}

var (
	errNotObject = errors.New("schema: the openAPIV3Schema is not a JSON object")
	errMalformed = errors.New("schema: the openAPIV3Schema is malformed JSON")
)

// Parse reads the JSON of an openAPIV3Schema. nil or "null" means that the version has no schema. Parse does not check
// whether a CRD may contain the schema. js must not change afterwards, because the strings of the Schema share its
// memory.
func Parse(js []byte, preserveUnknownFields bool) (*Schema, error) {
	s := &Schema{JSON: js, Preserve: preserveUnknownFields}
	r := &reader{Cursor: object.NewCursor(js)}
	switch r.Kind() {
	case '{':
		s.Root = r.node()
	case 0, 'n':
	default:
		return nil, errNotObject
	}
	if r.Broken() {
		return nil, errMalformed
	}
	s.NonStructural = preserveUnknownFields && s.Root.Has(Unsupported)
	return s, nil
}

// StructuralRoot returns the root node, or nil if the version has no structural schema.
func (s *Schema) StructuralRoot() *Node {
	if s.NonStructural {
		return nil
	}
	return s.Root
}

// Fingerprint returns a hash of all parts of the schema that affect pruning and defaulting. Two schemas with the same
// fingerprint have the same effect on every object. The fingerprint is stable across processes, because it is stored
// with objects.
func (s *Schema) Fingerprint() uint64 { return s.Root.fingerprint(s.Preserve) }
