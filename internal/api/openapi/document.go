package openapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	crds "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// document builds the text of one OpenAPI document. Each value is used only once.
type document struct {
	*renderer
	publisher publisher
	options   options
	models    *models
	paths     []fragment
	schemas   []fragment
	builtin   bool // the document has a built-in kind
	err       error
}

// newDocument returns a document that describes versions.
func newDocument(e edition, versions []*resource.Version) (*document, error) {
	d := &document{renderer: newRenderer(e), options: newOptions()}
	typed := slices.IndexFunc(versions, func(v *resource.Version) bool { return v.OpenAPIV3Schema == nil })
	// The models of built-in kinds are built only if necessary, because there are many of them.
	if d.models = newModels(e, crds.GetOpenAPIDefinitions); typed >= 0 {
		d.builtin, d.models = true, newModels(e, versions[typed].Type.OpenAPI)
		d.models.optionVersions = groupVersions(e, versions)
	}
	common := metav1.TypeMeta{}.SwaggerDoc()
	d.publisher = publisher{edition: e, docs: metaDocs{
		apiVersion:   common["apiVersion"],
		kind:         common["kind"],
		metadata:     metav1beta1.PartialObjectMetadata{}.SwaggerDoc()["metadata"],
		listMetadata: metav1beta1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"],
	}}
	for _, v := range versions {
		if err := d.add(v); err != nil {
			return nil, fmt.Errorf("describe %s: %w", v.GroupVersionKind(), err)
		}
	}
	goSchemas, err := d.models.fragments()
	if err != nil {
		return nil, err
	}
	d.schemas = append(d.schemas, goSchemas...)
	byName := func(a, b fragment) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(d.paths, byName)
	slices.SortStableFunc(d.schemas, byName)
	d.schemas = slices.CompactFunc(d.schemas, func(a, b fragment) bool { return a.name == b.name })
	return d, nil
}

// groupVersions returns the group versions of DeleteOptions in addition to those that client-go registers.
func groupVersions(e edition, versions []*resource.Version) []schema.GroupVersion {
	all := []schema.GroupVersion{metav1.Unversioned}
	if e == v2 {
		all = append(all,
			schema.GroupVersion{Group: "admission.k8s.io", Version: "v1"},
			schema.GroupVersion{Group: "admission.k8s.io", Version: "v1beta1"},
			schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"},
			schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1beta1"},
			schema.GroupVersion{Group: "imagepolicy.k8s.io", Version: "v1alpha1"})
	}
	for _, v := range versions {
		if v.OpenAPIV3Schema == nil {
			all = append(all, v.GroupVersion)
		}
	}
	return all
}

// add adds the schemas and the paths of one version.
func (d *document) add(v *resource.Version) error {
	k := kind{Version: v, custom: v.OpenAPIV3Schema != nil, verbs: v.Definition.Verbs}
	if k.custom {
		if err := d.addCustom(&k); err != nil {
			return err
		}
	} else {
		d.addBuiltin(&k)
	}
	for _, p := range d.options.paths(k) {
		for _, op := range p.operations {
			d.models.addGenerated(op.body)
			for _, r := range op.responses {
				d.models.addGenerated(r.model)
			}
		}
		item, err := d.pathItem(p)
		if err != nil {
			return err
		}
		d.paths = append(d.paths, item)
	}
	return nil
}

func (d *document) addBuiltin(k *kind) {
	gvk := k.GroupVersionKind()
	k.model = d.models.add(structType(k.Type.New()), &gvk)
	if k.Type.NewList != nil {
		list := k.GroupVersion.WithKind(k.Definition.Names.ListKind)
		k.listModel = d.models.add(structType(k.Type.NewList()), &list)
	}
	for _, sub := range k.Subresources {
		if sub.Body != nil {
			gvk := sub.Body.GroupVersionKind()
			d.models.add(structType(sub.Body.Type.New()), &gvk)
		}
	}
}

func structType(object any) reflect.Type { return reflect.TypeOf(object).Elem() }

// customModel returns the name of a custom kind's schema, such as com.example.stable.v1.CronTab.
func customModel(k schema.GroupVersionKind) string {
	parts := strings.Split(k.Group, ".")
	slices.Reverse(parts)
	return strings.Join(append(parts, k.Version, k.Kind), ".")
}

func (d *document) addCustom(k *kind) error {
	d.models.addGenerated(objectMeta)
	d.models.addGenerated(listMeta)
	gvk := k.GroupVersionKind()
	listKind := k.GroupVersion.WithKind(k.Definition.Names.ListKind)
	k.model, k.listModel = customModel(gvk), customModel(listKind)
	text := schemaText(k.Version, d.edition)
	root := func(dst []byte) []byte {
		n, err := parsePublishable(text, k.Definition.PreserveUnknownFields)
		if err != nil && d.err == nil {
			d.err = fmt.Errorf("describe %s: %w", gvk, err)
		}
		return d.publisher.appendRoot(dst, n, extensions(k.Version, gvk))
	}
	d.schemas = append(d.schemas,
		fragment{name: k.model, write: root, size: len(text) + 1024},
		fragment{name: k.listModel, json: d.publisher.appendList(nil, k, extensions(k.Version, listKind))})
	for _, sub := range k.Subresources {
		known := func(f fragment) bool { return f.name == customModel(sub.Body.GroupVersionKind()) }
		if !slices.ContainsFunc(d.schemas, known) {
			if err := d.addCustom(&kind{Version: sub.Body}); err != nil {
				return err
			}
		}
	}
	return nil
}

