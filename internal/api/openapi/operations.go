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

// param is a path or query parameter.
type param struct {
	name, in, typ, description string
}

// response is one response of an operation. model is the name of a schema, or "" for a string.
type response struct {
	code, description, model string
}

// operation is one method of a path.
type operation struct {
	method, action, id, tag, description string

	gvk          schema.GroupVersionKind
	params       []param // ordered by name
	body         string  // name of the body's schema; "" if there is no body
	bodyRequired bool
	consumes     []string
	produces     []string
	responses    []response
}

// pathItem is a path with its operations. params are the parameters of all operations.
type pathItem struct {
	path       string
	kind       schema.GroupVersionKind // kind of a subresource's body or options; otherwise the kind of the objects
	params     []param
	operations []operation
}

// options holds the query parameters of each verb. They are the fields of metav1.GetOptions and similar types.
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

// kind is one version of a kind, with the properties that its operations need.
type kind struct {
	*resource.Version
	model, listModel string
	custom           bool
	verbs            []string
}

func (k kind) serves(verb string) bool { return slices.Contains(k.verbs, verb) }

// paths returns all served paths of a kind, sorted.
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
			operations := []operation{o.listOperation(k, "", "ForAllNamespaces")}
			items = append(items, pathItem{path: root, operations: operations})
		}
		root, scope = base+"namespaces/{namespace}/"+names.Plural, "Namespaced"
	}
	items = append(items, o.collection(k, root, scope), o.single(k, root+"/{name}", scope))
	all := []string{"get", "patch", "update"}
	if k.Status {
		status := resource.Subresource{Name: "status", Verbs: all}
		items = append(items, o.subresource(k, root+"/{name}/", scope, status, k.model))
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
			items = append(items, connectPaths(k, root+"/{name}/"+sub.Name, scope, sub)...)
			continue
		}
		items = append(items, o.subresource(k, root+"/{name}/", scope, sub, k.model))
	}
	items = slices.DeleteFunc(items, func(p pathItem) bool { return len(p.operations) == 0 })
	for i := range items {
		items[i].addPathParams(k)
	}
	slices.SortFunc(items, func(a, b pathItem) int { return strings.Compare(a.path, b.path) })
	return items
}

// newOperation returns an operation with the fields that all operations have. name is the last part of the
// operation ID.
func newOperation(k kind, method, action, verb, name string) operation {
	group := strings.TrimSuffix(k.GroupVersion.Group, ".k8s.io")
	if group == "" {
		group = "core"
	}
	op := operation{
		method: method,
		action: action,
		id:     verb + identifier(group, true) + identifier(k.GroupVersion.Version, true) + identifier(name, true),
		tag:    identifier(group, false) + "_" + identifier(k.GroupVersion.Version, false),
		params: []param{{"pretty", "query", "string", "If 'true', then the output is pretty printed. " +
			"Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool " +
			"(curl and wget)."}},
		consumes: []string{"*/*"},
		produces: []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"},
	}
	if k.custom {
		op.consumes = []string{"application/json", "application/yaml"}
		op.produces = op.consumes
	}
	return op
}

// identifier converts s to CamelCase. It removes characters other than letters and digits and capitalizes the
// next letter.
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

// article returns the indefinite article of noun between spaces. It returns one space if noun is a plural.
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

