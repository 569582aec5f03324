package informer_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

type transport func(*http.Request) *http.Response

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r), nil }

// TestDiscoveryOfStaleGroups checks that all groups are discovered only twice a minute while one group is stale.
func TestDiscoveryOfStaleGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		config := &rest.Config{Host: "https://x", Transport: transport(func(r *http.Request) *http.Response {
			items := ""
			if r.URL.Path == "/apis" {
				reads.Add(1)
				items = `{"metadata":{"name":"wardle.example.com"},"versions":[{"version":"v1","freshness":"Stale"}]}`
			}
			body := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},` +
				`"items":[` + items + `]}`
			return &http.Response{
				StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r,
				Header: http.Header{
					"Content-Type": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
				},
			}
		})}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		d, m := discovery.NewDiscoveryClientForConfigOrDie(config), metadata.NewForConfigOrDie(config)
		informer.New(d, m, nil, func(informer.Change) {}).Run(ctx)
		if n := reads.Load(); n != 4 {
			t.Errorf("discovery was read %d times in 100 seconds, want 4", n)
		}
	})
}

// TestFeedEndsWithRun checks that an Informer has ended its subscriptions to a Feed when Run returns.
func TestFeedEndsWithRun(t *testing.T) {
	config := &rest.Config{Host: "https://x", Transport: transport(func(r *http.Request) *http.Response {
		body := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[`
		if r.URL.Path == "/apis" {
			body += `{"metadata":{"name":"example.com"},"versions":[{"version":"v1","resources":[{"resource":"things",` +
				`"responseKind":{"group":"example.com","version":"v1","kind":"Thing"},"scope":"Namespaced",` +
				`"verbs":["list","watch","delete"]}]}]}`
		}
		return &http.Response{
			StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body + `]}`)), Request: r,
			Header: http.Header{
				"Content-Type": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
			},
		}
	})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var subscriptions atomic.Int64
	feed := func(schema.GroupVersionResource, func([]*metav1.PartialObjectMetadata, int64),
		func(*metav1.PartialObjectMetadata, bool)) (func(), bool) {
		subscriptions.Add(1)
		cancel()
		return func() { subscriptions.Add(-1) }, true
	}
	d, m := discovery.NewDiscoveryClientForConfigOrDie(config), metadata.NewForConfigOrDie(config)
	informer.New(d, m, feed, func(informer.Change) {}).Run(ctx)
	if n := subscriptions.Load(); n != 0 || ctx.Err() == nil {
		t.Errorf("%d subscriptions remain", n)
	}
}
