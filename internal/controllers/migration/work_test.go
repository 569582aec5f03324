package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

func svm(t *testing.T, name, resource, condition string) *unstructured.Unstructured {
	t.Helper()
	return parse(t, fmt.Sprintf(
		`{"apiVersion":"storagemigration.k8s.io/v1","kind":"StorageVersionMigration",`+
			`"metadata":{"name":%q,"uid":%q,"labels":{%q:"true"}},"spec":{"resource":{"group":"g","resource":%q}},`+
			`"status":{"conditions":[{"type":%q,"status":"True"}]}}`,
		name, name, automaticLabel, resource, condition))
}

// writes returns the recorded writes with their preconditions, and clears them.
func writes(client *dynamicfake.FakeDynamicClient) (all []string) {
	for _, action := range client.Actions() {
		text := action.GetVerb() + " " + action.GetResource().Resource + "/" + action.GetSubresource()
		switch a := action.(type) {
		case clienttesting.PatchActionImpl:
			all = append(all, text+" "+a.Name+" "+string(a.Patch))
		case clienttesting.UpdateActionImpl:
			metadata, _ := json.Marshal(a.Object.(*unstructured.Unstructured).Object["metadata"])
			all = append(all, text+" "+string(metadata))
		case clienttesting.DeleteActionImpl:
			preconditions, _ := json.Marshal(a.DeleteOptions.Preconditions)
			all = append(all, text+" "+a.Name+" "+string(preconditions))
		}
	}
	client.ClearActions()
	return all
}

// TestMigrationSetsPreconditions checks that a migration writes objects and CRDs, and deletes finished migrations,
// only in the state that it has read. (VER-054)
func TestMigrationSetsPreconditions(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{migrations: "StorageVersionMigrationList"},
		parse(t, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",`+
			`"metadata":{"name":"things.g","uid":"u","generation":2,"resourceVersion":"7"}}`),
		svm(t, "this", "things", "Running"), svm(t, "done", "things", "Succeeded"),
		svm(t, "waits", "things", "Other"), svm(t, "other", "others", "Succeeded"))
	expect := func(want ...string) {
		t.Helper()
		if got := writes(client); !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
	}
	g := &migration{
		Controller: New(Config{Dynamic: client, Automatic: true}),
		object:     svm(t, "this", "things", "Running"),
		crd:        "things.g",
		storage:    "v1",
	}
	resource := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"}
	one := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}}
	if err := g.writeOne(t.Context(), one, client.Resource(resource).Namespace("n")); err != nil {
		t.Error(err)
	}
	expect(`patch things/ a {"metadata":{"resourceVersion":"7","uid":"a"}}`)
	if err := g.deleteOtherAutomatic(t.Context()); err != nil {
		t.Error(err)
	}
	expect(`delete storageversionmigrations/ done {"uid":"done"}`)

	g.crdState = "u/1"
	if err := g.finish(t.Context()); !errors.Is(err, errCRDChanged) {
		t.Error(err)
	}
	expect()
	g.crdState = "u/2"
	if err := g.finish(t.Context()); err != nil {
		t.Error(err)
	}
	expect(`update customresourcedefinitions/status {"generation":2,"name":"things.g","resourceVersion":"7","uid":"u"}`,
		`update storageversionmigrations/status {"labels":{"trellis.dev/automatic-migration":"true"},`+
			`"name":"this","uid":"this"}`)
}

// TestIsPermanent checks which errors make a migration fail without a retry.
func TestIsPermanent(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for err, want := range map[error]bool{
		apierrors.NewForbidden(widgets, "a", errors.New("no")):              true,
		apierrors.NewInvalid(schema.GroupKind{}, "a", nil):                  true,
		apierrors.NewBadRequest("no"):                                       true,
		apierrors.NewMethodNotSupported(widgets, "patch"):                   true,
		apierrors.NewRequestEntityTooLargeError("no"):                       true,
		apierrors.NewInternalError(errors.New("conversion webhook failed")): false,
		apierrors.NewServiceUnavailable("later"):                            false,
		apierrors.NewTooManyRequests("later", 1):                            false,
		apierrors.NewTimeoutError("later", 1):                               false,
		io.ErrUnexpectedEOF:                                                 false,
	} {
		if got := isPermanent(fmt.Errorf("default/a: %w", err)); got != want {
			t.Errorf("%v: got %t, want %t", err, got, want)
		}
	}
}
