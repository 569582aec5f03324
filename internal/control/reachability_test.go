package control_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/internal/control"
	"github.com/trellis-k8s/trellis/testserver"
)

// webhookAt is a webhook for Widgets that listens on an address.
func webhookAt(t *testing.T, address string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(&conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Widget"}: func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) { return o, nil },
	}})
	if address != "" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Listener.Close()
		s.Listener = l
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// hookedBy is a CRD of Widgets with two versions between which a webhook converts.
func hookedBy(s *httptest.Server) *unstructured.Unstructured {
	crd := definition("example.com", "Widget", "Namespaced", version("v1", true, true), version("v2", true, false))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	_ = unstructured.SetNestedField(crd.Object, map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"},
		"clientConfig":             map[string]any{"url": s.URL, "caBundle": base64.StdEncoding.EncodeToString(ca)},
	}}, "spec", "conversion")
	return crd
}

// CNV-025 CNV-059: a CRD says that its webhook cannot be reached, and why, and that it can be again; one whose webhook
// was always there says nothing. It recovers by itself within two seconds of the webhook.
func TestUnreachableWebhookShows(t *testing.T) {
	w := connect(t, testserver.Start(t))
	hook := webhookAt(t, "")
	w.create(t, crds, "", hookedBy(hook))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "b"))
	v2 := widgets.GroupVersion().WithResource("widgets")
	v2.Version = "v2"
	w.get(t, v2, "default", "a")
	hook.Close()

	watching, err := w.at(widgets, "default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: w.get(t, widgets, "default", "b").GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	for range 10 {
		if _, err := w.at(v2, "default").Get(t.Context(), "b", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("without its webhook: %v", err)
		}
	}
	crd := w.get(t, crds, "", "widgets.example.com")
	w.await(t, crds, "", "widgets.example.com", "says so", func(o *unstructured.Unstructured) bool {
		crd = o
		c := condition(o, control.WebhookReachable)
		return strings.HasPrefix(c, `False/CallFailed/Post "`+hook.URL) && strings.Contains(c, "connection refused")
	})
	if crd.GetGeneration() != 1 || condition(crd, "Established") == "" {
		t.Errorf("the CRD has become %v", crd.Object)
	}
	w.awaitEvent(t, "ConversionWebhookUnreachable", "Warning")
	w.get(t, widgets, "default", "b")

	hook = webhookAt(t, hook.Listener.Addr().String())
	back := time.Now()
	eventually(t, "it converts again", func(ctx context.Context) bool {
		_, err := w.at(v2, "default").Get(ctx, "b", metav1.GetOptions{})
		return err == nil
	})
	t.Logf("recovered %v after the webhook", time.Since(back))
	w.await(t, crds, "", "widgets.example.com", "says that it is back", func(o *unstructured.Unstructured) bool {
		return condition(o, control.WebhookReachable) == "True/Reached/the conversion webhook answers"
	})
	w.awaitEvent(t, "ConversionWebhookReachable", "Normal")

	w.patch(t, widgets, "default", "a", `{"metadata":{"labels":{"a":"b"}}}`)
	if e := <-watching.ResultChan(); e.Type != "MODIFIED" {
		t.Errorf("a watch at the stored version has seen %v", e)
	}
}

// A condition that an earlier server has left behind is put right by the first answer, one that is not there is not made.
func TestReachableWebhookShows(t *testing.T) {
	s := testserver.Start(t)
	w := connect(t, s)
	v2 := widgets.GroupVersion().WithResource("widgets")
	v2.Version = "v2"
	w.create(t, crds, "", hookedBy(webhookAt(t, "")))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.get(t, v2, "default", "a")
	before := w.get(t, crds, "", "widgets.example.com")
	if c := condition(before, control.WebhookReachable); c != "" {
		t.Errorf("a webhook that was always there has the condition %s", c)
	}

	r := control.NewReachability()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, s.Config) }()
	r.Report("widgets.example.com", nil)
	r.Report("gone.example.com", nil)
	r.Report("widgets.example.com", io.ErrUnexpectedEOF)
	w.await(t, crds, "", "widgets.example.com", "says so", func(o *unstructured.Unstructured) bool {
		return condition(o, control.WebhookReachable) == "False/CallFailed/unexpected EOF"
	})
	r.Report("widgets.example.com", nil)
	w.await(t, crds, "", "widgets.example.com", "says that it is back", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, control.WebhookReachable), "True/")
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// awaitEvent waits for an Event about the CRD of Widgets.
func (w *world) awaitEvent(t *testing.T, reason, kind string) {
	t.Helper()
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	eventually(t, "an Event "+reason, func(ctx context.Context) bool {
		list, err := w.at(events, "default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=widgets.example.com,reason=" + reason})
		return err == nil && len(list.Items) == 1 && list.Items[0].Object["type"] == kind
	})
}
