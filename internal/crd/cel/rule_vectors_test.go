package cel

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
)

// vector is one rule in testdata/rules.yaml. The comment at the top of that file describes the fields.
type vector struct {
	ID, About       string
	Schema          map[string]any
	Root            bool
	Rule, Message   string
	OptionalOldSelf *bool
	Invalid         string
	Cases           []struct {
		Value, Old any
		Refused    string
	}
}

// vectors reads testdata/rules.yaml.
func vectors(t *testing.T) (all []vector) {
	t.Helper()
	data, err := os.ReadFile("testdata/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// ruled compiles the schema of v after it has added the rule of v.
func (v *vector) ruled(t *testing.T) *ruleSchema {
	t.Helper()
	v.Schema["x-kubernetes-validations"] = []any{apiextensionsv1.ValidationRule{Rule: v.Rule, Message: v.Message,
		OptionalOldSelf: v.OptionalOldSelf}}
	schema := v.Schema
	if !v.Root {
		schema = map[string]any{"type": "object", "properties": map[string]any{"spec": schema}}
	}
	js, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	return newRuleSchema(t, v.ID, string(js))
}

// object returns an object that contains value at the position of the rule. If value is nil, it returns nil.
func (v *vector) object(t *testing.T, value any) object.Tree {
	t.Helper()
	if value == nil {
		return nil
	}
	if !v.Root {
		value = map[string]any{"spec": value}
	}
	js, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, string(js))
}

// path returns the field that errors of the rule must have.
func (v *vector) path() string {
	if v.Root {
		return "<nil>"
	}
	return "spec"
}

// TestRuleVectors checks that each rule in testdata/rules.yaml accepts and rejects values as specified in the file,
// with the specified error texts. It checks that upstream does the same. VAL-054 VAL-055 VAL-056 VAL-057 VAL-058
// VAL-059 VAL-060 VAL-061 VAL-063
// VAL-064 VAL-065 VAL-066 VAL-073 VAL-077 VAL-078 VAL-079 VAL-080 VAL-081 VAL-082 VAL-083 VAL-131 VAL-132 VAL-133
// VAL-145 VAL-146 VAL-147 VAL-148 VAL-149.
func TestRuleVectors(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Invalid != "" {
			continue // tested by TestRuleVectorsCompile of crdvalidation
		}
		t.Run(v.ID+" "+v.About, func(t *testing.T) {
			s := v.ruled(t)
			for _, c := range v.Cases {
				value, old := v.object(t, c.Value), v.object(t, c.Old)
				compareEvaluation(t, s, v.ID, value, old)
				errs := s.rules.Evaluate(t.Context(), value, old, nil)
				switch {
				case c.Refused == "" && len(errs) > 0:
					t.Errorf("%v over %v: %v", c.Value, c.Old, errs)
				case c.Refused != "" && (len(errs) != 1 || errs[0].Type != field.ErrorTypeInvalid ||
					errs[0].Field != v.path() || !strings.HasPrefix(errs[0].Detail, c.Refused)):
					t.Errorf("%v over %v: %v\nwant %s: %s", c.Value, c.Old, errs, v.path(), c.Refused)
				}
			}
		})
	}
}
