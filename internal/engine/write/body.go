package write

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// decodeBody turns the body of a create or update into an object at the target's version. It checks the kind,
// prunes unknown fields and normalizes the metadata. The caller's field validation determines whether strict
// decoding errors are returned, reported as warnings or ignored.
func (w *write) decodeBody(b verb.Body) (object.Tree, error) {
	t := b.Tree
	if err := w.checkKind(t, b.Source); err != nil {
		return nil, err
	}
	kind := object.String(t, "kind")
	if b.DecodeError != nil {
		return nil, w.Undecodable(kind, w.withFieldPath(t, b.DecodeError))
	}
	source := strategy.FromBody
	if b.Typed {
		source = strategy.FromType
	}
	t, unknown, err := w.rules.Normalize(&w.Write, t, source)
	if err != nil {
		return nil, w.Undecodable(kind, w.withFieldPath(b.Tree, err))
	}
	if strict := append(b.Strict[:len(b.Strict):len(b.Strict)], unknown...); w.rejects(strict) {
		return nil, w.Undecodable(kind, strictText(strict))
	}
	if w.Caller.OnDecoded != nil {
		w.Caller.OnDecoded(t)
	}
	return t, nil
}

// rejects reports whether strict decoding errors reject the object. If not, they become warnings, as far as the
// caller's field validation requires.
func (w *write) rejects(problems []string) bool {
	if len(problems) == 0 || w.Caller.Validation == metav1.FieldValidationIgnore {
		return false
	}
	if w.Caller.Validation == metav1.FieldValidationStrict {
		return true
	}
	w.Warn(problems...)
	return false
}

func strictText(problems []string) string {
	return "strict decoding error: " + strings.Join(problems, ", ")
}

// withFieldPath returns the text of err, an error of decoding t as the kind's Go type. It puts the path of the
// field in front if the text does not contain it.
func (w *write) withFieldPath(t object.Tree, err error) string {
	var named *json.UnmarshalTypeError
	if w.Version.Type == nil || errors.As(err, &named) || strings.Contains(err.Error(), "Go struct field") {
		return err.Error()
	}
	if at := w.Version.Type.TypeMismatch(t); at != nil {
		return at.String() + ": " + err.Error()
	}
	return err.Error()
}

// checkKind compares apiVersion and kind with the endpoint, and sets them if the body of a built-in kind leaves
// them out. For a custom resource, validateType reports a wrong kind later. Errors quote source, or t if source is
// nil.
func (w *write) checkKind(t object.Tree, source []byte) error {
	apiVersion, kind := object.String(t, "apiVersion"), object.String(t, "kind")
	want := w.Def.Names.Kind
	if w.Version.Schema == nil {
		if apiVersion == "" {
			apiVersion = w.Version.APIVersion
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
	if gv, err := schema.ParseGroupVersion(apiVersion); err != nil || gv != w.Version.GroupVersion {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)",
			apiVersion, w.Version.APIVersion))
	}
	if kind != want && w.Version.Schema == nil {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"%s in version %q cannot be handled as a %s: kind: Invalid value: %q: must be %s",
			kind, w.Version.GroupVersion.Version, want, kind, want))
	}
	return nil
}
