package openapi

import (
	"reflect"
	"strings"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// connectPaths returns the paths of a subresource that is proxied to a node, Pod or Service. Each path has the
// same operation for each method.
func connectPaths(k kind, path, scope string, sub resource.Subresource) []pathItem {
	c := sub.Connect
	options := c.Options.Type.New()
	params := queryParams(reflect.ValueOf(options).Elem().Interface(),
		options.(interface{ SwaggerDoc() map[string]string }).SwaggerDoc())
	if c.Reads {
		op := newOperation(k, "get", "get", "read", suffix(k, scope, sub.Name))
		op.description = "read" + ofSpecified(k, sub.Name)
		op.params = append(op.params, params...)
		op.produces = append([]string{"text/plain"}, op.produces...)
		op.responses = []response{{"200", "OK", ""}}
		return []pathItem{{path: path, operations: []operation{op}}}
	}
	item := func(path, withPath string, more ...param) pathItem {
		item := pathItem{path: path, kind: c.Options.GroupVersionKind(), params: more}
		for _, method := range c.Methods {
			op := newOperation(k, strings.ToLower(method), "connect", "connect",
				identifier(strings.ToLower(method), true)+suffix(k, scope, sub.Name)+withPath)
			op.description = "connect " + method + " requests to " + sub.Name + " of " + k.Definition.Names.Kind
			op.params, op.produces = params, []string{"*/*"}
			op.responses = []response{{"200", "OK", ""}}
			item.operations = append(item.operations, op)
		}
		return item
	}
	all := []pathItem{item(path, "")}
	if c.Subpath != "" {
		all = append(all, item(path+"/{path}", "WithPath", param{"path", "path", "string", "path to the resource"}))
	}
	return all
}
