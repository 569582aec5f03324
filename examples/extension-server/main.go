// Command extension-server is an example of an extension API server. It serves the kinds Flunder and Fischer of
// wardle.example.com.
package main

import (
	"context"
	_ "embed"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/extension"
)

func main() { extension.Main(config()) }

//go:embed flunders.yaml
var flunders []byte

//go:embed fischers.yaml
var fischers []byte

//go:embed catches.yaml
var catches []byte

func config() extension.Config {
	return extension.Config{Kinds: []extension.Kind{
		{Manifest: flunders, Validate: validate,
			Subresources: []extension.Subresource{{Name: "catch", Body: catches, Do: catch}}},
		{Manifest: fischers},
	}}
}

// validate rejects a Flunder that refers to itself. A schema cannot express this, because it has no access to the
// object's name.
func validate(_ context.Context, r *extension.Request) error {
	if r.New == nil {
		return nil // a delete
	}
	reference, _, _ := unstructured.NestedString(r.New.Object, "spec", "reference")
	to, _, _ := unstructured.NestedString(r.New.Object, "spec", "referenceType")
	if to == "Flunder" && reference == r.New.GetName() {
		return field.Invalid(field.NewPath("spec", "reference"), reference, "is the Flunder itself")
	}
	return nil
}

// catch records the Fischer that has caught a Flunder. A Flunder can be caught only once.
func catch(_ context.Context, flunder, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if by, _, _ := unstructured.NestedString(flunder.Object, "status", "caughtBy"); by != "" {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"},
			flunder.GetName(), errors.New("it has already been caught"))
	}
	fischer, _, _ := unstructured.NestedString(body.Object, "fischer")
	return body, unstructured.SetNestedField(flunder.Object, fischer, "status", "caughtBy")
}
