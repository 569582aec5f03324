// Package merge applies patches of all four kinds to objects, and maintains metadata.managedFields. It must not
// import packages for kinds, storage or HTTP.
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
	// maxJSONPatchCopyBytes is upstream's limit on the bytes that copy operations add.
	maxJSONPatchCopyBytes = 3 << 20
)

// JSON applies a JSON patch to doc. The patch follows RFC 6902, with upstream's support for negative indices. JSON
// does not modify doc. The result may share the entries of managedFields with doc, so they must not be modified.
//
// Errors are StatusErrors. The code is 400 if the patch cannot be parsed. It is 413 if the patch has more than
// 10,000 operations or exceeds a limit of ApplyOperations. It is 422 if the patch does not apply, copies more than
// 3 MiB, or results in something other than an object.
func JSON(doc object.Tree, patch []byte) (object.Tree, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(operations) > maxJSONPatchOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"The allowed maximum operations in a JSON patch is %d, got %d", maxJSONPatchOperations, len(operations)))
	}
	separate := !mayTouchManagedFields(operations)
	source := doc
	if separate {
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
	if entries, ok := object.Metadata(doc)[managedFields]; ok && separate {
		object.EnsureMetadata(out)[managedFields] = entries
	}
	return out, nil
}

// ApplyOperations applies the operations of a JSON patch to a document. It returns a 413 StatusError for a patch
// that exceeds maxItemMoves or maxLevelBytes. Other errors are those of the library.
func ApplyOperations(operations jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	// The library reads its limit from a variable, which the first caller sets.
	atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxJSONPatchCopyBytes)
	if err := checkCost(operations, doc); err != nil {
		return nil, err
	}
	return applyRecovering(operations, doc)
}

// applyRecovering applies operations and converts a panic of the library to an error. Some invalid operations cause
// a panic, such as a test of the root without a value. Upstream returns a 500 for them.
func applyRecovering(operations jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot apply patch: %v", p)
		}
	}()
	return operations.Apply(doc)
}

// mayTouchManagedFields reports whether operations may read or change managedFields. managedFields are the largest
// part of many objects, so a patch is much faster without them.
func mayTouchManagedFields(operations jsonpatch.Patch) bool {
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

// unprocessable returns upstream's error for a patch that cannot be applied. Its message does not contain the
// reason.
func unprocessable(err error) error {
	const code = http.StatusUnprocessableEntity
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", err.Error(), 0, false)
}

func notAnObject(patched []byte, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), string(patched), err.Error()),
	})
}

// operation is one operation of a JSON patch, with the fields that upstream's strict validation accepts.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// CheckJSON returns the duplicate and unknown fields in the operations of a JSON patch, with upstream's messages.
// Field validation Warn and Strict report these problems. The patch can still be applied. The error is a 400
// StatusError.
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

// Merge applies a merge patch to doc. The patch follows RFC 7386, with upstream's treatment of null in lists. Merge
// does not modify doc. The result shares only the entries of managedFields with doc, so they must not be modified.
// duplicates has the same meaning as in object.DecodeJSON. Errors are 400 StatusErrors.
func Merge(doc object.Tree, patch []byte) (out object.Tree, duplicates []string, err error) {
	change, duplicates, err := object.DecodeJSON(patch)
	if err != nil {
		return nil, nil, badPatch(err)
	}
	if isNull(patch) {
		return nil, nil, apierrors.NewBadRequest(jsonpatch.ErrBadJSONPatch.Error())
	}
	out = copyExceptManagedFields(doc)
	mergeInto(out, change)
	return out, duplicates, nil
}

func isNull(patch []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(patch, " \t\r\n"), []byte("null"))
}

// copyExceptManagedFields returns a deep copy of doc, except that the copy shares the list of managedFields with
// doc. managedFields are the largest part of many objects, and a merge patch either replaces or keeps the list.
func copyExceptManagedFields(doc object.Tree) object.Tree {
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
		member, isMember := v.(object.Tree)
		switch {
		case isTree && isMember:
			mergeInto(target, member)
		case isTree:
			doc[key] = v // upstream keeps null in a list that replaces an object
		default:
			dropNulls(v)
			doc[key] = v
		}
	}
}

// dropNulls removes all members with the value null from the objects in v.
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
