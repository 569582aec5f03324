package engine

import (
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// writeConversions is what a write knows of conversions by a webhook. Field management asks for the same ones that
// storing does, and the live object has been converted before.
type writeConversions []convertedPair

// convertedPair is one object at two versions.
type convertedPair struct{ in, out object.Tree }

// convertByWebhook translates t, which it does not modify, by way of the kind's webhook.
func (w *write) convertByWebhook(t object.Tree, to *resource.Version) (object.Tree, error) {
	for _, known := range w.conversions {
		if object.String(known.out, "apiVersion") == to.APIVersion && sameContent(known.in, t) {
			return withContentMetadata(known.out, t), nil
		}
	}
	one := []object.Tree{t}
	if err := w.engine.convertByWebhook(w.ctx, one, []int{0}, to); err != nil {
		return nil, err
	}
	w.conversions = append(w.conversions, convertedPair{object.Copy(t), one[0]}) // t will change yet
	return shallowCopy(one[0]), nil
}

// sameContent compares all that a webhook converts: everything but the metadata that is the server's own.
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

// withContentMetadata is t with the metadata of from, but for labels and annotations.
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
