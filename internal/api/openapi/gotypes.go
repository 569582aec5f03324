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

// models describes Go types, as upstream's generator has. It is not safe for concurrent use.
type models struct {
	edition
	generated map[string]common.OpenAPIDefinition
	kinds     map[string][]schema.GroupVersionKind
	out       map[string]*spec.Schema
	own       []schema.GroupVersion // that DeleteOptions are of, too
}

// newModels begins a set of models out of those that generated returns.
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

// named is a type that says what its schema is called.
type named interface{ OpenAPIModelName() string }

// modelName is what the schema of t is called, or "".
func modelName(t reflect.Type) string {
	if n, ok := reflect.Zero(t).Interface().(named); ok && t.Kind() == reflect.Struct {
		return n.OpenAPIModelName()
	}
	return ""
}

// add describes t and all it refers to, and returns its name. gvk, if not
// nil, is a kind that t is.
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

// addGenerated takes a schema and what it refers to from the generated ones.
func (m *models) addGenerated(name string) {
	definition, ok := m.generated[name]
	if !ok || m.out[name] != nil {
		return
	}
	s := definition.Schema
	if old, ok := s.Extensions[common.ExtensionV2Schema].(spec.Schema); ok && m.edition == v2 {
		s = old
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

// addKinds says on a schema which kinds it is.
func (m *models) addKinds(name string) {
	kinds := slices.Clone(m.kinds[name])
	if name == deleteOptionsModel && m.own != nil {
		if m.edition == v3 { // not those of every group that there has been
			kinds = kinds[:0]
		}
		for _, gv := range m.own {
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

// fragments are all models added so far, by name.
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

// adapt makes of s what its edition knows: v2 leaves defaults out, v3 puts references that
// have a description or a default of their own into allOf. s is not changed.
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
