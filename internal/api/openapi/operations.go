package openapi

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	statusModel        = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
	patchModel         = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"
	deleteOptionsModel = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
	scaleModel         = "io.k8s.api.autoscaling.v1.Scale"
)

// param is a parameter in the path or the query.
type param struct {
	name, in, typ, description string
}

// response is one answer of an operation; model is the name of a schema, or "".
type response struct {
	code, description, model string
}

// operation is one method of a path.
type operation struct {
	method, action, id, tag, description string

	gvk          schema.GroupVersionKind
	params       []param // ordered by name
	body         string  // the name of a schema, or ""
	bodyRequired bool
	consumes     []string
	produces     []string
	responses    []response
}

// pathItem is a path with its operations. What all operations take stands in params.
type pathItem struct {
	path       string
	kind       schema.GroupVersionKind // of what a subresource takes, if not the kind itself
	params     []param
	operations []operation
}

// options are the query parameters of each verb, from the fields of metav1's types.
type options struct{ get, list, create, update, patch, delete []param }

func newOptions() options {
	return options{
		get:    queryParams(metav1.GetOptions{}, metav1.GetOptions{}.SwaggerDoc()),
		list:   queryParams(metav1.ListOptions{}, metav1.ListOptions{}.SwaggerDoc()),
		create: queryParams(metav1.CreateOptions{}, metav1.CreateOptions{}.SwaggerDoc()),
		update: queryParams(metav1.UpdateOptions{}, metav1.UpdateOptions{}.SwaggerDoc()),
		patch:  queryParams(metav1.PatchOptions{}, metav1.PatchOptions{}.SwaggerDoc()),
		delete: queryParams(metav1.DeleteOptions{}, metav1.DeleteOptions{}.SwaggerDoc()),
	}
}

func queryParams(of any, docs map[string]string) []param {
	var out []param
	t := reflect.TypeOf(of)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ft := f.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if name == "" || ft.Kind() == reflect.Struct {
			continue
		}
		if ft.Kind() == reflect.Slice {
			ft = ft.Elem() // one parameter for each item
		}
		typ := "string"
		switch ft.Kind() {
		case reflect.Bool:
			typ = "boolean"
		case reflect.Int, reflect.Int32, reflect.Int64:
			typ = "integer"
		}
		out = append(out, param{name, "query", typ, docs[name]})
	}
	return out
}

// kind is what the operations of one version need to know of it.
type kind struct {
	*resource.Version
	model, listModel string
	custom           bool
	verbs            []string
}

func (k kind) serves(verb string) bool { return slices.Contains(k.verbs, verb) }

// paths are all of a kind, as they are served.
func (o *options) paths(k kind) []pathItem {
	names := k.Definition.Names
	base := "/apis/" + k.APIVersion + "/"
	if k.GroupVersion.Group == "" {
		base = "/api/" + k.APIVersion + "/"
	}
	root, scope := base+names.Plural, ""
	var items []pathItem
	if k.Definition.Namespaced {
		if k.serves("list") {
			items = append(items, pathItem{path: root, operations: []operation{o.listing(k, "", "ForAllNamespaces")}})
		}
		root, scope = base+"namespaces/{namespace}/"+names.Plural, "Namespaced"
	}
	items = append(items, o.collection(k, root, scope), o.single(k, root+"/{name}", scope))
	all := []string{"get", "patch", "update"}
	if k.Status {
		items = append(items, o.subresource(k, root+"/{name}/", scope, resource.Subresource{Name: "status", Verbs: all}, k.model))
	}
	if k.Scale != nil {
		item := o.subresource(k, root+"/{name}/", scope, resource.Subresource{Name: "scale", Verbs: all}, scaleModel)
		if !k.custom {
			item.kind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")
		}
		items = append(items, item)
	}
	for _, sub := range k.Subresources {
		if sub.Connect != nil {
			items = append(items, connecting(k, root+"/{name}/"+sub.Name, scope, sub)...)
			continue
		}
		items = append(items, o.subresource(k, root+"/{name}/", scope, sub, k.model))
	}
	items = slices.DeleteFunc(items, func(p pathItem) bool { return len(p.operations) == 0 })
	for i := range items {
		items[i].finish(k)
	}
	slices.SortFunc(items, func(a, b pathItem) int { return strings.Compare(a.path, b.path) })
	return items
}

