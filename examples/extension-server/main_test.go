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

// TestEndToEnd performs the steps of the documentation and then sends the requests of users.
// AGG-001 to AGG-006, EXT-002, EXT-003 to EXT-008, EXT-011 to EXT-016, EXT-018, EXT-019
func TestEndToEnd(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	e.start()
	e.register()
	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"),
		testserver.May("create", "flunders.wardle.example.com/catch"))
	flunders, ctx := e.flunders(jane), t.Context()
	list, err := flunders.List(ctx, metav1.ListOptions{})
	e.must(err)
	if len(list.Items) != 0 || list.GetKind() != "FlunderList" {
		t.Errorf("%v", list.Object)
	}
	events, err := flunders.Watch(ctx, metav1.ListOptions{})
	e.must(err)
	defer events.Stop()
	o, err := flunders.Create(ctx, manifest(t, "manifests/flunder.yaml")[0], metav1.CreateOptions{})
	e.must(err)
	if kind, _, _ := unstructured.NestedString(o.Object, "spec", "referenceType"); kind != "Flunder" ||
		o.GetManagedFields()[0].Manager == "" {
		t.Errorf("%v", o.Object)
	}
	_, err = flunders.Apply(ctx, o.GetName(), flunder(o.GetName(), map[string]any{"reference": "another"}),
		metav1.ApplyOptions{FieldManager: "me"})
	e.must(err)
	if o, err = flunders.Get(ctx, o.GetName(), metav1.GetOptions{}); err != nil || o.GetGeneration() != 2 {
		t.Errorf("%v %v", o, err)
	}
	e.must(flunders.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
	t.Run("refusals", func(t *testing.T) { testRefusals(t, s, e, jane) })
	t.Run("described", func(t *testing.T) { testDescribed(t, e, jane) })
	t.Run("subresource", func(t *testing.T) { testCatch(t, e, jane) })
}

