// Package merge changes an object by a patch of any of the four kinds and keeps
// who owns which field. It knows no kinds, storage or HTTP.
package merge

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	maxJSONPatchOperations = 10000
	// maxJSONPatchCopyBytes is what upstream's server allows copy operations to add.
	maxJSONPatchCopyBytes = 3 << 20
)

// JSON applies a JSON patch (RFC 6902, with the negative indices that upstream
// knows) to doc, which is not modified and shares with the result at most what it
// does in Merge. Errors are StatusErrors: 400 for what is no
// patch, 413 for more than 10,000 operations or one that exceeds the limits of Perform, 422 for one that does not apply, that
// copies more than 3 MiB, or that leaves something other than an object.
func JSON(doc object.Tree, patch []byte) (object.Tree, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxJSONPatchOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxJSONPatchOperations, len(operations)))
	}
	aside := !touchManagedFields(operations)
	source := doc
	if aside {
		source = withoutManagedFields(doc)
	}
	patched, err := ApplyOperations(operations, object.AppendJSON(nil, source))
	switch {
	case apierrors.IsRequestEntityTooLargeError(err):
		return nil, err
	case err != nil:
		return nil, unprocessable(err)
	}
	out, _, err := object.DecodeJSON(patched)
	if err != nil {
		return nil, notAnObject(patched, err)
	}
	if entries, ok := object.Metadata(doc)[managedFields]; ok && aside {
		object.EnsureMetadata(out)[managedFields] = entries
	}
	return out, nil
}

// ApplyOperations applies the operations of a JSON patch to a document. A patch that exceeds maxItemMoves or maxLevelBytes is a 413
// StatusError. Other errors are the library's own.
func ApplyOperations(operations jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	// The library takes its limit from a variable; the first caller sets it.
	atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxJSONPatchCopyBytes)
	if err := checkCost(operations, doc); err != nil {
		return nil, err
	}
	return perform(operations, doc)
}

// perform applies operations. Some that make no sense, such as a test of the root without a value, make
// the library panic; upstream answers those with a 500.
func perform(operations jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the patch cannot be applied: %v", p)
		}
	}()
	return operations.Apply(doc)
}

// touchManagedFields tells whether operations may read or change managedFields.
// They are most of many objects, so that a patch is much faster without them.
func touchManagedFields(operations jsonpatch.Patch) bool {
	for _, operation := range operations {
		for _, part := range [...]func() (string, error){operation.Path, operation.From} {
			path, err := part()
			if err == nil && (path == "" || path == "/metadata" || strings.HasPrefix(path, "/metadata/managedFields")) {
				return true
			}
		}
	}
	return false
}

// unprocessable is upstream's answer to a patch that does not apply. It keeps
// the reason to itself.
func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

func notAnObject(patched []byte, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), string(patched), err.Error()),
	})
}

// operation is what upstream's strict check knows of a JSON patch's operation.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// CheckJSON reports what field validation Warn and Strict find wrong with a JSON
// patch that can still be applied: repeated and unknown fields of its operations, as
// upstream words them. The error is a 400 StatusError.
func CheckJSON(patch []byte) (problems []string, err error) {
	var operations []operation
	strict, err := kjson.UnmarshalStrict(patch, &operations)
	if err != nil {
		return nil, badPatch(err)
	}
	for _, e := range strict {
		problems = append(problems, "json patch "+e.Error())
	}
	return problems, nil
}

func badPatch(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
}

// Merge applies a merge patch (RFC 7386, with upstream's treatment of null inside
// of lists) to doc, which is not modified and shares nothing with the result but
// the entries of managedFields, which therefore must not be modified.
// duplicates as in object.DecodeJSON. Errors are 400 StatusErrors.
func Merge(doc object.Tree, patch []byte) (out object.Tree, duplicates []string, err error) {
	change, duplicates, err := object.DecodeJSON(patch)
	if err != nil {
		return nil, nil, badPatch(err)
	}
	if isNull(patch) {
		return nil, nil, apierrors.NewBadRequest(jsonpatch.ErrBadJSONPatch.Error())
	}
	out = copyButEntries(doc)
	mergeInto(out, change)
	return out, duplicates, nil
}

func isNull(patch []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(patch, " \t\r\n"), []byte("null"))
}

// copyButEntries copies doc, of which managedFields are the better part. A merge
// patch replaces them or leaves them alone.
func copyButEntries(doc object.Tree) object.Tree {
	out := make(object.Tree, len(doc))
	for key, v := range doc {
		meta, ok := v.(object.Tree)
		if key != "metadata" || !ok {
			out[key] = object.CopyValue(v)
			continue
		}
		m := make(object.Tree, len(meta))
		for key, v := range meta {
			if _, isList := v.([]any); key != managedFields || !isList {
				v = object.CopyValue(v)
			}
			m[key] = v
		}
		out[key] = m
	}
	return out
}

func mergeInto(doc, change object.Tree) {
	for key, v := range change {
		if v == nil {
			delete(doc, key)
			continue
		}
		target, isTree := doc[key].(object.Tree)
		part, isPart := v.(object.Tree)
		switch {
		case isTree && isPart:
			mergeInto(target, part)
		case isTree:
			doc[key] = v // upstream keeps null inside a list that replaces an object
		default:
			dropNulls(v)
			doc[key] = v
		}
	}
}

// dropNulls removes the members that are null from all objects in v.
func dropNulls(v any) {
	switch v := v.(type) {
	case object.Tree:
		for key, member := range v {
			if member == nil {
				delete(v, key)
				continue
			}
			dropNulls(member)
		}
	case []any:
		for _, item := range v {
			dropNulls(item)
		}
	}
}
