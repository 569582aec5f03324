package openapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// models collects the schemas of Go types, as upstream's generator does. It is not safe for concurrent use.
type models struct {
	edition
	generated      map[string]common.OpenAPIDefinition
	kinds          map[string][]schema.GroupVersionKind
	out            map[string]*spec.Schema
	optionVersions []schema.GroupVersion // group versions of DeleteOptions; nil if the document has no built-in kind
}

// newModels returns an empty set of models. The function generated returns all schemas that can be added.
func newModels(e edition, generated func(common.ReferenceCallback) map[string]common.OpenAPIDefinition) *models {
	m := &models{edition: e, out: map[string]*spec.Schema{}, kinds: map[string][]schema.GroupVersionKind{}}
	m.generated = generated(func(name string) spec.Ref {
		return spec.MustCreateRef(e.refPrefix() + name)
	})
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		if name := modelName(t); name != "" {
			m.kinds[name] = append(m.kinds[name], gvk)
		}
	}
	return m
}

// modelNamer is a type that defines the name of its schema.
type modelNamer interface{ OpenAPIModelName() string }

// modelName returns the name of the schema of t, or "" if t defines no name.
func modelName(t reflect.Type) string {
	if n, ok := reflect.Zero(t).Interface().(modelNamer); ok && t.Kind() == reflect.Struct {
		return n.OpenAPIModelName()
	}
	return ""
}

// add adds the schemas of t and of all types that it refers to, and returns the name of the schema of t. gvk is a
// kind of t, or nil.
func (m *models) add(t reflect.Type, gvk *schema.GroupVersionKind) string {
	name := modelName(t)
	if name == "" {
		return ""
	}
	if gvk != nil && !slices.Contains(m.kinds[name], *gvk) {
		m.kinds[name] = append(m.kinds[name], *gvk)
	}
	m.addGenerated(name)
	return name
}

// addGenerated adds a generated schema and the schemas that it refers to.
func (m *models) addGenerated(name string) {
	definition, ok := m.generated[name]
	if !ok || m.out[name] != nil {
		return
	}
	s := definition.Schema
	if v2Schema, ok := s.Extensions[common.ExtensionV2Schema].(spec.Schema); ok && m.edition == v2 {
		s = v2Schema
	}
	extensions := spec.Extensions{}
	for k, v := range s.Extensions {
		if k != common.ExtensionV2Schema {
			extensions[k] = v
		}
	}
	s.Extensions = extensions
	m.out[name] = &s
	m.addKinds(name)
	for _, d := range definition.Dependencies {
		m.addGenerated(d)
	}
}

// addKinds adds the extension with the kinds of a schema.
func (m *models) addKinds(name string) {
	kinds := slices.Clone(m.kinds[name])
	if name == deleteOptionsModel && m.optionVersions != nil {
		if m.edition == v3 { // v3 lists only the kinds of the document's group versions
			kinds = kinds[:0]
		}
		for _, gv := range m.optionVersions {
			if k := gv.WithKind("DeleteOptions"); !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	if len(kinds) == 0 {
		return
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int {
		return strings.Compare(a.Group+"\x00"+a.Version+"\x00"+a.Kind, b.Group+"\x00"+b.Version+"\x00"+b.Kind)
	})
	var list []any
	for _, k := range kinds {
		list = append(list, map[string]any{"group": k.Group, "version": k.Version, "kind": k.Kind})
	}
	m.out[name].AddExtension("x-kubernetes-group-version-kind", list)
}

// fragments returns all schemas, sorted by name.
func (m *models) fragments() ([]fragment, error) {
	var out []fragment
	for name, s := range m.out {
		text, err := json.Marshal(m.adapt(s))
		if err != nil {
			return nil, fmt.Errorf("encode schema %s: %w", name, err)
		}
		out = append(out, fragment{name: name, json: text})
	}
	slices.SortFunc(out, func(a, b fragment) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// adapt returns s in the form of the edition and does not modify s. In v2 it omits defaults. In v3 it moves a
// reference into allOf if the reference has its own description or default.
func (m *models) adapt(s *spec.Schema) *spec.Schema {
	out := *s
	if m.edition == v2 {
		out.Default = nil
	}
	if ref := out.Ref; ref.String() != "" {
		out.Ref = spec.Ref{}
		if m.edition == v2 || reflect.DeepEqual(out, spec.Schema{}) {
			out.Ref = ref
		} else {
			out.AllOf = []spec.Schema{{SchemaProps: spec.SchemaProps{Ref: ref}}}
		}
		return &out
	}
	if out.Properties != nil {
		out.Properties = make(map[string]spec.Schema, len(s.Properties))
		for k, p := range s.Properties {
			out.Properties[k] = *m.adapt(&p)
		}
	}
	if out.Items != nil && out.Items.Schema != nil {
		out.Items = &spec.SchemaOrArray{Schema: m.adapt(out.Items.Schema)}
	}
	if a := out.AdditionalProperties; a != nil && a.Schema != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: a.Allows, Schema: m.adapt(a.Schema)}
	}
	return &out
}
