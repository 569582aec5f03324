package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

// decodeBody turns the body of a create or update into an object at the target's version. It checks the kind,
// prunes unknown fields and normalizes the metadata. The caller's field validation determines whether strict
// decoding errors are returned, reported as warnings or ignored.
func (w *write) decodeBody(b Body) (object.Tree, error) {
	t := b.Tree
	if err := w.checkKind(t, b.Source); err != nil {
		return nil, err
	}
	kind := object.String(t, "kind")
	if b.DecodeError != nil {
		return nil, w.undecodableError(kind, w.withFieldPath(t, b.DecodeError))
	}
	t, unknown, err := w.rules.normalize(w, t, b.Typed)
	if err != nil {
		return nil, w.undecodableError(kind, w.withFieldPath(b.Tree, err))
	}
	if strict := append(b.Strict[:len(b.Strict):len(b.Strict)], unknown...); len(strict) > 0 {
		switch w.caller.Validation {
		case metav1.FieldValidationIgnore:
		case metav1.FieldValidationStrict:
			return nil, w.undecodableError(kind, strictText(strict))
		default:
			w.warn(strict...)
		}
	}
	if w.caller.OnDecoded != nil {
		w.caller.OnDecoded(t)
	}
	return t, nil
}

func strictText(problems []string) string {
	return "strict decoding error: " + strings.Join(problems, ", ")
}

// undecodableError returns the 400 for a body that cannot be decoded as the kind that it names.
func (w *write) undecodableError(kind, problem string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %s",
		kind, w.v.GroupVersion.Version, kind, problem))
}

// withFieldPath returns the text of err, an error of decoding t as the kind's Go type. It puts the path of the
// field in front if the text does not contain it.
func (w *write) withFieldPath(t object.Tree, err error) string {
	var named *json.UnmarshalTypeError
	if w.v.Type == nil || errors.As(err, &named) || strings.Contains(err.Error(), "Go struct field") {
		return err.Error()
	}
	if at := w.v.Type.TypeMismatch(t); at != nil {
		return at.String() + ": " + err.Error()
	}
	return err.Error()
}

// mergeDecodeError returns the results of rules.normalize for an applied configuration. It turns err into a
// decoding error.
func (w *write) mergeDecodeError(t object.Tree, _ []string, err error) (object.Tree, error) {
	if err != nil {
		err = w.undecodableError(w.def.Names.Kind, err.Error())
	}
	return t, err
}

// checkKind compares apiVersion and kind with the endpoint, and sets them if the body of a built-in kind leaves
// them out. For a custom resource, validateType reports a wrong kind later. Errors quote source, or t if source is
// nil.
func (w *write) checkKind(t object.Tree, source []byte) error {
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
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the object provided is unrecognized (must be of type %s): Object 'Kind' is missing in '%s' (%s)",
			want, source, object.Summary(source)))
	}
	if gv, err := schema.ParseGroupVersion(apiVersion); err != nil || gv != w.v.GroupVersion {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)",
			apiVersion, w.v.APIVersion))
	}
	if kind != want && w.def.Custom == nil {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"%s in version %q cannot be handled as a %s: kind: Invalid value: %q: must be %s",
			kind, w.v.GroupVersion.Version, want, kind, want))
	}
	return nil
}
