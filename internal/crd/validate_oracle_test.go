package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/object"
)

// upstream is a schema compiled as upstream's handler does.
type upstream struct {
	structural        *structuralschema.Structural
	validator, status validation.SchemaValidator
}

func upstreamOf(t testing.TB, props *apiextensionsv1.JSONSchemaProps) *upstream {
	t.Helper()
	var in apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &in, nil); err != nil {
		t.Fatal(err)
	}
	u := &upstream{}
	var err error
	if u.structural, err = structuralschema.NewStructural(&in); err != nil {
		t.Fatal(err)
	}
	if u.validator, _, err = validation.NewSchemaValidator(&in); err != nil {
		t.Fatal(err)
	}
	if status, ok := in.Properties["status"]; ok {
		if u.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

func (u *upstream) validate(t, old object.Tree) field.ErrorList {
	if old == nil {
		return validation.ValidateCustomResource(nil, t, u.validator)
	}
	c := common.NewCorrelatedObject(t, old, &model.Structural{Structural: u.structural})
	return validation.ValidateCustomResourceUpdate(nil, t, old, u.validator, validation.WithRatcheting(c))
}

func (u *upstream) validateStatus(t, old object.Tree) field.ErrorList {
	status, ok := t["status"]
	if !ok || u.status == nil {
		return nil
	}
	c := common.NewCorrelatedObject(t, old, &model.Structural{Structural: u.structural})
	return validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, old["status"], u.status,
		validation.WithRatcheting(c.Key("status")))
}

// sortedErrorTexts returns the texts of errors sorted by field, because the order of fields is random in upstream.
// The errors of one field keep their order.
func sortedErrorTexts(errs field.ErrorList) []string {
	out := []string{}
	last := map[string]int{}
	for _, e := range errs {
		place := 0
		if e.Field != "<nil>" && e.Field != "status" && !strings.HasSuffix(e.Detail, "is a forbidden property") {
			last[e.Field]++
			place = last[e.Field]
		}
		out = append(out, fmt.Sprintf("%s %03d %s %#v %s", e.Field, place, e.Type, e.BadValue, e.Detail))
	}
	slices.Sort(out)
	return out
}

func compareErrors(t *testing.T, what string, got, want field.ErrorList, about ...any) {
	t.Helper()
	if a, b := sortedErrorTexts(got), sortedErrorTexts(want); !slices.Equal(a, b) {
		text := ""
		for _, x := range about {
			js, _ := json.MarshalIndent(x, "", " ")
			text += string(js) + "\n"
		}
		t.Fatalf("%s:\nours\n  %s\nupstream\n  %s\nof %s", what, strings.Join(a, "\n  "), strings.Join(b, "\n  "), text)
	}
}

// generator creates schemas and values that are mostly valid for them.
type generator struct{ *rand.Rand }

func (m generator) one(in int) bool { return m.IntN(in) == 0 }

func pick[T any](m generator, from ...T) T { return from[m.IntN(len(from))] }

func (m generator) schema(depth int, branch bool) *apiextensionsv1.JSONSchemaProps {
	s := &apiextensionsv1.JSONSchemaProps{}
	types := []string{"object", "object", "array", "string", "integer", "number", "boolean", ""}
	if depth <= 0 {
		types = types[3:]
	}
	if !branch || m.one(2) {
		s.Type = pick(m, types...)
	}
	shape := s.Type
	if shape == "" {
		shape = pick(m, types...)
	}
	if s.Type == "" && m.one(3) {
		s.XIntOrString = true
		shape = pick(m, "integer", "string")
	}
	s.Nullable = m.one(5)
	m.scalars(s, shape)
	switch shape {
	case "object":
		m.object(s, depth, branch)
	case "array":
		item := m.schema(depth-1, branch)
		s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: item}
		if item.Type == "object" && len(item.Properties) > 0 && m.one(2) {
			s.XListType = ptr.To("map")
			s.XListMapKeys = slices.Sorted(maps.Keys(item.Properties))[:1+m.IntN(min(2, len(item.Properties)))]
		} else if m.one(3) {
			s.XListType = ptr.To(pick(m, "set", "atomic"))
		}
		s.MinItems, s.MaxItems = m.limit(0), m.limit(1)
	}
	if m.one(4) {
		m.branches(s, depth)
	}
	return s
}

func (m generator) limit(min int64) *int64 {
	if !m.one(6) {
		return nil
	}
	return ptr.To(min + m.Int64N(3))
}