// testRefusals checks the errors of invalid, misplaced and forbidden requests.
func testRefusals(t *testing.T, s *testserver.Server, e *env, jane *rest.Config) {
	flunders, ctx := e.flunders(jane), t.Context()
	for what, spec := range map[string]map[string]any{
		`spec.reference: Invalid value: "me": is the Flunder itself`: {"reference": "me"},
		`spec: Invalid value: a Fischer has a name`:                  {"referenceType": "Fischer"},
		`spec.referenceType: Unsupported value: "Shark"`:             {"referenceType": "Shark"},
	} {
		if _, err := flunders.Create(ctx, flunder("me", spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
	somewhere := e.any.Resource(group.WithResource("flunders")).Namespace("nowhere")
	if _, err := somewhere.Create(ctx, flunder("me", nil), metav1.CreateOptions{}); !apierrors.IsNotFound(err) ||
		err.Error() != `namespaces "nowhere" not found` {
		t.Error(err)
	}
	// AGG-005, EXT-002
	bob := s.User("bob", testserver.May("get", "flunders.wardle.example.com"))
	const forbidden = `flunders.wardle.example.com is forbidden: User "bob" cannot create resource "flunders" in API group "wardle.example.com" in the namespace "default"`
	if _, err := e.flunders(bob).Create(ctx, flunder("me", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		err.Error() != forbidden {
		t.Error(err)
	}
	if status, _ := e.get(bob, "/apis/apiregistration.k8s.io/v1/apiservices",
		"application/json"); status != http.StatusForbidden {
		t.Error(status)
	}
}

// testDescribed checks the responses that kubectl api-resources, explain and get use (EXT-027). The group is in /apis,
// in aggregated discovery and in both OpenAPI documents (AGG-059).
func testDescribed(t *testing.T, e *env, jane *rest.Config) {
	for path, want := range map[string][]string{
		"/apis":                             {`"groupVersion":"wardle.example.com/v1alpha1"`},
		"/apis/wardle.example.com/v1alpha1": {`"flunders"`, `"flunders/catch"`, `"fischers"`, `"fl"`},
		"/openapi/v3/apis/wardle.example.com/v1alpha1": {"The Fischer that has caught it.", "/flunders/{name}/catch",
			"com.example.wardle.v1alpha1.Catch"},
		"/openapi/v3": {`"apis/wardle.example.com/v1alpha1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1alpha1?hash=`},
		"/openapi/v2": {"A Flunder refers to another one", "com.example.wardle.v1alpha1.Catch",
			"io.k8s.api.core.v1.Pod"},
	} {
		status, text := e.get(jane, path, "application/json")
		for _, part := range want {
			if status != http.StatusOK || !strings.Contains(text, part) {
				t.Errorf("%s: %d, without %s", path, status, part)
			}
		}
	}
	if status, text := e.get(jane, "/apis/wardle.example.com/v1alpha1/flunders",
		"application/json;as=Table;v=v1;g=meta.k8s.io"); status != http.StatusOK ||
		!strings.Contains(text, `"Caught by"`) {
		t.Errorf("%d %s", status, text)
	}
	_, text := e.get(jane, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if !strings.Contains(text, `"flunders"`) || !strings.Contains(text, `"catch"`) {
		t.Error("aggregated discovery lacks the resources")
	}
}

// testCatch checks the subresource catch. The body of a request is validated, and only the first valid request
// succeeds.
func testCatch(t *testing.T, e *env, jane *rest.Config) {
	flunders, ctx := e.flunders(jane), t.Context()
	before, err := flunders.Create(ctx, flunder("hasty", nil), metav1.CreateOptions{})
	e.must(err)
	body := func(fischer string) *unstructured.Unstructured {
		o := flunder("hasty", nil)
		o.Object["kind"] = "Catch"
		o.Object["fischer"] = fischer
		return o
	}
	if _, err := flunders.Create(ctx, body(""), metav1.CreateOptions{}, "catch"); !apierrors.IsInvalid(err) {
		t.Errorf("a Catch without a fischer: %v", err)
	}
	answer, err := flunders.Create(ctx, body("fritz"), metav1.CreateOptions{}, "catch")
	if err != nil || answer.GetKind() != "Catch" {
		t.Fatal(answer, err)
	}
	after, err := flunders.Get(ctx, "hasty", metav1.GetOptions{})
	e.must(err)
	if by, _, _ := unstructured.NestedString(after.Object, "status", "caughtBy"); by != "fritz" ||
		after.GetResourceVersion() == before.GetResourceVersion() {
		t.Errorf("%v", after.Object)
	}
	if _, err := flunders.Create(ctx, body("franz"), metav1.CreateOptions{}, "catch"); !apierrors.IsConflict(err) {
		t.Errorf("caught twice: %v", err)
	}
	patch := []byte(`{"spec":{"reference":"hasty"}}`)
	if _, err := flunders.Patch(ctx, "hasty", types.MergePatchType, patch,
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an update that Validate must reject: %v", err)
	}
}

// TestTypedAPIService checks the CA bundle of an APIService. It is PEM in the Go type and base64 in JSON. The server
// trusts it. EXT-017
func TestTypedAPIService(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	e.start()
	e.registerBy(func(port int64) {
		service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1alpha1.wardle.example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: group.Group, Version: group.Version, GroupPriorityMinimum: 1000, VersionPriority: 15,
				CABundle: e.file("ca.crt"),
				Service: &apiregistrationv1.ServiceReference{Namespace: "wardle", Name: "wardle-server",
					Port: new(int32(port))},
			}}
		made, err := aggregator.NewForConfigOrDie(s.Config).ApiregistrationV1().APIServices().Create(t.Context(),
			service, metav1.CreateOptions{})
		if err != nil || !bytes.Equal(made.Spec.CABundle, e.file("ca.crt")) {
			t.Fatal(made, err)
		}
	})
	o, err := e.any.Resource(apiServices).Get(t.Context(), "v1alpha1.wardle.example.com", metav1.GetOptions{})
	e.must(err)
	if ca, _, _ := unstructured.NestedString(o.Object, "spec",
		"caBundle"); ca != base64.StdEncoding.EncodeToString(e.file("ca.crt")) {
		t.Errorf("got stored CA bundle %q", ca)
	}
	if list, err := e.flunders(s.Config).List(t.Context(), metav1.ListOptions{}); err != nil ||
		list.GetKind() != "FlunderList" {
		t.Error(list, err)
	}
}

// TestWithoutDelegator checks the error of a request if the extension server lacks the permission to create
// SubjectAccessReviews on the main server. AGG-035, EXT-014, EXT-026
func TestWithoutDelegator(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config, "wardle:system:auth-delegator")
	e.start()
	e.register()
	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"))
	status, text := e.get(jane, "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", "application/json")
	if status != http.StatusInternalServerError || !strings.Contains(text,
		`cannot create resource \"subjectaccessreviews\"`) &&
		!strings.Contains(text, `cannot create resource "subjectaccessreviews"`) {
		t.Errorf("%d %s", status, text)
	}
}

// TestWithoutReader checks that the start fails if the extension server lacks the permission to read the main
// server's authentication settings. EXT-015, EXT-026
func TestWithoutReader(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config, "wardle-auth-reader")
	_, err := extension.Start(t.Context(), e.config)
	if err == nil || !strings.Contains(err.Error(), `configmaps "extension-apiserver-authentication" is forbidden`) ||
		!strings.Contains(err.Error(), "--role=extension-apiserver-authentication-reader") {
		t.Error(err)
	}
}

// TestDirectRequests checks that requests sent directly to the extension server are authenticated by a TokenReview and
// authorized by a SubjectAccessReview. AGG-033, AGG-034, AGG-036
func TestDirectRequests(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	e.start()
	_, err := e.core.CoreV1().ServiceAccounts("wardle").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "caller"}}, metav1.CreateOptions{})
	e.must(err)
	s.User("system:serviceaccount:wardle:caller", testserver.May("list", "flunders.wardle.example.com"))
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{e.token("caller"), "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusOK},
		{e.token("caller"), "/apis/wardle.example.com/v1alpha1/fischers", http.StatusForbidden},
		{"forged", "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusUnauthorized},
		{"", "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders", http.StatusForbidden},
		{"", "/readyz", http.StatusOK},
		{"", "/livez", http.StatusOK},
		{"", "/metrics", http.StatusForbidden},
	} {
		direct := &rest.Config{Host: e.server.URL(), BearerToken: c.token,
			TLSClientConfig: rest.TLSClientConfig{CAData: e.file("ca.crt"), ServerName: "wardle-server.wardle.svc"}}
		status := 0
		e.until(func(context.Context) bool { // the watch of namespaces may not have started yet
			status, _ = e.get(direct, c.path, "application/json")
			return status == c.want
		}, func() any { return c })
	}
}

