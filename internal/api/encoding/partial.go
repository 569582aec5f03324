package encoding

import (
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// appendPartial appends the PartialObjectMetadata of o as JSON
// (https://kubernetes.io/docs/reference/using-api/api-concepts). It copies the metadata from the JSON of o.
func appendPartial(dst []byte, o record.Object, version string) []byte {
	dst = append(dst, `{"apiVersion":"meta.k8s.io/`...)
	dst = append(dst, version...)
	dst = append(dst, `","kind":"PartialObjectMetadata","metadata":`...)
	if o.Version != nil && o.Version.Definition.Behavior.HiddenAnnotation != "" {
		o = withoutHiddenAnnotation(o)
	}
	dst = o.Packed().AppendMetadata(dst, o.Revision)
	return append(dst, '}')
}

// withoutHiddenAnnotation returns o without the annotation that upstream stores in a field of the internal type.
// Upstream's PartialObjectMetadata does not contain this annotation.
func withoutHiddenAnnotation(o record.Object) record.Object {
	hidden := o.Version.Definition.Behavior.HiddenAnnotation
	t, err := o.Packed().Tree(0)
	if err != nil {
		return o // the caller gets the same error when it encodes o
	}
	if annotations, _ := object.Metadata(t)["annotations"].(object.Tree); annotations[hidden] != nil {
		if delete(annotations, hidden); len(annotations) == 0 {
			delete(object.Metadata(t), "annotations")
		}
	}
	return record.NewObject(o.Version, o.Revision, object.Pack(t, 0))
}

// partialMetadata returns the PartialObjectMetadata of o. Its strings share the memory of o.
func partialMetadata(o record.Object, version string) (*metav1.PartialObjectMetadata, error) {
	p := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/" + version, Kind: "PartialObjectMetadata"},
	}
	if o.Version != nil && o.Version.Definition.Behavior.HiddenAnnotation != "" {
		o = withoutHiddenAnnotation(o)
	}
	found, ok := object.ReadObjectMeta(o.Packed().JSON(), &p.ObjectMeta)
	if ok && found && o.Revision != 0 {
		p.ResourceVersion = strconv.FormatInt(o.Revision, 10)
	}
	if ok {
		return p, nil
	}
	p = &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(appendPartial(nil, o, version), p); err != nil {
		return nil, fmt.Errorf("decode the metadata of a stored object: %w", err)
	}
	return p, nil
}

func appendPartialProtobuf(dst []byte, o record.Object, version string) ([]byte, error) {
	p, err := partialMetadata(o, version)
	if err != nil {
		return dst, err
	}
	return resource.AppendProtobuf(dst, "meta.k8s.io/"+version, "PartialObjectMetadata", p)
}