// schemaText returns the JSON of a custom kind's schema for the given edition. It returns nil if the document must
// not contain the schema.
func schemaText(v *resource.Version, e edition) []byte {
	if v.OpenAPIV3Schema == nil || e == v2 && v.Definition.PreserveUnknownFields {
		return nil
	}
	return v.OpenAPIV3Schema()
}

// extensions returns the JSON members that contain the kind of a schema and the selectable fields of its objects.
func extensions(v *resource.Version, k schema.GroupVersionKind) string {
	dst := appendGVK([]byte(`,"x-kubernetes-group-version-kind":[`), k)
	dst = append(dst, ']')
	for i, f := range v.SelectableFields {
		if i == 0 {
			dst = append(dst, `,"x-kubernetes-selectable-fields":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = object.AppendString(append(dst, `{"fieldPath":`...), f.Name)
		dst = append(dst, '}')
	}
	if len(v.SelectableFields) > 0 {
		dst = append(dst, ']')
	}
	return string(dst)
}

// appendList appends the schema of a custom kind's list.
func (p *publisher) appendList(dst []byte, k *kind, extensions string) []byte {
	names := k.Definition.Names
	m := &members{dst: append(dst, '{')}
	m.text("description", names.ListKind+" is a list of "+names.Kind)
	m.raw("type", `"object"`)
	m.raw("required", `["items"]`)
	m.key("properties")
	fields := &members{dst: append(m.dst, '{')}
	fields.raw("apiVersion", string(appendStringType(nil, p.docs.apiVersion)))
	fields.key("items")
	fields.dst = object.AppendString(append(fields.dst, `{"description":`...),
		"List of "+names.Plural+". More info: "+apiConventions)
	fields.dst = p.appendRef(append(fields.dst, `,"type":"array","items":`...), k.model)
	fields.dst = append(fields.dst, '}')
	fields.raw("kind", string(appendStringType(nil, p.docs.kind)))
	fields.raw("metadata", string(p.appendDescribedRef(nil, listMeta, p.docs.listMetadata)))
	m.dst = append(fields.dst, '}')
	m.dst = append(m.dst, extensions...)
	return append(m.dst, '}')
}

// kubernetesRelease returns the minor release, such as 1.37.
func kubernetesRelease() string {
	v := strings.TrimPrefix(resource.KubernetesVersion, "v")
	return v[:strings.LastIndexByte(v, '.')]
}

const bearerToken = `{"BearerToken":{"description":"Bearer Token authentication",` +
	`"in":"header","name":"authorization","type":"apiKey"}}`

// text returns the whole document. If text sets d.err, the caller must not use the document.
func (d *document) text() []byte {
	var params []fragment
	for _, name := range slices.Sorted(maps.Keys(d.shared)) {
		params = append(params, fragment{name: name, json: d.shared[name]})
	}
	size := 1024 // estimated size, so that a large document is not copied while it grows
	for _, parts := range [][]fragment{d.paths, d.schemas, params} {
		for _, f := range parts {
			size += len(f.name) + len(f.json) + f.size + 4
		}
	}
	m := &members{dst: append(make([]byte, 0, size), '{')}
	if d.edition == v2 {
		m.text("swagger", "2.0")
	} else {
		m.text("openapi", "3.0.0")
	}
	if d.builtin || d.edition == v2 {
		m.raw("info", `{"title":"Kubernetes","version":"`+kubernetesRelease()+`"}`)
	} else {
		m.raw("info", `{"title":"Kubernetes CRD Swagger","version":"v0.1.0"}`)
	}
	m.fragments("paths", d.paths)
	if d.edition == v3 {
		m.key("components")
		c := &members{dst: append(m.dst, '{')}
		c.fragments("schemas", d.schemas)
		if d.builtin {
			c.raw("securitySchemes", bearerToken)
		}
		m.dst = append(c.dst, '}')
		return append(m.dst, '}')
	}
	m.fragments("definitions", d.schemas)
	m.fragments("parameters", params)
	m.raw("securityDefinitions", bearerToken)
	m.raw("security", `[{"BearerToken":[]}]`)
	return append(m.dst, '}')
}

// fragments appends a member whose value is a JSON object. Each of the parts is a member of that object. The names
// of the parts need no escapes.
func (m *members) fragments(name string, parts []fragment) {
	m.key(name)
	inner := &members{dst: append(m.dst, '{')}
	for _, f := range parts {
		inner.key(f.name)
		if f.write != nil {
			inner.dst = f.write(inner.dst)
			continue
		}
		inner.dst = append(inner.dst, f.json...)
	}
	m.dst = append(inner.dst, '}')
}