func (o *options) listOperation(k kind, scope, suffix string) operation {
	name := k.Definition.Names.Kind
	op := newOperation(k, "get", "list", "list", scope+name+suffix)
	op.description = "list objects of kind " + name
	if !k.custom {
		op.produces = append(op.produces,
			"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
		if k.serves("watch") {
			op.description = "list or watch objects of kind " + name
		}
	}
	op.params = append(op.params, o.list...)
	op.responses = []response{{"200", "OK", k.listModel}}
	return op
}

// collection returns the path of all objects of a kind, or of all objects in a namespace.
func (o *options) collection(k kind, path, scope string) pathItem {
	item := pathItem{path: path}
	name := k.Definition.Names.Kind
	if k.serves("list") {
		item.operations = append(item.operations, o.listOperation(k, scope, ""))
	}
	if k.serves("create") {
		item.operations = append(item.operations, o.createOperation(k, scope, "", k.model))
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

// single returns the path of one object.
func (o *options) single(k kind, path, scope string) pathItem {
	item := pathItem{path: path}
	name := k.Definition.Names.Kind
	if k.serves("get") {
		item.operations = append(item.operations, o.readOperation(k, scope, "", k.model))
	}
	if k.serves("update") {
		item.operations = append(item.operations, o.replaceOperation(k, scope, "", k.model))
	}
	if k.serves("delete") {
		op := newOperation(k, "delete", "delete", "delete", scope+name)
		op.description = "delete" + article(name) + name
		op.params = append(op.params, o.delete...)
		op.body = deleteOptionsModel
		model := statusModel
		// The deletion of a Namespace returns a Status, because the Namespace is deleted later.
		if b := k.Definition.Behavior; b.ReturnsDeleted && b.Deletable == nil {
			model = k.model
		}
		op.responses = []response{{"200", "OK", model}, {"202", "Accepted", model}}
		item.operations = append(item.operations, op)
	}
	if k.serves("patch") {
		item.operations = append(item.operations, o.patchOperation(k, scope, "", k.model))
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
		item.operations = append(item.operations, o.createOperation(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "get") {
		item.operations = append(item.operations, o.readOperation(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "update") {
		item.operations = append(item.operations, o.replaceOperation(k, scope, sub.Name, model))
	}
	if slices.Contains(sub.Verbs, "patch") {
		item.operations = append(item.operations, o.patchOperation(k, scope, sub.Name, model))
	}
	return item
}

// ofSpecified returns the end of an operation's description, such as " status of the specified Pod".
func ofSpecified(k kind, sub string) string {
	if sub != "" {
		sub = " " + sub + " of"
	}
	return sub + " the specified " + k.Definition.Names.Kind
}

func suffix(k kind, scope, sub string) string {
	return scope + k.Definition.Names.Kind + identifier(sub, true)
}

func (o *options) readOperation(k kind, scope, sub, model string) operation {
	op := newOperation(k, "get", "get", "read", suffix(k, scope, sub))
	op.description = "read" + ofSpecified(k, sub)
	if k.custom {
		op.params = append(op.params, o.get...)
	}
	op.responses = []response{{"200", "OK", model}}
	return op
}

func (o *options) createOperation(k kind, scope, sub, model string) operation {
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

func (o *options) replaceOperation(k kind, scope, sub, model string) operation {
	op := newOperation(k, "put", "put", "replace", suffix(k, scope, sub))
	op.description = "replace" + ofSpecified(k, sub)
	op.params = append(op.params, o.update...)
	op.body, op.bodyRequired = model, true
	op.responses = []response{{"200", "OK", model}, {"201", "Created", model}}
	return op
}

func (o *options) patchOperation(k kind, scope, sub, model string) operation {
	op := newOperation(k, "patch", "patch", "patch", suffix(k, scope, sub))
	op.description = "partially update" + ofSpecified(k, sub)
	op.params = append(op.params, o.patch...)
	op.body, op.bodyRequired = patchModel, true
	op.responses = []response{{"200", "OK", model}}
	op.consumes = []string{
		"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml",
	}
	if !k.custom {
		op.consumes = slices.Insert(op.consumes, 2, "application/strategic-merge-patch+json")
		op.responses = append(op.responses, response{"201", "Created", model})
	}
	return op
}

// addPathParams adds the parameters of the path and moves the parameters that all operations share to the path.
func (p *pathItem) addPathParams(k kind) {
	if p.kind.Empty() {
		p.kind = k.GroupVersionKind()
	}
	if strings.Contains(p.path, "{namespace}") {
		p.params = append(p.params, param{
			"namespace", "path", "string", "object name and auth scope, such as for teams and projects",
		})
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
		op.params = slices.DeleteFunc(slices.Clone(op.params), func(q param) bool {
			return slices.Contains(p.params, q)
		})
		slices.SortFunc(op.params, compareParams)
	}
	slices.SortFunc(p.params, compareParams)
}

func compareParams(a, b param) int {
	return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.in, b.in))
}

// shared reports whether every operation has the parameter q with the same description. The descriptions of a
// parameter can differ, for example between create and patch.
func (p *pathItem) shared(q param) bool {
	for _, op := range p.operations {
		if !slices.Contains(op.params, q) {
			return false
		}
	}
	return true
}
