package upstream

import (
	"bytes"
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// encode is the JSON of an object by way of a tree, as it is stored.
func encode(t testing.TB, obj runtime.Object) []byte {
	t.Helper()
	tree, err := resource.ToTree(obj)
	if err != nil {
		t.Fatal(err)
	}
	return object.AppendJSON(nil, tree)
}

// same compares two results, whatever the order of their keys.
func same(t *testing.T, what string, got, want []byte, gotErr, wantErr error) {
	t.Helper()
	if text(gotErr) != text(wantErr) {
		t.Errorf("%s:\ngot  error %s\nwant error %s", what, text(gotErr), text(wantErr))
		return
	}
	if !bytes.Equal(canonical(t, got), canonical(t, want)) {
		t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func canonical(t *testing.T, js []byte) []byte {
	t.Helper()
	if js == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(js, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// what is created is what upstream's store makes of it.
func TestCreate(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			ours, theirs := &steps{t: t, endpoint: s.endpoint}, oracle{t, s.endpoint}
			body := s.json(t)
			got, err := ours.create(ours.context("create", "", s.object), body)
			want, wantErr := theirs.create(ours.context("create", "", s.object), body)
			same(t, "create", got, want, err, wantErr)
			if err != nil {
				t.Errorf("the sample is not valid: %v", err)
			}
		})
	}
}

// an invalid object is refused with upstream's errors.
func TestCreateInvalid(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			ours, theirs := &steps{t: t, endpoint: s.endpoint}, oracle{t, s.endpoint}
			body := s.with(t, func(o map[string]any) {
				for key := range o {
					if key != "apiVersion" && key != "kind" && key != "metadata" {
						delete(o, key)
					}
				}
				md := o["metadata"].(map[string]any)
				md["name"] = "Not/Valid"
			})
			got, err := ours.create(ours.context("create", "", s.object), body)
			want, wantErr := theirs.create(ours.context("create", "", s.object), body)
			same(t, "create", got, want, err, wantErr)
			if err == nil {
				t.Errorf("%s was taken for valid", body)
			}
		})
	}
}

// an update of an object, or of a subresource, leaves what upstream's store would leave.
func TestUpdate(t *testing.T) {
	for _, s := range samples(t) {
		ours, theirs := &steps{t: t, endpoint: s.endpoint}, oracle{t, s.endpoint}
		stored, err := ours.create(ours.context("create", "", s.object), s.json(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range append(s.endpoint.Kind.Subresources(), "") {
			for _, c := range []struct {
				name, label string
				old         []byte
			}{
				{"valid", "a", stored},
				{"invalid", "not valid", stored},
				{"on its way out", "a", deleted(t, stored)},
			} {
				t.Run(s.name+"/"+sub+"/"+c.name, func(t *testing.T) {
					ctx, body := ours.context("update", sub, s.object), s.with(t, func(o map[string]any) {
						md := o["metadata"].(map[string]any)
						md["labels"], md["resourceVersion"] = map[string]any{c.label: "b"}, "7"
					})
					got, err := ours.update(ctx, sub, body, c.old)
					want, wantErr := theirs.update(ctx, sub, body, c.old)
					same(t, "update", got, want, err, wantErr)
					if c.name == "valid" && (sub == "" || sub == "status") && err != nil {
						t.Errorf("the change is not valid: %v", err)
					}
				})
			}
		}
	}
}

// deleted is a stored object that waits for a finalizer.
func deleted(t *testing.T, stored []byte) []byte {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(stored, &o); err != nil {
		t.Fatal(err)
	}
	md := o["metadata"].(map[string]any)
	md["deletionTimestamp"], md["deletionGracePeriodSeconds"], md["generation"] = "2026-01-02T03:04:05Z", 0, 3
	md["finalizers"] = []string{"example.com/f"}
	out, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
