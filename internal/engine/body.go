package engine

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

const duplicateOwners = ".metadata.ownerReferences contains duplicate entries%s; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"

// accept turns the body of a create or update into an object at the target's
// version: of the right kind, pruned, with regular metadata. What the caller wants to
// hear of unknown fields, it hears.
func (w *writing) accept(b Body) (object.Tree, error) {
	t := b.Tree
	if err := w.checkKind(t, b.Source); err != nil {
		return nil, err
	}
	kind := object.String(t, "kind")
	if b.Fault != nil {
		return nil, w.undecodable(kind, b.Fault.Error())
	}
	t, unknown, err := w.shape(t, b.Typed)
	if err != nil {
		return nil, w.undecodable(kind, err.Error())
	}
	if strict := append(b.Strict[:len(b.Strict):len(b.Strict)], unknown...); len(strict) > 0 {
		switch w.caller.Validation {
		case metav1.FieldValidationIgnore:
		case metav1.FieldValidationStrict:
			return nil, w.undecodable(kind, strictText(strict))
		default:
			w.warn(strict...)
		}
	}
	return t, nil
}

func strictText(problems []string) string {
	return "strict decoding error: " + strings.Join(problems, ", ")
}

// undecodable is the 400 for a body, of the kind that it says, that cannot be made an object.
func (w *writing) undecodable(kind, problem string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %s", kind, w.v.GroupVersion.Version, kind, problem))
}

// checkKind compares apiVersion and kind with the endpoint. A built-in kind may leave them out; another kind than
// a custom one is found by validateType. source is what an error quotes, nil for t.
func (w *writing) checkKind(t object.Tree, source []byte) error {
	apiVersion, kind := object.String(t, "apiVersion"), object.String(t, "kind")
	want := w.def.Names.Kind
	if w.def.Custom == nil {
		if apiVersion == "" {
			apiVersion = w.v.APIVersion
			t["apiVersion"] = apiVersion
		}
		if kind == "" {
			kind = want
			t["kind"] = kind
		}
	}
	if kind == "" {
		if source == nil {
			source = object.AppendJSON(nil, t)
		}
		return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): Object 'Kind' is missing in '%s' (%s)", want, source, object.Summary(source)))
	}
	if gv, err := schema.ParseGroupVersion(apiVersion); err != nil || gv != w.v.GroupVersion {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", apiVersion, w.v.APIVersion))
	}
	if kind != want && w.def.Custom == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: kind: Invalid value: %q: must be %s", kind, w.v.GroupVersion.Version, want, kind, want))
	}
	return nil
}

// shape makes of t what its kind has: pruned, without nulls, with defaults. It lists the unknown fields.
// typed says that t comes from the kind's Go type.
func (w *writing) shape(t object.Tree, typed bool) (out object.Tree, unknown []string, err error) {
	if w.def.Custom == nil {
		if w.v.Type != nil && !typed {
			if t, unknown, err = w.v.Type.Normalize(t); err != nil {
				return nil, nil, err
			}
		}
		t, err = w.defaults(t)
		return t, unknown, err
	}
	paths, err := normalizeMetadata(t)
	if err != nil {
		return nil, nil, err
	}
	if object.String(t, "kind") == w.def.Names.Kind { // the schema says nothing of another one, which validateType finds
		s, err := schemaOf(w.v)
		if err != nil {
			return nil, nil, err
		}
		more, wrong := s.Shape(t)
		if wrong != nil {
			return nil, nil, wrong
		}
		paths = append(paths, more...)
	}
	for _, p := range paths {
		unknown = append(unknown, `unknown field "`+p+`"`)
	}
	return t, unknown, nil
}

// defaults fills in what is left out, once more after anything but a client has changed t: an apply, and
// mutating admission, which belongs between the field manager (own, apply) and prepareCreate or prepareUpdate.
func (w *writing) defaults(t object.Tree) (object.Tree, error) {
	if w.def.Custom != nil {
		return fillIn(w.v, t)
	}
	if own := w.v.Default; own != nil {
		own(t)
		return t, nil
	}
	fill := w.def.Behavior.Default
	if fill == nil {
		return t, nil
	}
	if w.v.ConvertTo == nil {
		fill(t)
		return t, nil
	}
	hub, err := w.toStorage(t)
	if err != nil {
		return nil, err
	}
	fill(hub)
	return w.engine.convert(w.ctx, hub, w.def.Storage, w.v)
}

// dedup drops repeated owner references with a warning.
func (w *writing) dedup(t object.Tree, patch bool) {
	duplicates := dedupOwners(object.Metadata(t))
	if duplicates == nil {
		return
	}
	when := ""
	if patch {
		when = " after mutating admission happens"
	}
	w.warn(fmt.Sprintf(duplicateOwners, when, strings.Join(duplicates, ", ")))
}

// inNamespace sets the namespace of an object written through a request for namespace.
func (w *writing) inNamespace(t object.Tree) error {
	md := object.EnsureMetadata(t)
	namespace := ""
	if w.def.Namespaced {
		namespace = w.target.Namespace
	}
	if own := object.String(md, "namespace"); own != "" && namespace != "" && own != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	object.SetString(md, "namespace", namespace)
	return nil
}

// checkName compares the name with the one in the URL.
func (w *writing) checkName(t object.Tree) error {
	switch name := object.Name(t); name {
	case w.target.Name:
		return nil
	case "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", w.target.Name))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, w.target.Name))
	}
}

// toStorage is for built-in kinds, whose own functions want the storage version.
func (w *writing) toStorage(t object.Tree) (object.Tree, error) {
	return w.engine.convert(w.ctx, t, w.v, w.def.Storage)
}
