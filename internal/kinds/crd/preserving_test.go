package crd_test

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// storeCRD writes a CRD directly to the store, like one that an old version of the server accepted.
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

// legacy returns a CRD that preserves unknown fields. The parameter schema holds further fields of its schema.
func legacy(schema string) string {
	c := crd("stable.example.com", "crontabs", "CronTab", "")
	c = strings.Replace(c, `"scope":`, `"preserveUnknownFields":true,"scope":`, 1)
	c = strings.Replace(c, `"type":"object"}`, `"type":"object"`+schema+`}`, 1)
	return strings.Replace(c, `"storedVersions":[]`, `"storedVersions":["v1"]`, 1)
}

// updatedLegacy returns a stored CRD with a non-structural schema, after an update of its labels.
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

// TestStoredSchemaIsNotStructural checks that a condition reports the violations of a stored non-structural schema, and
// that updates of the CRD still succeed.
// SCH-017 SCH-018 SCH-025
func TestStoredSchemaIsNotStructural(t *testing.T) {
	_, got := updatedLegacy(t)
	want := `properties[foo].type: Required value: must not be empty for specified object fields`
	if c := conditions(got)["NonStructuralSchema"]; !strings.HasPrefix(c, "True/Violations/") ||
		!strings.Contains(c, want) {
		t.Errorf("got condition %q, want %s", c, want)
	}
	if got["spec"].(object.Tree)["preserveUnknownFields"] != true {
		t.Error("the update dropped preserveUnknownFields")
	}
}

// TestStoredSchemaBecomesStructural checks that the condition NonStructuralSchema always reports the current
// violations. It is removed after the schema has become structural and unknown fields are pruned.
// SCH-017 SCH-026
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
	s.expect(got, "NonStructuralSchema",
		"True/Violations/spec.preserveUnknownFields: Invalid value: true: must be false")
	got["spec"].(object.Tree)["preserveUnknownFields"] = false
	if got, err = s.updateCRD(got, ""); err != nil {
		t.Fatal(err)
	}
	s.expect(got, "NonStructuralSchema", "")
	s.expect(got, "Established", "True/InitialNamesAccepted/the initial names have been accepted")
	if left := got["status"].(object.Tree)["conditions"].([]any); len(left) != before-1 {
		t.Errorf("got conditions %v, want %d", left, before-1)
	}
}

// TestNoDefaultsWithUnknownFields checks that a schema cannot have defaults if unknown fields are preserved.
// VAL-015 DEF-005
func TestNoDefaultsWithUnknownFields(t *testing.T) {
	s := serve(t)
	stored := s.storeCRD(legacy(`,"properties":{"foo":{"type":"string"}}`))
	version := stored["spec"].(object.Tree)["versions"].([]any)[0].(object.Tree)
	root := version["schema"].(object.Tree)["openAPIV3Schema"].(object.Tree)
	root["properties"].(object.Tree)["foo"].(object.Tree)["default"] = "x"
	_, err := s.updateCRD(stored, "")
	if err == nil ||
		!strings.Contains(err.Error(),
			"spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema") {
		t.Errorf("got error %v, want one about preserveUnknownFields", err)
	}
}
