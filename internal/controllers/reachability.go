package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// maxMessage is the maximum length in bytes of an error in a condition or an Event.
const maxMessage = 1024

// truncate shortens a message to maxMessage bytes.
func truncate(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// Reachability reports whether the conversion webhooks of CRDs are reachable, in a condition and in Events.
type Reachability struct {
	queue queue[string] // names of CRDs

	mu     sync.Mutex
	latest map[string]error // reports to write, by name of the CRD
}

// NewReachability returns a Reachability without reports.
func NewReachability() *Reachability {
	return &Reachability{queue: newQueue[string]("write webhook reachability"), latest: map[string]error{}}
}

// Report reports that the webhook of a CRD cannot be reached because of err. A nil err means that the webhook is
// reachable or that the CRD no longer has one. Report never blocks. A newer report replaces an older one.
func (r *Reachability) Report(crd string, err error) {
	r.mu.Lock()
	r.latest[crd] = err
	r.mu.Unlock()
	r.queue.Add(crd)
}

// Run writes the reports until ctx is done. It returns an error only for an invalid configuration.
func (r *Reachability) Run(ctx context.Context, config *rest.Config) error {
	c, err := newClients(config, nil)
	if err != nil {
		return err
	}
	r.queue.work(ctx, 1, func(ctx context.Context, crd string) error {
		cause, more := r.take(crd)
		if !more {
			return nil
		}
		err := writeReachability(ctx, c.dynamic, crd, cause)
		if err != nil {
			r.putBack(crd, cause)
		}
		return err
	})
	return nil
}

func (r *Reachability) take(crd string) (cause error, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cause, more = r.latest[crd]
	delete(r.latest, crd)
	return cause, more
}

// putBack restores a report that could not be written, unless there is a newer one.
func (r *Reachability) putBack(crd string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, newer := r.latest[crd]; !newer {
		r.latest[crd] = cause
	}
}

// writeReachability updates the condition of a CRD, and creates an Event if the reachability of its webhook has
// changed. A CRD has no condition if it has no webhook, or if its webhook has always been reachable.
func writeReachability(ctx context.Context, client dynamic.Interface, name string, cause error) error {
	crds := client.Resource(crdKind.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions"))
	crd, err := crds.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	status, message, known := conditionTextFor(cause), reachableMessage, hasCondition(crd, resource.WebhookReachable)
	strategy, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "strategy")
	switch {
	case strategy != "Webhook" && known:
		removeCondition(crd, resource.WebhookReachable)
		return patchConditions(ctx, crds, crd)
	case strategy != "Webhook", cause == nil && !known:
		return nil
	case cause != nil:
		message = truncate(cause.Error())
	}
	changed := isConditionTrue(crd, resource.WebhookReachable) != (cause == nil) || !known
	if !setCondition(crd, resource.WebhookReachable, status.condition, status.reason, message) {
		return nil
	}
	if err := patchConditions(ctx, crds, crd); err != nil || !changed {
		return err
	}
	return createEvent(ctx, client, crd, status.kind, status.event, message)
}

const reachableMessage = "the conversion webhook answers"

// conditionText holds the fixed texts of a condition and its Event.
type conditionText struct{ condition, reason, kind, event string }

func conditionTextFor(cause error) conditionText {
	if cause != nil {
		return conditionText{"False", "CallFailed", "Warning", "ConversionWebhookUnreachable"}
	}
	return conditionText{"True", "Reached", "Normal", "ConversionWebhookReachable"}
}

// patchConditions writes the conditions of a CRD. It returns nil if the CRD does not exist.
func patchConditions(ctx context.Context, crds dynamic.ResourceInterface, crd *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": crd.GetResourceVersion()},
		"status":   map[string]any{"conditions": conditions(crd)},
	})
	if err != nil {
		return err
	}
	_, err = crds.Patch(ctx, crd.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return ignoreNotFound(err)
}

// createEvent creates an Event about a cluster-scoped object.
func createEvent(
	ctx context.Context, client dynamic.Interface, about *unstructured.Unstructured, kind, reason, message string,
) error {
	now := time.Now().UTC()
	e := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{
			"name": fmt.Sprintf("%s.%x", about.GetName(), now.UnixNano()), "namespace": metav1.NamespaceDefault,
		},
		"involvedObject": map[string]any{
			"apiVersion": about.GetAPIVersion(), "kind": about.GetKind(), "name": about.GetName(),
			"uid": string(about.GetUID()), "resourceVersion": about.GetResourceVersion(),
		},
		"type": kind, "reason": reason, "message": message, "count": int64(1),
		"source":         map[string]any{"component": "trellis"},
		"firstTimestamp": now.Format(time.RFC3339), "lastTimestamp": now.Format(time.RFC3339),
	}}
	events := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"})
	_, err := events.Namespace(metav1.NamespaceDefault).Create(ctx, e, metav1.CreateOptions{})
	return err
}