// TestRestartAndUnregister checks that objects survive a restart of the extension server, and that its API is removed
// with the APIService. EXT-028, EXT-029
func TestRestartAndUnregister(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	e.start()
	e.register()
	flunders, ctx := e.flunders(s.Config), t.Context()
	_, err := flunders.Create(ctx, flunder("kept", nil), metav1.CreateOptions{})
	e.must(err)
	e.must(e.server.Shutdown())
	e.available("False")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while it is unavailable: %v", err)
	}
	e.start()
	e.available("True")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	e.must(e.any.Resource(apiServices).Delete(ctx, "v1alpha1.wardle.example.com", metav1.DeleteOptions{}))
	_, text := e.get(s.Config, "/apis", "application/json")
	if strings.Contains(text, "wardle") {
		t.Errorf("discovery still contains the group: %s", text)
	}
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// TestNamespaceDeletion checks that the deletion of a namespace deletes the extension server's objects in it. While
// the extension server is unavailable, the deletion waits, and the namespace's conditions report the reason
// (kubernetes #83332).
func TestNamespaceDeletion(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	e.start()
	e.register()
	ctx, namespaces := t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	deleted := func(name string) func(context.Context) bool {
		return func(ctx context.Context) bool {
			_, err := e.any.Resource(namespaces).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	create := func(name string) dynamic.ResourceInterface {
		space := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name}}}
		_, err := e.any.Resource(namespaces).Create(ctx, space, metav1.CreateOptions{})
		e.must(err)
		in := e.any.Resource(group.WithResource("flunders")).Namespace(name)
		e.until(func(ctx context.Context) bool { // the extension server may not have received the namespace yet
			_, err = in.Create(ctx, flunder("a", nil), metav1.CreateOptions{})
			return err == nil
		}, func() any { return err })
		return in
	}
	first, second := create("first"), create("second")
	e.must(e.any.Resource(namespaces).Delete(ctx, "first", metav1.DeleteOptions{}))
	e.until(deleted("first"), func() any { return "first is not deleted" })
	if list, err := first.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}

	e.must(e.server.Shutdown())
	e.available("False")
	e.must(e.any.Resource(namespaces).Delete(ctx, "second", metav1.DeleteOptions{}))
	var last *unstructured.Unstructured
	e.until(func(ctx context.Context) bool {
		var err error
		last, err = e.any.Resource(namespaces).Get(ctx, "second", metav1.GetOptions{})
		e.must(err)
		conditions, _, _ := unstructured.NestedSlice(last.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m := c.(map[string]any)
			return m["status"] == "True" && (m["type"] == "NamespaceDeletionDiscoveryFailure" ||
				m["type"] == "NamespaceDeletionContentFailure")
		})
	}, func() any { return last })
	e.start()
	e.available("True")
	e.until(deleted("second"), func() any { return "second is not deleted" })
	if list, err := second.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