func (m generator) scalars(s *apiextensionsv1.JSONSchemaProps, shape string) {
	switch shape {
	case "string":
		s.MinLength, s.MaxLength = m.limit(0), m.limit(2)
		if m.one(4) {
			s.Pattern = pick(m, "^[a-z]*$", "a", "^$", `^(\d+|\*)$`, ".é")
		}
	case "integer", "number":
		if m.one(4) {
			s.Minimum = ptr.To(pick(m, -1, 0, 1, 2.5, -1e30, -9223372036854775808, 9007199254740993))
			s.ExclusiveMinimum = m.one(3)
		}
		if m.one(4) {
			s.Maximum = ptr.To(pick(m, 0, 1, 3, 2.5, 1e30, 9223372036854775807, 2147483648))
			s.ExclusiveMaximum = m.one(3)
		}
		if m.one(5) {
			s.MultipleOf = ptr.To(pick(m, 1, 2, 0.5, 0.01, 1e19, 3))
		}
	}
	if m.one(3) {
		s.Format = pick(m, "int32", "int64", "float", "double", "date-time", "datetime", "byte", "uuid", "ipv4", "date",
			"duration",
			"k8s-short-name", "made-up", "uri", "mac", "bsonobjectid", "password", "email")
	}
	if m.one(8) {
		for range 1 + m.IntN(3) {
			js, _ := json.Marshal(m.any(1))
			s.Enum = append(s.Enum, apiextensionsv1.JSON{Raw: js})
		}
	}
}

func (m generator) object(s *apiextensionsv1.JSONSchemaProps, depth int, branch bool) {
	s.MinProperties, s.MaxProperties = m.limit(0), m.limit(2)
	if m.one(4) {
		s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: !m.one(4)}
		if s.AdditionalProperties.Allows && !m.one(4) {
			s.AdditionalProperties.Schema = m.schema(depth-1, branch)
		}
	}
	if s.AdditionalProperties == nil || m.one(4) {
		s.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
		for _, name := range []string{"a", "b", "kind", "c"}[:m.IntN(5)] {
			s.Properties[name] = *m.schema(depth-1, branch)
		}
	}
	if m.one(3) {
		s.Required = []string{pick(m, "a", "b", "d")}
	}
	if m.one(8) {
		s.XPreserveUnknownFields = ptr.To(true)
	}
}

func (m generator) branches(s *apiextensionsv1.JSONSchemaProps, depth int) {
	list := func() (out []apiextensionsv1.JSONSchemaProps) {
		for range 1 + m.IntN(3) {
			out = append(out, *m.schema(depth-1, true))
		}
		return out
	}
	switch m.IntN(5) {
	case 0:
		s.AllOf = list()
	case 1:
		s.AnyOf = list()
	case 2:
		s.OneOf = list()
	case 3:
		s.Not = m.schema(depth-1, true)
	case 4:
		s.AllOf, s.AnyOf, s.OneOf = list(), list(), list()
	}
}

var scalars = []any{"", "a", "abc", "A", "é", "aé", "12", "*", "2020-01-31T00:00:00Z", "2020-02-28t23:59:59.5+01:00",
	"2020-01-01T24:00:00Z", "2020-01-01", "YWJj", "YQ==", "YQ=a",
	"=", "1.2.3.4", "3h", "http://x/y", "00:11:22:33:44:55", "b0b0b0b0-b0b0-40b0-b0b0-b0b0b0b0b0b0", true, false, nil,
	int64(0), int64(1), int64(2), int64(-1), int64(3), int64(65), int64(-2147483649), int64(2147483648),
	int64(9223372036854775807), int64(-9223372036854775808), int64(9007199254740993),
	0.5, 1.0, 1.5, 2.5, 1e30, -1e30, 1e39, 9007199254740992.0, 9.3e18, 1.0000000001, 0.03, 0.29}

// any returns a random value that follows no schema.
func (m generator) any(depth int) any {
	switch m.IntN(8) {
	case 0:
		if depth > 0 {
			return object.Tree{"a": m.any(depth - 1)}
		}
	case 1:
		if depth > 0 {
			return []any{m.any(depth - 1)}
		}
	}
	return scalars[m.IntN(len(scalars))]
}

