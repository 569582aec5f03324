package control

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// WebhookReachable is the condition of a CRD whose conversion webhook could not be reached at least once. It is an
// extension of Trellis.
const WebhookReachable = "ConversionWebhookReachable"

// maxMessage bounds what a condition and an Event say of an error.
const maxMessage = 1024

// Reachability writes down whether the conversion webhooks of CRDs can be reached: in a condition, and in Events.
type Reachability struct {
	changed queue[string] // by name of the CRD

	mu     sync.Mutex
	latest map[string]error
}

// NewReachability returns a loop that has been told nothing.
func NewReachability() *Reachability {
	return &Reachability{changed: newQueue[string]("tell whether a webhook can be reached"), latest: map[string]error{}}
}

// Report says that the webhook of a CRD cannot be reached because of err, or that it can be. It never blocks; of several
// reports the latest counts.
func (r *Reachability) Report(crd string, err error) {
	r.mu.Lock()
	r.latest[crd] = err
	r.mu.Unlock()
	r.changed.Add(crd)
}

// Run writes what is reported, until ctx is done. The error is one of configuration.
func (r *Reachability) Run(ctx context.Context, config *rest.Config) error {
	c, err := newClients(config)
	if err != nil {
		return err
	}
	r.changed.work(ctx, 1, func(ctx context.Context, crd string) error { return r.tell(ctx, c.dynamic, crd) })
	return nil
}

// tell brings the condition of a CRD up to date. One whose webhook was always there has none.
func (r *Reachability) tell(ctx context.Context, client dynamic.Interface, name string) error {
	r.mu.Lock()
	why := r.latest[name]
	r.mu.Unlock()
	crds := client.Resource(crdKind.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions"))
	crd, err := crds.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	status, reason, message, kind := "True", "Reached", "the conversion webhook answers", "Normal"
	if why != nil {
		status, reason, message, kind = "False", "CallFailed", why.Error(), "Warning"
		message = message[:min(len(message), maxMessage)]
	} else if !hasCondition(crd, WebhookReachable) {
		return nil
	}
	if !setCondition(crd, WebhookReachable, status, reason, message) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": crd.GetResourceVersion()},
		"status":   map[string]any{"conditions": conditions(crd)},
	})
	if err != nil {
		return err
	}
	if _, err = crds.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return ignoreNotFound(err)
	}
	return event(ctx, client, crd, kind, map[string]string{"True": "ConversionWebhookReachable", "False": "ConversionWebhookUnreachable"}[status], message)
}

func hasCondition(u *unstructured.Unstructured, kind string) bool {
	for _, c := range conditions(u) {
		if m, _ := c.(map[string]any); m["type"] == kind {
			return true
		}
	}
	return false
}

// event makes an Event about an object of the cluster.
func event(ctx context.Context, client dynamic.Interface, about *unstructured.Unstructured, kind, reason, message string) error {
	now := time.Now().UTC()
	e := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"name": fmt.Sprintf("%s.%x", about.GetName(), now.UnixNano()), "namespace": metav1.NamespaceDefault},
		"involvedObject": map[string]any{
			"apiVersion": about.GetAPIVersion(), "kind": about.GetKind(), "name": about.GetName(),
			"uid": string(about.GetUID()), "resourceVersion": about.GetResourceVersion(),
		},
		"type": kind, "reason": reason, "message": message, "count": int64(1),
		"source":         map[string]any{"component": "trellis"},
		"firstTimestamp": now.Format(time.RFC3339), "lastTimestamp": now.Format(time.RFC3339),
	}}
	events := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(metav1.NamespaceDefault)
	_, err := events.Create(ctx, e, metav1.CreateOptions{})
	return err
}
