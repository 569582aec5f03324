package write

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

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Patch applies a patch to an object. After a conflict with another write it tries again, unless the patch sets a
// resourceVersion. created is true if an apply has created the object.
func (wr *Writer) Patch(
	ctx context.Context, t verb.Target, p verb.Patch, c verb.Caller,
) (o record.Object, created bool, err error) {
	if err := checkPatch(t, p, c); err != nil {
		return record.Object{}, false, err
	}
	w, err := wr.newWrite(ctx, t, c, opStore)
	if err != nil {
		return record.Object{}, false, err
	}
	w.IsPatch = true
	if t.Subresource == "scale" {
		o, err = w.patchScale(p)
		return o, false, err
	}
	if w.change, err = w.patchChange(p); err != nil {
		return record.Object{}, false, err
	}
	if err := w.run(); err != nil {
		return record.Object{}, false, err
	}
	return w.result, w.Record == nil, nil
}

// patchChange returns a function that applies the patch p.
func (w *write) patchChange(p verb.Patch) (changeFunc, error) {
	if p.Type != types.ApplyYAMLPatchType {
		return func(w *write) (object.Tree, error) {
			if err := w.load(); err != nil {
				return nil, err
			}
			return w.patch(w.Live, p)
		}, nil
	}
	w.upserts = w.Target.Subresource == ""
	applied, repeated, err := w.decodeApplied(p.Data)
	return func(w *write) (object.Tree, error) {
		if err := w.load(); err != nil {
			return nil, err
		}
		w.managed = true
		return w.apply(applied, repeated, p.Force)
	}, err
}

