package kinds_test

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// storeCRD writes a CRD behind the engine's back, as one that came in long ago.
func (s *server) storeCRD(manifest string) object.Tree {
	s.Helper()
	t := s.decode(manifest).Tree
	object.Metadata(t)["uid"] = "0f0f0f0f-0000-0000-0000-000000000000"
	object.Metadata(t)["creationTimestamp"] = "2018-01-01T00:00:00Z"
	revision := s.Put(t)
	o, err := s.Engine.Get(s.Context(), s.target(object.Name(t), ""), "")
	if err != nil || o.Revision != revision {
		s.Fatal(err)
	}
	return s.tree(o)
}

// legacy is a CRD that preserves unknown fields, with the schema's members beside its type.
func legacy(schema string) string {
	c := crd("stable.example.com", "crontabs", "CronTab", "")
	c = strings.Replace(c, `"scope":`, `"preserveUnknownFields":true,"scope":`, 1)
	c = strings.Replace(c, `"type":"object"}`, `"type":"object"`+schema+`}`, 1)
	return strings.Replace(c, `"storedVersions":[]`, `"storedVersions":["v1"]`, 1)
}

// updatedLegacy is a stored CRD whose schema is not structural, after an update of its labels.
func updatedLegacy(t *testing.T) (*server, object.Tree) {
	t.Helper()
	s := serve(t)
	stored := s.storeCRD(legacy(`,"properties":{"foo":{"pattern":"a"}}`))
	object.SetMapEntry(stored, "labels", "touched", "yes")
	got, err := s.updateCRD(stored, "")
	if err != nil {
		t.Fatal(err)
	}
	return s, got
}

// SCH-017 SCH-018 SCH-025: the violations of a schema that is stored already are told in a condition, and the CRD can
// go on being updated.
func TestStoredSchemaIsNotStructural(t *testing.T) {
	_, got := updatedLegacy(t)
	want := `properties[foo].type: Required value: must not be empty for specified object fields`
	if c := conditions(got)["NonStructuralSchema"]; !strings.HasPrefix(c, "True/Violations/") || !strings.Contains(c, want) {
		t.Errorf("the condition is %q", c)
	}
	if got["spec"].(object.Tree)["preserveUnknownFields"] != true {
		t.Error("preserveUnknownFields is gone")
	}
}

// SCH-017 SCH-026: the condition goes when the schema is mended and unknown fields are pruned, and tells of what is left before.
func TestStoredSchemaBecomesStructural(t *testing.T) {
	s, got := updatedLegacy(t)
	before := len(got["status"].(object.Tree)["conditions"].([]any))
	spec := got["spec"].(object.Tree)
	root := spec["versions"].([]any)[0].(object.Tree)["schema"].(object.Tree)["openAPIV3Schema"].(object.Tree)
	root["properties"].(object.Tree)["foo"].(object.Tree)["type"] = "string"
	got, err := s.updateCRD(got, "")
	if err != nil {
		t.Fatal(err)
	}
	s.expect(got, "NonStructuralSchema", "True/Violations/spec.preserveUnknownFields: Invalid value: true: must be false")
	got["spec"].(object.Tree)["preserveUnknownFields"] = false
	if got, err = s.updateCRD(got, ""); err != nil {
		t.Fatal(err)
	}
	s.expect(got, "NonStructuralSchema", "")
	s.expect(got, "Established", "True/InitialNamesAccepted/the initial names have been accepted")
	if left := got["status"].(object.Tree)["conditions"].([]any); len(left) != before-1 {
		t.Errorf("of %d conditions there are left %v", before, left)
	}
}

// VAL-015 DEF-005: where unknown fields are preserved there are no defaults.
func TestNoDefaultsWithUnknownFields(t *testing.T) {
	s := serve(t)
	stored := s.storeCRD(legacy(`,"properties":{"foo":{"type":"string"}}`))
	version := stored["spec"].(object.Tree)["versions"].([]any)[0].(object.Tree)
	root := version["schema"].(object.Tree)["openAPIV3Schema"].(object.Tree)
	root["properties"].(object.Tree)["foo"].(object.Tree)["default"] = "x"
	_, err := s.updateCRD(stored, "")
	if err == nil || !strings.Contains(err.Error(), "spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema") {
		t.Errorf("got %v", err)
	}
}
