package validation

import (
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// EmbeddedResources checks apiVersion, kind and metadata of every embedded resource in t.
func EmbeddedResources(ctx context.Context, s *schema.Schema, t object.Tree) field.ErrorList {
	return Embedded(ctx, t, s.StructuralRoot())
}

// Embedded does the same as EmbeddedMetadata for a value with the schema n.
func Embedded(ctx context.Context, v any, n *schema.Node) field.ErrorList {
	e := embeddedChecker{ctx: ctx}
	e.value(v, n, nil)
	return e.errs
}

// embeddedChecker checks embedded resources.
type embeddedChecker struct {
	ctx  context.Context
	errs field.ErrorList
}

func (e *embeddedChecker) value(v any, n *schema.Node, at *schema.Position) {
	if !n.Has(schema.EmbeddedResources) {
		return
	}
	switch v := v.(type) {
	case object.Tree:
		if n.Embedded {
			e.resource(v, at.Path())
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if child, ok := n.Properties[k]; ok {
				e.value(v[k], child, &schema.Position{Parent: at, Key: k})
			} else if n.Additional != nil {
				e.value(v[k], n.Additional.Schema, &schema.Position{Parent: at, Key: k, Kind: schema.AtKey})
			}
		}
	case []any:
		for i := range v {
			e.value(v[i], n.Items, &schema.Position{Parent: at, Index: i, Kind: schema.AtIndex})
		}
	}
}

// resource checks one embedded resource. Its metadata and the name in the metadata are optional.
func (e *embeddedChecker) resource(t object.Tree, path *field.Path) {
	e.text(t, "apiVersion", path, func(v string) string {
		if _, err := apischema.ParseGroupVersion(v); err != nil {
			return err.Error()
		}
		return ""
	})
	e.text(t, "kind", path, func(v string) string {
		if problems := validation.IsDNS1035Label(strings.ToLower(v)); len(problems) > 0 {
			return "may have mixed case, but should otherwise match: " + strings.Join(problems, ",")
		}
		return ""
	})
	v, ok := t["metadata"]
	if !ok {
		return
	}
	path = path.Child("metadata")
	var md metav1.ObjectMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, v), &md); err != nil {
		e.errs = append(e.errs, field.Invalid(path, v, err.Error()))
		return
	}
	if md.Name == "" {
		md.Name = "fakename"
	}
	e.errs = append(e.errs, apivalidation.ValidateObjectMetaDeclaratively(e.ctx, operation.Create, &md, nil,
		md.Namespace != "", pathSegment, path, true)...)
}

// text checks a required string.
func (e *embeddedChecker) text(t object.Tree, key string, path *field.Path, problem func(string) string) {
	v, ok := t[key]
	if !ok {
		e.errs = append(e.errs, field.Required(path.Child(key), ""))
		return
	}
	text, ok := v.(string)
	wrong := "must be a string"
	switch {
	case ok && text == "":
		wrong = "must not be empty"
	case ok:
		wrong = problem(text)
	}
	if wrong != "" {
		e.errs = append(e.errs, field.Invalid(path.Child(key), v, wrong))
	}
}

// pathSegment checks the minimum requirements that every object name must meet.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}
