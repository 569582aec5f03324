package crd

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TestUnknownFieldsAreBounded checks that the paths of unknown fields are limited in number and size. Without the
// limits, a long key above many fields would produce gigabytes of paths. The fields whose paths are not in the list
// are removed too.
func TestUnknownFieldsAreBounded(t *testing.T) {
	s, err := Compile([]byte(`{"type":"object","properties":{"spec":{"type":"object",
	"additionalProperties":{"type":"object","properties":{"a":{"type":"string"}}}},
		"embedded":{"type":"object","additionalProperties":{"type":"object","x-kubernetes-embedded-resource":true,
		"x-kubernetes-preserve-unknown-fields":true}}}}`), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{10, 100_000} {
		fields, resources := object.Tree{}, object.Tree{}
		for i := range 2000 {
			fields[fmt.Sprint("k", i)] = int64(i)
			resources[strings.Repeat("k", length)+fmt.Sprint(i)] = object.Tree{"apiVersion": "v1", "kind": "K",
				"metadata": object.Tree{"x": "y"}}
		}
		unknown, wrong := s.Normalize(object.Tree{"spec": object.Tree{strings.Repeat("k", length): fields}})
		checkBounded(t, unknown)
		if wrong != nil || len(fields) != 0 {
			t.Errorf("got error %v and %d fields, want all unknown fields removed", wrong, len(fields))
		}
		unknown, wrong = s.Normalize(object.Tree{"embedded": resources})
		checkBounded(t, unknown)
		if wrong != nil {
			t.Error(wrong)
		}
	}
}

// TestLongPathsAreBounded checks that the validation of many items below a long key stops with an error before
// their paths use gigabytes.
func TestLongPathsAreBounded(t *testing.T) {
	s, err := Compile([]byte(`{"type":"object","properties":{"spec":{"type":"object",`+
		`"additionalProperties":{"type":"array","items":{"type":"string"}}}}}`), false)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]any, 3000)
	for i := range list {
		list[i] = "x"
	}
	key := strings.Repeat("k", 1_000_000)
	value := object.Tree{"spec": object.Tree{key: list}}
	if errs := s.ValidateValues(context.Background(), value, nil); len(errs) > 0 {
		t.Errorf("valid object: got errors %.300v", errs)
	}
	list[len(list)-1] = int64(1)
	errs := s.ValidateValues(context.Background(), value, nil)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "too complex") {
		t.Errorf("%.300v", errs)
	}
}

func checkBounded(t *testing.T, unknown []string) {
	t.Helper()
	size := 0
	for _, path := range unknown {
		size += len(path)
	}
	if len(unknown) == 0 || len(unknown) > schema.MaxProblems || size > 2*schema.MaxMessageBytes {
		t.Errorf("%d paths of %d bytes", len(unknown), size)
	}
}