func (m generator) fit(s *apiextensionsv1.JSONSchemaProps) any {
	if m.one(20) {
		return m.any(2)
	}
	if len(s.Enum) > 0 && !m.one(3) {
		var v any
		_ = json.Unmarshal(s.Enum[0].Raw, &v)
		if f, ok := v.(float64); ok && f == float64(int64(f)) {
			return int64(f)
		}
		return v
	}
	var branches []apiextensionsv1.JSONSchemaProps
	branches = append(append(append(branches, s.AnyOf...), s.OneOf...), s.AllOf...)
	switch {
	case s.Type == "object" || s.Type == "" && (len(s.Properties) > 0 || s.AdditionalProperties != nil):
		return m.fitObject(s)
	case s.Items != nil:
		list := []any{}
		for range m.IntN(4) {
			list = append(list, m.fit(s.Items.Schema))
		}
		return list
	case s.Type == "" && len(branches) > 0 && !m.one(4):
		return m.fit(&branches[m.IntN(len(branches))])
	}
	for range 20 {
		v := scalars[m.IntN(len(scalars))]
		is := map[string]bool{"": true}
		switch v.(type) {
		case string:
			is["string"] = true
		case int64:
			is["integer"], is["number"] = true, true
		case float64:
			is["number"] = true
		case bool:
			is["boolean"] = true
		}
		if is[s.Type] {
			return v
		}
	}
	return nil
}

func (m generator) fitObject(s *apiextensionsv1.JSONSchemaProps) object.Tree {
	t := object.Tree{}
	for name, p := range s.Properties {
		if !m.one(3) || slices.Contains(s.Required, name) {
			t[name] = m.fit(&p)
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		for _, name := range []string{"d", "e"}[:m.IntN(3)] {
			t[name] = m.fit(s.AdditionalProperties.Schema)
		}
	}
	if m.one(6) {
		t[pick(m, "a", "d", "x.y")] = m.any(2)
	}
	return t
}

// change modifies some values in v in place.
func (m generator) change(v any) any {
	if m.one(12) {
		return m.any(2)
	}
	switch v := v.(type) {
	case object.Tree:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if m.one(15) {
				delete(v, name)
			} else if m.one(3) {
				v[name] = m.change(v[name])
			}
		}
		if m.one(15) {
			v["a"] = m.any(1)
		}
		return v
	case []any:
		for i := range v {
			if m.one(3) {
				v[i] = m.change(v[i])
			}
		}
		if m.one(4) {
			m.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		}
		if m.one(10) && len(v) > 0 {
			v = append(v, object.CopyValue(v[0]))
		}
		return v
	}
	return v
}

// root returns the schema of an object that has a status.
func (m generator) root() *apiextensionsv1.JSONSchemaProps {
	s := &apiextensionsv1.JSONSchemaProps{}
	for s.Type != "object" || len(s.Properties) == 0 {
		s = m.schema(3, false)
	}
	if m.one(2) {
		s.Properties["status"] = *m.schema(2, false)
	}
	s.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object"}
	return s
}

// TestValidateAgainstUpstream checks that random schemas and objects have upstream's errors. VAL-018, VAL-024,
// VAL-025, VAL-026, SCH-031, SCH-038
// The same applies to updates: VAL-028 to VAL-039 and VAL-041.
func TestValidateAgainstUpstream(t *testing.T) {
	rounds := 500
	if n, err := strconv.Atoi(os.Getenv("VALIDATE_ROUNDS")); err == nil {
		rounds = n
	}
	accepted, refused, ratcheted := 0, 0, 0
	for seed := range uint64(rounds) {
		m := generator{rand.New(rand.NewPCG(seed, 3))}
		props := m.root()
		ours, theirs := compiled(t, props), upstreamOf(t, props)
		for range 5 {
			old, ok := m.fit(props).(object.Tree)
			if !ok {
				continue
			}
			what := fmt.Sprintf("seed %d", seed)
			want := theirs.validate(old, nil)
			compareErrors(t, what, ours.ValidateValues(context.Background(), old, nil), want, props, old)
			changed, ok := m.change(object.Copy(old)).(object.Tree)
			if !ok {
				continue
			}
			before := len(theirs.validate(changed, nil))
			want = theirs.validate(changed, old)
			compareErrors(t, what+": update", ours.ValidateValues(context.Background(), changed, old), want, props,
				changed, old)
			compareErrors(t, what+": status", ours.ValidateStatusValues(context.Background(), changed, old),
				theirs.validateStatus(changed, old), props, changed, old)
			switch {
			case before > len(want):
				ratcheted++
			case len(want) == 0:
				accepted++
			default:
				refused++
			}
		}
	}
	t.Logf("%d accepted, %d rejected, %d ratcheted", accepted, refused, ratcheted)
	if accepted < rounds/4 || refused < rounds/4 || ratcheted < rounds/10 {
		t.Errorf("the generator does not produce both valid and invalid objects")
	}
}
