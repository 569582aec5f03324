package crd

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Reachability reports whether the conversion webhooks of CRDs are reachable, in a condition and in Events.
type Reachability struct {
	queue  informer.Queue[string] // names of CRDs
	latest sync.Map               // reports to write (error or nil), by name of the CRD
}

// NewReachability returns a Reachability without reports.
func NewReachability() *Reachability {
	return &Reachability{queue: informer.NewQueue[string]("write webhook reachability")}
}

// Report reports that the webhook of a CRD cannot be reached because of err. A nil err means that the webhook is
// reachable or that the CRD no longer has one. Report never blocks. A newer report replaces an older one.
func (r *Reachability) Report(crd string, err error) {
	r.latest.Store(crd, err)
	r.queue.Add(crd)
}

// Run writes the reports until ctx is done.
func (r *Reachability) Run(ctx context.Context, d dynamic.Interface, events typedcorev1.EventsGetter) {
	r.queue.Work(ctx, 1, func(ctx context.Context, crd string) error {
		latest, ok := r.latest.LoadAndDelete(crd)
		if !ok {
			return nil
		}
		cause, _ := latest.(error)
		err := writeReachability(ctx, d.Resource(crds), events, crd, cause)
		if err != nil {
			r.latest.LoadOrStore(crd, latest) // unless there is a newer report
		}
		return err
	})
}

// writeReachability updates the condition of a CRD, and creates an Event if the reachability of its webhook has
// changed. A CRD has no condition if it has no webhook, or if its webhook has always been reachable.
func writeReachability(
	ctx context.Context, crds dynamic.ResourceInterface, events typedcorev1.EventsGetter, name string, cause error,
) error {
	crd, err := crds.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	status, reason, message := "True", "Reached", "the conversion webhook answers"
	eventType, event := corev1.EventTypeNormal, "ConversionWebhookReachable"
	if cause != nil {
		status, reason, message = "False", "CallFailed", report.Truncate(cause.Error())
		eventType, event = corev1.EventTypeWarning, "ConversionWebhookUnreachable"
	}
	was := meta.FindStatusCondition(report.Conditions(crd), resource.WebhookReachable)
	strategy, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "strategy")
	switch {
	case strategy != "Webhook" && was != nil:
		report.RemoveCondition(crd, resource.WebhookReachable)
		_, err := crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		return informer.IgnoreNotFound(err)
	case strategy != "Webhook", cause == nil && was == nil:
		return nil
	}
	changed := was == nil || (was.Status == metav1.ConditionTrue) != (cause == nil)
	if !report.SetCondition(crd, resource.WebhookReachable, status, reason, message) {
		return nil
	}
	if _, err := crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{}); err != nil || !changed {
		return informer.IgnoreNotFound(err)
	}
	return report.CreateEvent(ctx, events, crd, eventType, event, message)
}