// newOperation is what all operations have in common. name is what its id ends in.
func newOperation(k kind, method, action, verb, name string) operation {
	group := strings.TrimSuffix(k.GroupVersion.Group, ".k8s.io")
	if group == "" {
		group = "core"
	}
	op := operation{
		method:   method,
		action:   action,
		id:       verb + identifier(group, true) + identifier(k.GroupVersion.Version, true) + identifier(name, true),
		tag:      identifier(group, false) + "_" + identifier(k.GroupVersion.Version, false),
		params:   []param{{"pretty", "query", "string", "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget)."}},
		consumes: []string{"*/*"},
		produces: []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"},
	}
	if k.custom {
		op.consumes = []string{"application/json", "application/yaml"}
		op.produces = op.consumes
	}
	return op
}

// identifier makes one word of s: what is neither letter nor digit falls out, and the
// next letter is a capital.
func identifier(s string, capital bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)):
			capital = true
		case capital:
			b.WriteRune(unicode.ToUpper(r))
			capital = false
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// article is a noun's, between spaces; a plural has none.
func article(noun string) string {
	first, _ := utf8.DecodeRuneInString(noun)
	switch {
	case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"):
		return " "
	case strings.ContainsRune("aeiou", unicode.ToLower(first)):
		return " an "
	default:
		return " a "
	}
}

