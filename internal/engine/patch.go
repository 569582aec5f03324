package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Patch changes an object, as often as other writes get in between, unless the patch
// carries a resourceVersion. created is true where an apply made it.
func (e *Engine) Patch(ctx context.Context, t Target, p Patch, c Caller) (o Object, created bool, err error) {
	if err := checkPatch(t, p, c); err != nil {
		return Object{}, false, err
	}
	w, err := e.newWrite(ctx, t, c, stores)
	if err != nil {
		return Object{}, false, err
	}
	w.patches = true
	if t.Subresource == "scale" {
		o, err = w.patchScale(p)
		return o, false, err
	}
	if w.change, err = w.patching(p); err != nil {
		return Object{}, false, err
	}
	if err := w.run(); err != nil {
		return Object{}, false, err
	}
	return w.answer, w.rec == nil, nil
}

// patching is the change that a patch makes.
func (w *write) patching(p Patch) (change, error) {
	if p.Type != types.ApplyYAMLPatchType {
		return func(w *write) (object.Tree, error) {
			if err := w.load(); err != nil {
				return nil, err
			}
			return w.patch(w.live, p)
		}, nil
	}
	w.upserts = w.target.Subresource == ""
	applied, repeated, err := w.decodeApplied(p.Data)
	return func(w *write) (object.Tree, error) {
		if err := w.load(); err != nil {
			return nil, err
		}
		w.owned = true
		return w.apply(applied, repeated, p.Force)
	}, err
}

// checkPatch answers what is wrong with a patch whatever it is applied to.
func checkPatch(t Target, p Patch, c Caller) error {
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if t.Version.Type != nil || t.Subresource == "scale" {
		accepted = append(accepted, string(types.StrategicMergePatchType))
	}
	accepted = append(accepted, string(types.ApplyYAMLPatchType))
	if !slices.Contains(accepted, string(p.Type)) {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusUnsupportedMediaType,
			Reason:  metav1.StatusReasonUnsupportedMediaType,
			Message: "the body of the request was in an unknown format - accepted media types include: " + strings.Join(accepted, ", "),
		}}
	}
	options := &metav1.PatchOptions{FieldManager: c.FieldManager}
	if p.Force {
		options.Force = &p.Force
	}
	if errs := metavalidation.ValidatePatchOptions(options, p.Type); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	if p.Type != types.ApplyYAMLPatchType && !json.Valid(p.Data) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// decodeApplied reads the configuration of an apply. repeated says which fields it has twice, "" if none, or if
// the caller does not want to know.
func (w *write) decodeApplied(data []byte) (applied object.Tree, repeated string, err error) {
	applied, duplicates, err := decodeJSONOrYAML(data)
	if err != nil {
		return nil, "", apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if len(duplicates) > 0 && w.caller.Validation != metav1.FieldValidationIgnore {
		repeated = strings.Join(duplicates, ", ")
		if err := yaml.UnmarshalStrict(data, &map[string]any{}); err != nil {
			repeated = err.Error()
		}
	}
	return applied, repeated, nil
}

// tellRepeated is for what an applied configuration has twice, which upstream tells once it is merged: a conflict goes first.
func (w *write) tellRepeated(repeated string) error {
	if repeated == "" {
		return nil
	}
	if w.caller.Validation == metav1.FieldValidationStrict {
		return apierrors.NewBadRequest("error strict decoding patch: " + repeated)
	}
	w.warn(yamlProblems(repeated)...)
	return nil
}

// decodeJSONOrYAML saves the YAML parser where the data is JSON, as clients' mostly is.
func decodeJSONOrYAML(data []byte) (object.Tree, []string, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		if t, duplicates, err := object.DecodeApplied(data); err == nil {
			return t, duplicates, nil
		}
	}
	return object.DecodeYAML(data)
}

