package conversion

import (
	"context"
	"maps"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Memo converts the objects of one write. Field management, admission and the store often need the same conversions.
// So a Memo calls a webhook only once for each object.
type Memo struct {
	Converter
	results []pair
}

// pair is one object at two versions.
type pair struct{ in, out object.Tree }

// Add adds a known result of a webhook: out is the object in at another version.
func (m *Memo) Add(in, out object.Tree) { m.results = append(m.results, pair{in, out}) }

// Convert returns t at a version of its kind. It does not modify t. The result may share memory with t and with other
// results.
func (m *Memo) Convert(ctx context.Context, t object.Tree, to *resource.Version) (object.Tree, error) {
	if object.String(t, "apiVersion") == to.APIVersion {
		return t, nil
	}
	if !UsesWebhook(to.Definition) {
		out, err := convert(ctx, t, versionOf(t, to.Definition), to)
		if err == nil && to.Schema != nil {
			out = object.Copy(out)
			err = prune(out, to)
		}
		return out, err
	}
	for _, known := range m.results {
		if object.String(known.out, "apiVersion") == to.APIVersion && sameContent(known.in, t) {
			return withContentMetadata(known.out, t), nil
		}
	}
	objects := []object.Tree{t}
	if err := m.Converter.Convert(ctx, objects, to); err != nil {
		return nil, err
	}
	m.Add(object.Copy(t), objects[0]) // a copy, because the write modifies t later
	return object.ShallowCopy(objects[0]), nil
}

// ConvertUnpruned is Convert for field management: it keeps unknown fields, unless the kind uses a webhook.
func (m *Memo) ConvertUnpruned(ctx context.Context, t object.Tree, to *resource.Version) (object.Tree, error) {
	if UsesWebhook(to.Definition) || object.String(t, "apiVersion") == to.APIVersion {
		return m.Convert(ctx, t, to)
	}
	return convert(ctx, t, versionOf(t, to.Definition), to)
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
	out := maps.Clone(t)
	md := maps.Clone(object.Metadata(from))
	if md == nil {
		md = object.Tree{}
	}
	object.CopyField(md, object.Metadata(t), "labels")
	object.CopyField(md, object.Metadata(t), "annotations")
	out["metadata"] = md
	return out
}