func (o *options) listing(k kind, scope, suffix string) operation {
	name := k.Definition.Names.Kind
	op := newOperation(k, "get", "list", "list", scope+name+suffix)
	op.description = "list objects of kind " + name
	if !k.custom {
		op.produces = append(op.produces, "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
		if k.serves("watch") {
			op.description = "list or watch objects of kind " + name
		}
	}
	op.params = append(op.params, o.list...)
	op.responses = []response{{"200", "OK", k.listModel}}
	return op
}

// collection is the path of all objects of a namespace, or of all.
func (o *options) collection(k kind, path, scope string) pathItem {
	item := pathItem{path: path}
	name := k.Definition.Names.Kind
	if k.serves("list") {
		item.operations = append(item.operations, o.listing(k, scope, ""))
	}
	if k.serves("create") {
		item.operations = append(item.operations, o.creating(k, scope, "", k.model))
	}
	if k.serves("deletecollection") {
		op := newOperation(k, "delete", "deletecollection", "delete", "collection"+scope+name)
		op.description = "delete collection of " + name
		op.responses = []response{{"200", "OK", statusModel}}
		if k.custom {
			op.params = append(op.params, o.list...)
		} else {
			op.body = deleteOptionsModel
			op.params = append(op.params, o.delete...)
			for _, p := range o.list {
				if p.name != "watch" && p.name != "allowWatchBookmarks" {
					op.params = append(op.params, p)
				}
			}
		}
		item.operations = append(item.operations, op)
	}
	return item
}

// single is the path of one object.
func (o *options) single(k kind, path, scope string) pathItem {
	item := pathItem{path: path}
	name := k.Definition.Names.Kind
	if k.serves("get") {
		item.operations = append(item.operations, o.reading(k, scope, "", k.model))
	}
	if k.serves("update") {
		item.operations = append(item.operations, o.replacing(k, scope, "", k.model))
	}
	if k.serves("delete") {
		op := newOperation(k, "delete", "delete", "delete", scope+name)
		op.description = "delete" + article(name) + name
		op.params = append(op.params, o.delete...)
		op.body = deleteOptionsModel
		answer := statusModel
		if b := k.Definition.Behavior; b.ReturnsDeleted && b.Deletable == nil { // nobody waits for the end of a Namespace
			answer = k.model
		}
		op.responses = []response{{"200", "OK", answer}, {"202", "Accepted", answer}}
		item.operations = append(item.operations, op)
	}
	if k.serves("patch") {
		item.operations = append(item.operations, o.patching(k, scope, "", k.model))
	}
	return item
}

func (o *options) subresource(k kind, path, scope string, sub resource.Subresource, model string) pathItem {
	item := pathItem{path: path + sub.Name}
	if sub.Body != nil {
		item.kind = sub.Body.GroupVersionKind()
		if model = customModel(item.kind); sub.Body.Type != nil {
			model = modelName(structType(sub.Body.Type.New()))
		}
	}
	if slices.Contains(sub.Verbs, "create") {
		item.operations = append(item.operations, o.creating(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "get") {
		item.operations = append(item.operations, o.reading(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "update") {
		item.operations = append(item.operations, o.replacing(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "patch") {
		item.operations = append(item.operations, o.patching(k, scope, sub.Name, model))
	}
	return item
}

// of names what an operation works on.
func of(k kind, sub string) string {
	if sub != "" {
		sub = " " + sub + " of"
	}
	return sub + " the specified " + k.Definition.Names.Kind
}

func suffix(k kind, scope, sub string) string {
	return scope + k.Definition.Names.Kind + identifier(sub, true)
}

func (o *options) reading(k kind, scope, sub, model string) operation {
	op := newOperation(k, "get", "get", "read", suffix(k, scope, sub))
	op.description = "read" + of(k, sub)
	if k.custom {
		op.params = append(op.params, o.get...)
	}
	op.responses = []response{{"200", "OK", model}}
	return op
}

func (o *options) creating(k kind, scope, sub, model string) operation {
	op := newOperation(k, "post", "post", "create", suffix(k, scope, sub))
	name := k.Definition.Names.Kind
	if op.description = "create"; sub != "" {
		op.description += " " + sub + " of"
	}
	op.description += article(name) + name
	op.params = append(op.params, o.create...)
	op.body, op.bodyRequired = model, true
	op.responses = []response{{"200", "OK", model}, {"201", "Created", model}, {"202", "Accepted", model}}
	return op
}

func (o *options) replacing(k kind, scope, sub, model string) operation {
	op := newOperation(k, "put", "put", "replace", suffix(k, scope, sub))
	op.description = "replace" + of(k, sub)
	op.params = append(op.params, o.update...)
	op.body, op.bodyRequired = model, true
	op.responses = []response{{"200", "OK", model}, {"201", "Created", model}}
	return op
}

func (o *options) patching(k kind, scope, sub, model string) operation {
	op := newOperation(k, "patch", "patch", "patch", suffix(k, scope, sub))
	op.description = "partially update" + of(k, sub)
	op.params = append(op.params, o.patch...)
	op.body, op.bodyRequired = patchModel, true
	op.responses = []response{{"200", "OK", model}}
	op.consumes = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	if !k.custom {
		op.consumes = slices.Insert(op.consumes, 2, "application/strategic-merge-patch+json")
		op.responses = append(op.responses, response{"201", "Created", model})
	}
	return op
}

// finish adds the parameters of the path itself and moves up what all operations share.
func (p *pathItem) finish(k kind) {
	if p.kind.Empty() {
		p.kind = k.GroupVersionKind()
	}
	if strings.Contains(p.path, "{namespace}") {
		p.params = append(p.params, param{"namespace", "path", "string", "object name and auth scope, such as for teams and projects"})
	}
	if strings.Contains(p.path, "{name}") {
		p.params = append(p.params, param{"name", "path", "string", "name of the " + p.kind.Kind})
	}
	for _, candidate := range p.operations[0].params {
		if p.shared(candidate) {
			p.params = append(p.params, candidate)
		}
	}
	for i := range p.operations {
		op := &p.operations[i]
		op.gvk = p.kind
		op.params = slices.DeleteFunc(slices.Clone(op.params), func(q param) bool { return slices.Contains(p.params, q) })
		slices.SortFunc(op.params, compareParams)
	}
	slices.SortFunc(p.params, compareParams)
}

func compareParams(a, b param) int {
	return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.in, b.in))
}

// shared says whether every operation takes a parameter; descriptions may differ between
// them, as between those of create and patch, and then it stays where it is.
func (p *pathItem) shared(q param) bool {
	for _, op := range p.operations {
		if !slices.Contains(op.params, q) {
			return false
		}
	}
	return true
}
