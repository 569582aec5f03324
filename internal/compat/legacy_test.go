package compat_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/testserver"
)

func legacyBox() *apiextensionsv1beta1.CustomResourceDefinition {
	return &apiextensionsv1beta1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boxes.example.com"},
		Spec: apiextensionsv1beta1.CustomResourceDefinitionSpec{
			Group: "example.com", Version: "v1",
			Names: apiextensionsv1beta1.CustomResourceDefinitionNames{Plural: "boxes", Kind: "Box"},
			Validation: &apiextensionsv1beta1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1beta1.JSONSchemaProps{
					Properties: map[string]apiextensionsv1beta1.JSONSchemaProps{"spec": {Default: nil}},
				},
			},
			AdditionalPrinterColumns: []apiextensionsv1beta1.CustomResourceColumnDefinition{
				{Name: "N", Type: "integer", JSONPath: ".spec.n"},
			},
		},
	}
}

// legacyClients returns a protobuf client for both versions of the CRD API.
func legacyClients(t *testing.T, config *rest.Config) *clientset.Clientset {
	t.Helper()
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes, config.WarningHandler = config.ContentType, rest.NoWarnings{}
	c, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLegacyCRDClient checks that protobuf clients of v1beta1 and v1 work on the same CRDs. A watch of one version
// receives events for writes to the other version (CNV-064 CNV-066 CNV-071).
func TestLegacyCRDClient(t *testing.T) {
	c := legacyClients(t, testserver.Start(t).Config)
	old, now := c.ApiextensionsV1beta1().CustomResourceDefinitions(), c.ApiextensionsV1().CustomResourceDefinitions()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch, err := old.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	created, err := old.Create(ctx, legacyBox(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := created.Spec; s.Scope != "Namespaced" || !*s.PreserveUnknownFields || len(s.Versions) != 1 ||
		s.Names.ListKind != "BoxList" || s.AdditionalPrinterColumns[0].JSONPath != ".spec.n" {
		t.Errorf("got created spec %+v", s)
	}
	read, err := now.Get(ctx, "boxes.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := read.Spec.Versions[0]; v.AdditionalPrinterColumns[0].JSONPath != ".spec.n" || v.Schema == nil ||
		!v.Storage {
		t.Errorf("got version in v1 %+v", v)
	}
	if read.UID != created.UID || read.ResourceVersion != created.ResourceVersion ||
		read.Generation != created.Generation {
		t.Errorf("got metadata in v1 %v, want %v", read.ObjectMeta, created.ObjectMeta)
	}
	read.Spec.Versions = append(read.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2",
		Served: true, Schema: read.Spec.Versions[0].Schema})
	if _, err := now.Update(ctx, read, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, versions := range []int{1, 2} {
		e := <-watch.ResultChan()
		crd, ok := e.Object.(*apiextensionsv1beta1.CustomResourceDefinition)
		if !ok || len(crd.Spec.Versions) != versions || crd.Spec.Validation == nil {
			t.Errorf("got event %s %+v, want a v1beta1 CRD with %d versions", e.Type, e.Object, versions)
		}
	}
	list, err := old.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got list %v (%v), want one CRD", list, err)
	}
	crd := &list.Items[0]
	if crd.Spec.AdditionalPrinterColumns != nil ||
		crd.Spec.Versions[0].AdditionalPrinterColumns[0].JSONPath != ".spec.n" || crd.Spec.Version != "v1" {
		t.Errorf("got spec %+v, want columns in the versions, as they differ", crd.Spec)
	}
	crd.Status.StoredVersions = nil
	if _, err := old.UpdateStatus(ctx, crd, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("status without stored versions: got error %v, want Invalid", err)
	}
	if err := old.Delete(ctx, "boxes.example.com", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestLegacyCRDOwners checks that field ownership applies across both versions of the CRD API. Each entry of
// managedFields has the API version of its write (CNV-064 VER-062).
func TestLegacyCRDOwners(t *testing.T) {
	config := testserver.Start(t).Config
	config.WarningHandler = rest.NoWarnings{}
	c, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	old, now := c.ApiextensionsV1beta1().CustomResourceDefinitions(), c.ApiextensionsV1().CustomResourceDefinitions()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	box := legacyBox()
	box.APIVersion, box.Kind = "apiextensions.k8s.io/v1beta1", "CustomResourceDefinition"
	box.Spec.Names.Categories = []string{"all"}
	box.Spec.Versions = []apiextensionsv1beta1.CustomResourceDefinitionVersion{{Name: "v1", Served: true,
		Storage: true}}
	body, err := json.Marshal(box)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Patch(ctx, box.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: "old"}); err != nil {
		t.Fatal(err)
	}
	_, err = now.Patch(ctx, box.Name, types.ApplyPatchType,
		[]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boxes.example.com"},
"spec":{"names":{"kind":"Box","plural":"boxes","shortNames":["bx"]},"group":"example.com","scope":"Cluster"}}`),
		metav1.PatchOptions{FieldManager: "new"})
	if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
		t.Errorf("apply of another manager's fields: got error %v, want Invalid or Conflict", err)
	}
	got, err := now.Patch(ctx, box.Name, types.ApplyPatchType,
		[]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boxes.example.com"},
"spec":{"names":{"shortNames":["bx"]}}}`),
		metav1.PatchOptions{FieldManager: "new"})
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, e := range got.ManagedFields {
		versions[e.Manager] = e.APIVersion
	}
	if versions["old"] != "apiextensions.k8s.io/v1beta1" || versions["new"] != "apiextensions.k8s.io/v1" ||
		len(got.Spec.Names.ShortNames) != 1 {
		t.Errorf("got versions of managers %v and names %v", versions, got.Spec.Names)
	}
	box.Spec.Names.Categories = nil
	if body, err = json.Marshal(box); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Patch(ctx, box.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: "old"}); err != nil {
		t.Fatal(err)
	}
	got, err = now.Get(ctx, box.Name, metav1.GetOptions{})
	if err != nil || len(got.Spec.Names.Categories) != 0 || len(got.Spec.Names.ShortNames) != 1 {
		t.Errorf("got spec %+v (%v), want only the categories removed", got.Spec, err)
	}
}