// checkPatch returns the errors of a patch that are independent of the object.
func checkPatch(t verb.Target, p verb.Patch, c verb.Caller) error {
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if t.Version.Type != nil || t.Subresource == "scale" {
		accepted = append(accepted, string(types.StrategicMergePatchType))
	}
	accepted = append(accepted, string(types.ApplyYAMLPatchType))
	if !slices.Contains(accepted, string(p.Type)) {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure,
			Code:   http.StatusUnsupportedMediaType,
			Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: "the body of the request was in an unknown format - accepted media types include: " +
				strings.Join(accepted, ", "),
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

// decodeApplied decodes the configuration of an apply. repeated lists its duplicate fields. It is empty if there
// are none or if field validation is Ignore.
func (w *write) decodeApplied(data []byte) (applied object.Tree, repeated string, err error) {
	applied, duplicates, err := decodeJSONOrYAML(data)
	if err != nil {
		return nil, "", apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if len(duplicates) > 0 && w.Caller.Validation != metav1.FieldValidationIgnore {
		repeated = strings.Join(duplicates, ", ")
		if err := yaml.UnmarshalStrict(data, &map[string]any{}); err != nil {
			repeated = err.Error()
		}
	}
	return applied, repeated, nil
}

// reportRepeated returns an error or adds warnings for the duplicate fields of an applied configuration. As in
// upstream, it runs after the merge, so a conflict is reported first.
func (w *write) reportRepeated(repeated string) error {
	if repeated != "" && w.rejects(yamlProblems(repeated)) {
		return apierrors.NewBadRequest("error strict decoding patch: " + repeated)
	}
	return nil
}

// decodeJSONOrYAML decodes data. For JSON, which most clients send, it does not use the slow YAML parser.
func decodeJSONOrYAML(data []byte) (object.Tree, []string, error) {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		if t, duplicates, err := object.DecodeApplied(data); err == nil {
			return t, duplicates, nil
		}
	}
	return object.DecodeYAML(data)
}

// yamlProblems splits the message of the YAML parser into one warning per problem.
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

// apply merges an applied configuration into the live object, or creates an object from it.
func (w *write) apply(applied object.Tree, repeated string, force bool) (object.Tree, error) {
	w.setEmptyObject(w.Live)
	t, err := w.fields.Apply(w.Live, applied, w.Caller.FieldManager, force, w.now)
	if err == nil {
		err = w.checkMemory(t)
	}
	if err != nil {
		return nil, verb.Unknown(err)
	}
	if err := w.reportRepeated(repeated); err != nil {
		return nil, err
	}
	if t, _, err = w.rules.Normalize(&w.Write, t, strategy.FromApply); err != nil {
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			err = w.Undecodable(w.Def.Names.Kind, err.Error())
		}
		return nil, err
	}
	if w.Live == nil && object.UID(t) != "" {
		err = apierrors.NewConflict(w.Version.GroupResource(), w.Target.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", object.UID(t)))
	}
	return t, err
}

// patch applies a JSON patch, merge patch or strategic merge patch to live. It does not update managedFields.
func (w *write) patch(live object.Tree, p verb.Patch) (object.Tree, error) {
	patched, problems, err := w.applyPatch(live, p)
	if err == nil {
		err = w.checkMemory(patched)
	}
	if err != nil {
		return nil, err
	}
	if err := w.checkIntegers(p, patched); err != nil {
		return nil, invalidPatch(quotedText(p, patched), w.withFieldPath(patched, err))
	}
	if w.Version.Schema != nil && object.String(patched, "kind") == "" {
		data := quotedText(p, patched)
		return nil, invalidPatch(data, fmt.Sprintf("Object 'Kind' is missing in '%s'", data))
	}
	before := ""
	if w.Caller.Validation == metav1.FieldValidationStrict && w.Version.Schema != nil {
		before = quotedText(p, patched) // upstream quotes this text, but normalize prunes unknown fields
	}
	t, unknown, err := w.rules.Normalize(&w.Write, patched, strategy.FromBody)
	if err != nil {
		var status *apierrors.StatusError
		if errors.As(err, &status) {
			return nil, err
		}
		return nil, invalidPatch(quotedText(p, patched), w.typeMismatch(p, patched, err))
	}
	if problems = append(problems, unknown...); w.rejects(problems) {
		if before == "" {
			before = quotedText(p, patched)
		}
		return nil, invalidPatch(before, strictText(problems))
	}
	if w.Version.Schema == nil {
		if err := w.checkKind(t, nil); err != nil {
			return nil, invalidPatch(quotedText(p, t), err.Error())
		}
	}
	return t, nil
}

// checkIntegers returns an error if the patch writes an integer with a fraction or an exponent, such as 2.0. It
// applies only to a JSON patch or merge patch of a built-in kind, because Go's decoder rejects such a number. A
// strategic merge patch may contain such a number.
func (w *write) checkIntegers(p verb.Patch, patched object.Tree) error {
	if w.Version.Type == nil || p.Type == types.StrategicMergePatchType || !hasWholeFloat(patched) {
		return nil
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(object.AppendTypedJSON(nil, patched), w.Version.Type.New())
}

// hasWholeFloat reports whether v contains a whole number that was written with a fraction or an exponent.
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

// quotedText returns the text that upstream quotes in the error for a patch. For a strategic merge patch this is
// the patch, for other patches the result of the patch.
func quotedText(p verb.Patch, patched object.Tree) string {
	if p.Type == types.StrategicMergePatchType {
		if sent, _, err := object.DecodeJSON(p.Data); err == nil {
			return fmt.Sprintf("%+v", map[string]any(sent))
		}
	}
	return string(object.AppendJSON(nil, patched))
}

// typeMismatch returns the reason why the result of a patch does not decode into the kind's Go type. Upstream uses
// a different decoder for the result of a strategic merge patch, and clients depend on the texts of its errors.
func (w *write) typeMismatch(p verb.Patch, patched object.Tree, err error) string {
	if p.Type == types.StrategicMergePatchType {
		if unstructuredErr := runtime.DefaultUnstructuredConverter.FromUnstructured(
			patched, w.Version.Type.New()); unstructuredErr != nil {
			return unstructuredErr.Error()
		}
	}
	return w.withFieldPath(patched, err)
}

// checkMemory returns the error of Caller.CheckMemory for the result of a patch, before the result is decoded.
func (w *write) checkMemory(t object.Tree) error {
	if w.Caller.CheckMemory == nil {
		return nil
	}
	return w.Caller.CheckMemory(t)
}

// applyPatch applies the patch to live. It returns the result and the strict decoding errors of the patch.
func (w *write) applyPatch(live object.Tree, p verb.Patch) (t object.Tree, problems []string, err error) {
	strict := w.Caller.Validation != metav1.FieldValidationIgnore
	switch p.Type {
	case types.JSONPatchType:
		if strict {
			if problems, err = merge.CheckJSON(p.Data); err != nil {
				return nil, nil, err
			}
		}
		t, err = merge.JSON(live, p.Data)
		return t, problems, verb.Unknown(err)
	case types.MergePatchType:
		t, problems, err = merge.Merge(live, p.Data)
	default:
		if t, problems, err = merge.Strategic(live, p.Data, w.Version.Type.New()); err == nil {
			restoreType(t, live)
		}
	}
	if !strict {
		problems = nil
	}
	for i, path := range problems {
		problems[i] = object.DuplicateError(path)
	}
	return t, problems, verb.Unknown(err)
}

// restoreType restores the kind and apiVersion after a strategic merge patch. Upstream ignores the kind and
// apiVersion in the patch. For example, a client may send those of a Deployment to its /scale.
func restoreType(patched, live object.Tree) {
	for _, key := range []string{"apiVersion", "kind"} {
		switch patched[key].(type) {
		case nil, string:
			patched[key] = live[key]
		}
	}
}

// invalidPatch returns the 422 for a patch whose result is not an object of the kind. It quotes at most 200 bytes
// of the text. Upstream quotes all of it.
func invalidPatch(quoted, problem string) error {
	const maxQuoted = 200
	if n := len(quoted); n > maxQuoted {
		quoted = fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(quoted[:maxQuoted], ""), n)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), quoted, problem),
	})
}
