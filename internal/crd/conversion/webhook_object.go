package conversion

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// metadataError is an error in the metadata of a converted object. Upstream has a separate message for such errors.
type metadataError struct{ error }

// objectError returns upstream's error for the converted object with the given index. n is the number of objects.
func objectError(err error, kind schema.GroupVersionKind, index, n int) error {
	var metadata metadataError
	var version versionError
	inMetadata := errors.As(err, &metadata)
	switch {
	case n > 1 && inMetadata:
		return fmt.Errorf("conversion webhook for %v returned invalid metadata in object at index %v: %w", kind, index,
			err)
	case n > 1:
		return fmt.Errorf("conversion webhook for %v returned invalid converted object at index %v: %w", kind, index,
			err)
	case inMetadata:
		return fmt.Errorf("conversion webhook for %v returned invalid metadata: %w", kind, err)
	case errors.As(err, &version):
		return fmt.Errorf("conversion webhook for %v returned invalid object at index 0: %w", kind, err)
	}
	return fmt.Errorf("conversion webhook for %v returned invalid object: %w", kind, err)
}

// versionError is the error for an unexpected apiVersion or kind.
type versionError struct{ error }

// validateConverted validates a converted object against the original object. In the result, only labels and
// annotations come from the converted metadata. The original object is not modified.
func validateConverted(original object.Tree, value any, to *resource.Version) (object.Tree, error) {
	converted, _ := value.(object.Tree)
	had, has := kindOf(original), kindOf(converted)
	if has.Kind == "" || has.GroupVersion() != to.GroupVersion {
		if err := decodingError(value); err != nil {
			return nil, err
		}
	}
	if has.GroupVersion() != to.GroupVersion {
		return nil, versionError{fmt.Errorf("invalid groupVersion (expected %v, received %v)", to.GroupVersion,
			has.GroupVersion())}
	}
	if had.Kind != has.Kind {
		return nil, versionError{fmt.Errorf("invalid kind (expected %v, received %v)", had.Kind, has.Kind)}
	}
	before, after := object.Metadata(original), object.Metadata(converted)
	for _, identity := range []struct{ key, name string }{{"name", "name"}, {"namespace", "namespace"},
		{"uid", "UID"}} {
		if e, a := object.String(before, identity.key), object.String(after, identity.key); e != a {
			return nil, fmt.Errorf("must have the same %s: %v != %v", identity.name, e, a)
		}
	}
	restored, err := convertedMetadata(before, converted)
	if err != nil {
		return nil, metadataError{err}
	}
	converted["metadata"] = restored
	return converted, nil
}

// decodingError returns the error of upstream's decoder for a value that is not an object, or nil for an object.
func decodingError(value any) error {
	var data []byte
	if value != nil {
		data = object.AppendJSON(nil, value)
	}
	return new(unstructured.Unstructured).UnmarshalJSON(data)
}

// convertedMetadata returns a copy of the original metadata with the labels and annotations of the converted object.
func convertedMetadata(original, converted object.Tree) (object.Tree, error) {
	value, found := converted["metadata"]
	if !found {
		return nil, errors.New("missing metadata in converted object")
	}
	after, ok := value.(object.Tree)
	if !ok {
		return nil, fmt.Errorf("invalid metadata of type %T in converted object", value)
	}
	out := object.Copy(original)
	if out == nil {
		out = object.Tree{}
	}
	for _, key := range []string{"labels", "annotations"} {
		if after[key] == nil {
			delete(out, key)
			continue
		}
		if err := validateStringMap(key, out[key], after[key]); err != nil {
			return nil, err
		}
		out[key] = after[key]
	}
	return out, nil
}

// validateStringMap validates labels or annotations from a webhook, unless they are unchanged.
func validateStringMap(key string, before, after any) error {
	texts, ok := after.(object.Tree)
	if !ok {
		return fmt.Errorf("invalid metadata.%s of type %T in converted object", key, after)
	}
	for k, v := range texts {
		if _, ok := v.(string); !ok {
			return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", key, k, v)
		}
	}
	if object.Equal(before, after) {
		return nil
	}
	all := object.StringMap(object.Tree{key: after}, key)
	var errs field.ErrorList
	if key == "labels" {
		errs = metav1validation.ValidateLabels(all, field.NewPath("metadata", "labels"))
	} else {
		errs = validation.ValidateAnnotations(all, field.NewPath("metadata", "annotation")) // upstream's word
	}
	return errs.ToAggregate()
}
