package conversion

import (
	"errors"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

func versions() (old, hub, other *resource.Version) {
	d := &resource.Definition{Names: resource.Names{Kind: "Event"}}
	hub = &resource.Version{Definition: d, APIVersion: "v1"}
	old = &resource.Version{Definition: d, APIVersion: "v0"}
	other = &resource.Version{Definition: d, APIVersion: "events.k8s.io/v1"}
	rename := func(from, to string) func(object.Tree) (object.Tree, error) {
		return func(t object.Tree) (object.Tree, error) {
			if t[from] == nil {
				return nil, errors.New("no " + from)
			}
			return object.Tree{to: t[from]}, nil
		}
	}
	other.ConvertTo, other.ConvertFrom = rename("note", "message"), rename("message", "note")
	d.Versions, d.Storage = []*resource.Version{hub, old, other}, hub
	return old, hub, other
}

func TestConvert(t *testing.T) {
	old, hub, other := versions()
	for _, c := range []struct {
		from, to *resource.Version
		key      string
	}{{old, hub, "message"}, {hub, other, "message"}, {old, other, "message"}, {other, old, "note"},
		{nil, hub, "message"}, {other, other, "note"}} {
		want := "message"
		if c.to == other {
			want = "note"
		}
		out, err := convert(t.Context(), object.Tree{c.key: "x", "apiVersion": "before", "kind": "Event"}, c.from, c.to)
		if err != nil || out[want] != "x" || c.from != c.to && out["apiVersion"] != c.to.APIVersion {
			t.Errorf("%v, %v", out, err)
		}
	}
	if _, err := convert(t.Context(), object.Tree{}, other, hub); err == nil {
		t.Error("an error was lost")
	}
}

func TestTrivial(t *testing.T) {
	old, hub, other := versions()
	if !Trivial(old, hub) || !Trivial(nil, hub) || !Trivial(other, other) || Trivial(hub, other) ||
		Trivial(other, hub) {
		t.Error("wrong")
	}
}
