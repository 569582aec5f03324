package controllers_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/controllers/crd"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestUnreachableWebhookCondition checks that a condition and Events of the CRD report an unreachable webhook, the
// reason, and its recovery. The server detects the recovery even if no object is converted. There is no condition
// while the webhook has always been reachable. (CNV-025 CNV-059)
func TestUnreachableWebhookCondition(t *testing.T) {
	w := connect(t, testserver.Start(t))
	hook := newTestWebhook(t)
	w.create(t, crds, "", hook.definition("v1"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "b"))
	v2 := widgets.GroupVersion().WithResource("widgets")
	v2.Version = "v2"
	hook.stop() // before the first conversion, so that the server calls the webhook and does not use cached results

	watching, err := w.at(widgets, "default").
		Watch(t.Context(), metav1.ListOptions{ResourceVersion: w.get(t, widgets, "default", "b").GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	for range 10 {
		if _, err := w.at(v2, "default").Get(t.Context(), "b", metav1.GetOptions{}); err == nil ||
			!strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("get without the webhook: got %v, want connection refused", err)
		}
	}
	crd := w.get(t, crds, "", "widgets.example.com")
	w.await(t, crds, "", "widgets.example.com", "has the condition False", func(o *unstructured.Unstructured) bool {
		crd = o
		c := condition(o, resource.WebhookReachable)
		return strings.HasPrefix(c, `False/CallFailed/Post "`+hook.server.URL) &&
			strings.Contains(c, "connection refused")
	})
	if crd.GetGeneration() != 1 || condition(crd, "Established") == "" {
		t.Errorf("the condition has changed the CRD: %v", crd.Object)
	}
	w.awaitEvent(t, "ConversionWebhookUnreachable", "Warning")
	w.get(t, widgets, "default", "b")

	calls := hook.calls.Load()
	hook.restart()
	w.await(t, crds, "", "widgets.example.com", "has the condition True", func(o *unstructured.Unstructured) bool {
		return condition(o, resource.WebhookReachable) == "True/Reached/the conversion webhook answers"
	})
	w.awaitEvent(t, "ConversionWebhookReachable", "Normal")
	if n := hook.calls.Load() - calls; n != 0 {
		t.Errorf("the recovery took %d webhook calls, want 0", n)
	}
	w.get(t, v2, "default", "b")
	w.awaitEvent(t, "ConversionWebhookUnreachable", "Warning") // the Event was not repeated

	w.patch(t, widgets, "default", "a", `{"metadata":{"labels":{"a":"b"}}}`)
	if e := <-watching.ResultChan(); e.Type != "MODIFIED" {
		t.Errorf("watch at the stored version: got %v, want MODIFIED", e)
	}
}

// TestReachableWebhookCondition checks that the first response of a webhook updates the condition if the CRD has one,
// and that it adds no condition otherwise.
func TestReachableWebhookCondition(t *testing.T) {
	s := testserver.Start(t)
	w := connect(t, s)
	v2 := widgets.GroupVersion().WithResource("widgets")
	v2.Version = "v2"
	w.create(t, crds, "", newTestWebhook(t).definition("v1"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.get(t, v2, "default", "a")
	before := w.get(t, crds, "", "widgets.example.com")
	if c := condition(before, resource.WebhookReachable); c != "" {
		t.Errorf("got condition %s for an always reachable webhook, want none", c)
	}

	r := crd.NewReachability()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx, w.dynamic, kubernetes.NewForConfigOrDie(s.Config).CoreV1()) })
	r.Report("widgets.example.com", nil)
	r.Report("gone.example.com", nil)
	r.Report("widgets.example.com", io.ErrUnexpectedEOF)
	w.await(t, crds, "", "widgets.example.com", "has the condition False", func(o *unstructured.Unstructured) bool {
		return condition(o, resource.WebhookReachable) == "False/CallFailed/unexpected EOF"
	})
	r.Report("widgets.example.com", nil)
	w.await(t, crds, "", "widgets.example.com", "has the condition True", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, resource.WebhookReachable), "True/")
	})
	stop()
	running.Wait()
}

// TestReachableWebhookOfStoppedServer checks that a successful call replaces the condition of another server, which has
// found the webhook unreachable and has then stopped.
func TestReachableWebhookOfStoppedServer(t *testing.T) {
	w := connect(t, testserver.Start(t))
	v2 := widgets
	v2.Version = "v2"
	w.create(t, crds, "", newTestWebhook(t).definition("v1"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.get(t, v2, "default", "a")
	o := w.get(t, crds, "", "widgets.example.com")
	report.SetCondition(o, resource.WebhookReachable, "False", "CallFailed", "connection refused")
	if _, err := w.at(crds, "").UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "b")) // its conversion is not cached
	w.get(t, v2, "default", "b")
	w.await(t, crds, "", "widgets.example.com", "has the condition True", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, resource.WebhookReachable), "True/")
	})
}

// TestReplacedWebhookCondition checks that the condition is removed with the webhook, and that it is updated when the
// CRD gets another webhook. (CNV-073)
func TestReplacedWebhookCondition(t *testing.T) {
	w := connect(t, testserver.Start(t))
	dead, alive := newTestWebhook(t), newTestWebhook(t)
	w.create(t, crds, "", dead.definition("v1"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	v2 := widgets
	v2.Version = "v2"
	dead.stop()
	awaitStatus := func(want string) {
		t.Helper()
		w.await(t, crds, "", "widgets.example.com", "has the condition "+want, func(o *unstructured.Unstructured) bool {
			_, _ = w.at(v2, "default").Get(t.Context(), "a", metav1.GetOptions{})
			c := condition(o, resource.WebhookReachable)
			return c == want || want != "" && strings.HasPrefix(c, want)
		})
	}
	setConversion := func(conversion map[string]any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": conversion}})
		if err != nil {
			t.Fatal(err)
		}
		w.patch(t, crds, "", "widgets.example.com", string(patch))
	}
	awaitStatus("False/")
	setConversion(alive.conversion())
	awaitStatus("True/")
	setConversion(dead.conversion())
	awaitStatus("False/")
	setConversion(map[string]any{"strategy": "None", "webhook": nil})
	awaitStatus("")
}

// awaitEvent waits for an Event about the CRD of Widgets.
func (w *testClient) awaitEvent(t *testing.T, reason, kind string) {
	t.Helper()
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	eventually(t, "an Event "+reason, func(ctx context.Context) bool {
		list, err := w.at(events, "default").
			List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=widgets.example.com,reason=" + reason})
		return err == nil && len(list.Items) == 1 && list.Items[0].Object["type"] == kind
	})
}