// yamlProblems takes the message of the YAML parser apart, one warning each.
func yamlProblems(text string) []string {
	const mark = "unmarshal errors:\n"
	i := strings.Index(text, mark)
	if i < 0 {
		return []string{text}
	}
	lines := strings.Split(text[i+len(mark):], "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

// apply merges an applied configuration into the live object, or makes a new one of it.
func (w *write) apply(applied object.Tree, repeated string, force bool) (object.Tree, error) {
	w.emptyFor(w.live)
	t, err := w.fields.Apply(w.live, applied, w.caller.FieldManager, force, w.now)
	if err == nil {
		err = w.fits(t)
	}
	if err != nil {
		return nil, asPlain(err)
	}
	if err := w.tellRepeated(repeated); err != nil {
		return nil, err
	}
	t, err = w.rules.complete(w, t)
	if err == nil && w.live == nil && object.UID(t) != "" {
		err = apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", object.UID(t)))
	}
	return t, err
}

// patch applies a patch of the other three kinds to live. Who owns what is not looked at.
func (w *write) patch(live object.Tree, p Patch) (object.Tree, error) {
	patched, problems, err := w.patched(live, p)
	if err == nil {
		err = w.fits(patched)
	}
	if err != nil {
		return nil, err
	}
	if err := w.integers(p, patched); err != nil {
		return nil, unfit(p.quoted(patched), w.placed(patched, err))
	}
	if w.def.Custom != nil && object.String(patched, "kind") == "" {
		data := p.quoted(patched)
		return nil, unfit(data, fmt.Sprintf("Object 'Kind' is missing in '%s'", data))
	}
	before := ""
	if w.caller.Validation == metav1.FieldValidationStrict && w.def.Custom != nil {
		before = p.quoted(patched) // shape is about to prune it
	}
	t, unknown, err := w.rules.shape(w, patched, false)
	if err != nil {
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return nil, err
		}
		return nil, unfit(p.quoted(patched), w.misfit(p, patched, err))
	}
	if problems = append(problems, unknown...); len(problems) > 0 {
		switch w.caller.Validation {
		case metav1.FieldValidationIgnore:
		case metav1.FieldValidationStrict:
			if before == "" {
				before = p.quoted(patched)
			}
			return nil, unfit(before, strictText(problems))
		default:
			w.warn(problems...)
		}
	}
	if w.def.Custom == nil {
		if err := w.checkKind(t, nil); err != nil {
			return nil, unfit(p.quoted(t), err.Error())
		}
	}
	return t, nil
}

// integers returns the error of Go's decoder if a merge patch or a JSON patch of a built-in kind writes an integer with a
// fraction or an exponent (2.0). A strategic merge patch may contain such integers.
func (w *write) integers(p Patch, patched object.Tree) error {
	if w.v.Type == nil || p.Type == types.StrategicMergePatchType || !hasWholeFloat(patched) {
		return nil
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(object.AppendTypedJSON(nil, patched), w.v.Type.New())
}

// hasWholeFloat reports whether a number in v was written with a fraction or an exponent and is whole.
func hasWholeFloat(v any) bool {
	switch v := v.(type) {
	case float64:
		return v == math.Trunc(v)
	case object.Tree:
		for _, w := range v {
			if hasWholeFloat(w) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasWholeFloat)
	}
	return false
}

// quoted returns the text that upstream quotes where it refuses a patch: a strategic merge patch itself, else its result.
func (p Patch) quoted(patched object.Tree) string {
	if p.Type == types.StrategicMergePatchType {
		if sent, _, err := object.DecodeJSON(p.Data); err == nil {
			return fmt.Sprintf("%+v", map[string]any(sent))
		}
	}
	return string(object.AppendJSON(nil, patched))
}

// misfit returns the reason why the result of a patch is no object of its Go type. Upstream decodes that of a strategic merge patch by
// another function than all others, whose errors clients look for.
func (w *write) misfit(p Patch, patched object.Tree, err error) string {
	if p.Type == types.StrategicMergePatchType {
		if other := runtime.DefaultUnstructuredConverter.FromUnstructured(patched, w.v.Type.New()); other != nil {
			return other.Error()
		}
	}
	return w.placed(patched, err)
}

// fits returns the caller's objection to the size of what a patch has made, which is about to be decoded.
func (w *write) fits(t object.Tree) error {
	if w.caller.Fits == nil {
		return nil
	}
	return w.caller.Fits(t)
}

// patched is live with the patch applied, and the problems of strict decoding so far.
func (w *write) patched(live object.Tree, p Patch) (t object.Tree, problems []string, err error) {
	strict := w.caller.Validation != metav1.FieldValidationIgnore
	switch p.Type {
	case types.JSONPatchType:
		if strict {
			if problems, err = merge.CheckJSON(p.Data); err != nil {
				return nil, nil, err
			}
		}
		t, err = merge.JSON(live, p.Data)
		return t, problems, asPlain(err)
	case types.MergePatchType:
		t, problems, err = merge.Merge(live, p.Data)
	default:
		if t, problems, err = merge.Strategic(live, p.Data, w.v.Type.New()); err == nil {
			restoreType(t, live)
		}
	}
	if !strict {
		problems = nil
	}
	for i, path := range problems {
		problems[i] = object.DuplicateError(path)
	}
	return t, problems, asPlain(err)
}

// restoreType undoes what a strategic merge patch has said of the kind and the apiVersion, at which upstream does not look: clients send
// those of a Deployment to its /scale.
func restoreType(patched, live object.Tree) {
	for _, key := range []string{"apiVersion", "kind"} {
		switch patched[key].(type) {
		case nil, string:
			patched[key] = live[key]
		}
	}
}

// asPlain answers what has no Status of its own as upstream does.
func asPlain(err error) error {
	var status *apierrors.StatusError
	if err == nil || errors.As(err, &status) {
		return err
	}
	return plain(err.Error())
}

// unfit is the 422 for a patch whose result is not an object of the kind. It quotes 200 bytes; upstream quotes all.
func unfit(quoted, problem string) error {
	const most = 200
	if n := len(quoted); n > most {
		quoted = fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(quoted[:most], ""), n)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), quoted, problem),
	})
}
