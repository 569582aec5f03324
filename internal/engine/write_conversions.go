package engine

import (
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// writeConversions caches the conversions of a webhook within one write. Field management and storing need the same
// conversions. Often an earlier read has already converted the live object.
type writeConversions []convertedPair

// convertedPair is one object at two versions.
type convertedPair struct{ in, out object.Tree }

// convertByWebhook converts t with the kind's webhook. It does not modify t.
func (w *write) convertByWebhook(t object.Tree, to *resource.Version) (object.Tree, error) {
	for _, cached := range w.conversions {
		if object.String(cached.out, "apiVersion") == to.APIVersion && sameContent(cached.in, t) {
			return withContentMetadata(cached.out, t), nil
		}
	}
	objects := []object.Tree{t}
	if err := w.engine.convertByWebhook(w.ctx, objects, []int{0}, to); err != nil {
		return nil, err
	}
	// The cache gets a copy, because later stages modify t.
	w.conversions = append(w.conversions, convertedPair{object.Copy(t), objects[0]})
	return shallowCopy(objects[0]), nil
}

// sameContent compares everything that a webhook may change. This is the object except for its metadata, and of the
// metadata the labels and annotations.
func sameContent(a, b object.Tree) bool {
	if len(a) != len(b) {
		return false
	}
	for key, v := range a {
		if key == "metadata" {
			continue
		}
		if other, ok := b[key]; !ok || !object.Equal(v, other) {
			return false
		}
	}
	x, y := object.Metadata(a), object.Metadata(b)
	return object.Equal(x["labels"], y["labels"]) && object.Equal(x["annotations"], y["annotations"])
}

// withContentMetadata returns t with the metadata of from. Only the labels and annotations remain those of t.
func withContentMetadata(t, from object.Tree) object.Tree {
	out := shallowCopy(t)
	md := make(object.Tree, len(object.Metadata(from)))
	for key, v := range object.Metadata(from) {
		md[key] = v
	}
	carryOver(md, object.Metadata(t), "labels")
	carryOver(md, object.Metadata(t), "annotations")
	out["metadata"] = md
	return out
}
