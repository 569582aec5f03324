package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/trellis-k8s/trellis/extension"
	"github.com/trellis-k8s/trellis/testserver"
)

const all = "get,list,watch,create,update,patch,delete"

// AGG-001 to AGG-006, EXT-002, EXT-003 to EXT-008, EXT-011 to EXT-016, EXT-018, EXT-019: the steps of the documentation, one by one, and then what users do.
func TestEndToEnd(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	w.start()
	w.register()
	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"), testserver.May("create", "flunders.wardle.example.com/catch"))
	flunders, ctx := w.flunders(jane), t.Context()
	list, err := flunders.List(ctx, metav1.ListOptions{})
	w.must(err)
	if len(list.Items) != 0 || list.GetKind() != "FlunderList" {
		t.Errorf("%v", list.Object)
	}
	events, err := flunders.Watch(ctx, metav1.ListOptions{})
	w.must(err)
	defer events.Stop()
	o, err := flunders.Create(ctx, manifest(t, "manifests/flunder.yaml")[0], metav1.CreateOptions{})
	w.must(err)
	if kind, _, _ := unstructured.NestedString(o.Object, "spec", "referenceType"); kind != "Flunder" || o.GetManagedFields()[0].Manager == "" {
		t.Errorf("%v", o.Object)
	}
	_, err = flunders.Apply(ctx, o.GetName(), flunder(o.GetName(), map[string]any{"reference": "another"}), metav1.ApplyOptions{FieldManager: "me"})
	w.must(err)
	if o, err = flunders.Get(ctx, o.GetName(), metav1.GetOptions{}); err != nil || o.GetGeneration() != 2 {
		t.Errorf("%v %v", o, err)
	}
	w.must(flunders.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
	t.Run("refusals", func(t *testing.T) { testRefusals(t, s, w, jane) })
	t.Run("described", func(t *testing.T) { testDescribed(t, w, jane) })
	t.Run("subresource", func(t *testing.T) { testCatch(t, w, jane) })
}

func testRefusals(t *testing.T, s *testserver.Server, w *world, jane *rest.Config) {
	flunders, ctx := w.flunders(jane), t.Context()
	for what, spec := range map[string]map[string]any{
		`spec.reference: Invalid value: "me": is the Flunder itself`: {"reference": "me"},
		`spec: Invalid value: a Fischer has a name`:                  {"referenceType": "Fischer"},
		`spec.referenceType: Unsupported value: "Shark"`:             {"referenceType": "Shark"},
	} {
		if _, err := flunders.Create(ctx, flunder("me", spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
	somewhere := w.any.Resource(group.WithResource("flunders")).Namespace("nowhere")
	if _, err := somewhere.Create(ctx, flunder("me", nil), metav1.CreateOptions{}); !apierrors.IsNotFound(err) || err.Error() != `namespaces "nowhere" not found` {
		t.Error(err)
	}
	// AGG-005, EXT-002
	bob := s.User("bob", testserver.May("get", "flunders.wardle.example.com"))
	const forbidden = `flunders.wardle.example.com is forbidden: User "bob" cannot create resource "flunders" in API group "wardle.example.com" in the namespace "default"`
	if _, err := w.flunders(bob).Create(ctx, flunder("me", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || err.Error() != forbidden {
		t.Error(err)
	}
	if status, _ := w.get(bob, "/apis/apiregistration.k8s.io/v1/apiservices", "application/json"); status != http.StatusForbidden {
		t.Error(status)
	}
}

// EXT-027: what kubectl api-resources, explain and get show. AGG-059: the group is in /apis, in aggregated discovery and in both OpenAPI documents.
func testDescribed(t *testing.T, w *world, jane *rest.Config) {
	for path, want := range map[string][]string{
		"/apis":                             {`"groupVersion":"wardle.example.com/v1alpha1"`},
		"/apis/wardle.example.com/v1alpha1": {`"flunders"`, `"flunders/catch"`, `"fischers"`, `"fl"`},
		"/openapi/v3/apis/wardle.example.com/v1alpha1": {"The Fischer that has caught it.", "/flunders/{name}/catch", "com.example.wardle.v1alpha1.Catch"},
		"/openapi/v3": {`"apis/wardle.example.com/v1alpha1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1alpha1?hash=`},
		"/openapi/v2": {"A Flunder refers to another one", "com.example.wardle.v1alpha1.Catch", "io.k8s.api.core.v1.Pod"},
	} {
		status, text := w.get(jane, path, "application/json")
		for _, part := range want {
			if status != http.StatusOK || !strings.Contains(text, part) {
				t.Errorf("%s: %d, without %s", path, status, part)
			}
		}
	}
	if status, text := w.get(jane, "/apis/wardle.example.com/v1alpha1/flunders", "application/json;as=Table;v=v1;g=meta.k8s.io"); status != http.StatusOK || !strings.Contains(text, `"Caught by"`) {
		t.Errorf("%d %s", status, text)
	}
	_, text := w.get(jane, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if !strings.Contains(text, `"flunders"`) || !strings.Contains(text, `"catch"`) {
		t.Error("aggregated discovery lacks it")
	}
}

// A subresource in Go: what is posted is judged by its schema, and done once.
func testCatch(t *testing.T, w *world, jane *rest.Config) {
	flunders, ctx := w.flunders(jane), t.Context()
	before, err := flunders.Create(ctx, flunder("hasty", nil), metav1.CreateOptions{})
	w.must(err)
	body := func(fischer string) *unstructured.Unstructured {
		o := flunder("hasty", nil)
		o.Object["kind"] = "Catch"
		o.Object["fischer"] = fischer
		return o
	}
	if _, err := flunders.Create(ctx, body(""), metav1.CreateOptions{}, "catch"); !apierrors.IsInvalid(err) {
		t.Errorf("a Catch by nobody: %v", err)
	}
	answer, err := flunders.Create(ctx, body("fritz"), metav1.CreateOptions{}, "catch")
	if err != nil || answer.GetKind() != "Catch" {
		t.Fatal(answer, err)
	}
	after, err := flunders.Get(ctx, "hasty", metav1.GetOptions{})
	w.must(err)
	if by, _, _ := unstructured.NestedString(after.Object, "status", "caughtBy"); by != "fritz" || after.GetResourceVersion() == before.GetResourceVersion() {
		t.Errorf("%v", after.Object)
	}
	if _, err := flunders.Create(ctx, body("franz"), metav1.CreateOptions{}, "catch"); !apierrors.IsConflict(err) {
		t.Errorf("caught twice: %v", err)
	}
	patch := []byte(`{"spec":{"reference":"hasty"}}`)
	if _, err := flunders.Patch(ctx, "hasty", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an update passes by Validate: %v", err)
	}
}

// EXT-017: with the Go types, the CA is plain PEM. It is in base64 where it is stored, and believed.
func TestTypedAPIService(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	w.start()
	w.registerBy(func(port int64) {
		service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1alpha1.wardle.example.com"}, Spec: apiregistrationv1.APIServiceSpec{
			Group: group.Group, Version: group.Version, GroupPriorityMinimum: 1000, VersionPriority: 15, CABundle: w.file("ca.crt"),
			Service: &apiregistrationv1.ServiceReference{Namespace: "wardle", Name: "wardle-server", Port: new(int32(port))},
		}}
		made, err := aggregator.NewForConfigOrDie(s.Config).ApiregistrationV1().APIServices().Create(t.Context(), service, metav1.CreateOptions{})
		if err != nil || !bytes.Equal(made.Spec.CABundle, w.file("ca.crt")) {
			t.Fatal(made, err)
		}
	})
	o, err := w.any.Resource(apiServices).Get(t.Context(), "v1alpha1.wardle.example.com", metav1.GetOptions{})
	w.must(err)
	if ca, _, _ := unstructured.NestedString(o.Object, "spec", "caBundle"); ca != base64.StdEncoding.EncodeToString(w.file("ca.crt")) {
		t.Errorf("stored is %q", ca)
	}
	if list, err := w.flunders(s.Config).List(t.Context(), metav1.ListOptions{}); err != nil || list.GetKind() != "FlunderList" {
		t.Error(list, err)
	}
}

// AGG-035, EXT-014, EXT-026: the main server lets the user pass, and does not answer the extension server.
func TestWithoutDelegator(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config, "wardle:system:auth-delegator")
	w.start()
	w.register()
	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"))
	status, text := w.get(jane, "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", "application/json")
	if status != http.StatusInternalServerError || !strings.Contains(text, `cannot create resource \"subjectaccessreviews\"`) && !strings.Contains(text, `cannot create resource "subjectaccessreviews"`) {
		t.Errorf("%d %s", status, text)
	}
}

// EXT-015, EXT-026
func TestWithoutReader(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config, "wardle-auth-reader")
	_, err := extension.Start(t.Context(), w.config)
	if err == nil || !strings.Contains(err.Error(), `configmaps "extension-apiserver-authentication" is forbidden`) || !strings.Contains(err.Error(), "--role=extension-apiserver-authentication-reader") {
		t.Error(err)
	}
}

// AGG-033, AGG-034, AGG-036: who comes past the main server is known by a TokenReview, and may do what a SubjectAccessReview says.
func TestDirectly(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	w.start()
	_, err := w.core.CoreV1().ServiceAccounts("wardle").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "caller"}}, metav1.CreateOptions{})
	w.must(err)
	s.User("system:serviceaccount:wardle:caller", testserver.May("list", "flunders.wardle.example.com"))
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{w.token("caller"), "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusOK},
		{w.token("caller"), "/apis/wardle.example.com/v1alpha1/fischers", http.StatusForbidden},
		{"forged", "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusUnauthorized},
		{"", "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusForbidden},
		{"", "/readyz", http.StatusOK},
		{"", "/livez", http.StatusOK},
		{"", "/metrics", http.StatusForbidden},
	} {
		direct := &rest.Config{Host: w.server.URL(), BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{CAData: w.file("ca.crt"), ServerName: "wardle-server.wardle.svc"}}
		status := 0
		w.until(func(context.Context) bool { // the watch of namespaces has yet to begin
			status, _ = w.get(direct, c.path, "application/json")
			return status == c.want
		}, func() any { return c })
	}
}

// EXT-028, EXT-029
func TestRestartAndEnd(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	w.start()
	w.register()
	flunders, ctx := w.flunders(s.Config), t.Context()
	_, err := flunders.Create(ctx, flunder("kept", nil), metav1.CreateOptions{})
	w.must(err)
	w.must(w.server.Shutdown())
	w.available("False")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while it is away: %v", err)
	}
	w.start()
	w.available("True")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after it is back: %v", err)
	}
	w.must(w.any.Resource(apiServices).Delete(ctx, "v1alpha1.wardle.example.com", metav1.DeleteOptions{}))
	_, text := w.get(s.Config, "/apis", "application/json")
	if strings.Contains(text, "wardle") {
		t.Errorf("discovery still has it: %s", text)
	}
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// The end of a namespace takes along what another server has in it. While that server is away the namespace waits, and says
// so (kubernetes #83332).
func TestEndOfANamespace(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	w.start()
	w.register()
	ctx, namespaces := t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	gone := func(name string) func(context.Context) bool {
		return func(ctx context.Context) bool {
			_, err := w.any.Resource(namespaces).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	of := func(name string) dynamic.ResourceInterface {
		space := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
		_, err := w.any.Resource(namespaces).Create(ctx, space, metav1.CreateOptions{})
		w.must(err)
		in := w.any.Resource(group.WithResource("flunders")).Namespace(name)
		w.until(func(ctx context.Context) bool { // the other server has to hear of the namespace
			_, err = in.Create(ctx, flunder("a", nil), metav1.CreateOptions{})
			return err == nil
		}, func() any { return err })
		return in
	}
	first, second := of("first"), of("second")
	w.must(w.any.Resource(namespaces).Delete(ctx, "first", metav1.DeleteOptions{}))
	w.until(gone("first"), func() any { return "first is still there" })
	if list, err := first.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}

	w.must(w.server.Shutdown())
	w.available("False")
	w.must(w.any.Resource(namespaces).Delete(ctx, "second", metav1.DeleteOptions{}))
	var last *unstructured.Unstructured
	w.until(func(ctx context.Context) bool {
		var err error
		last, err = w.any.Resource(namespaces).Get(ctx, "second", metav1.GetOptions{})
		w.must(err)
		conditions, _, _ := unstructured.NestedSlice(last.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m := c.(map[string]any)
			return m["status"] == "True" && (m["type"] == "NamespaceDeletionDiscoveryFailure" || m["type"] == "NamespaceDeletionContentFailure")
		})
	}, func() any { return last })
	w.start()
	w.available("True")
	w.until(gone("second"), func() any { return "second is still there" })
	if list, err := second.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
