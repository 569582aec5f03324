// Package report writes the results of the controllers' work into conditions and Events.
package report

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// maxMessage is the maximum length in bytes of an error in a condition or an Event.
const maxMessage = 1024

// Truncate shortens a message to the maximum length in a condition or an Event.
func Truncate(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
}

// Conditions returns status.conditions of an object.
func Conditions(u *unstructured.Unstructured) []metav1.Condition {
	var o struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o)
	return o.Status.Conditions
}

// IsTrue reports whether an object has a condition with the status True.
func IsTrue(u *unstructured.Unstructured, kind string) bool {
	return meta.IsStatusConditionTrue(Conditions(u), kind)
}

// SetCondition sets a condition of an object and reports whether it has changed.
func SetCondition(u *unstructured.Unstructured, kind, status, reason, message string) bool {
	list := Conditions(u)
	changed := meta.SetStatusCondition(&list, metav1.Condition{
		Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message,
	})
	setConditions(u, list)
	return changed
}

// RemoveCondition removes a condition of an object.
func RemoveCondition(u *unstructured.Unstructured, kind string) {
	list := Conditions(u)
	meta.RemoveStatusCondition(&list, kind)
	setConditions(u, list)
}

func setConditions(u *unstructured.Unstructured, list []metav1.Condition) {
	raw := make([]any, len(list))
	for i := range list {
		raw[i], _ = runtime.DefaultUnstructuredConverter.ToUnstructured(&list[i])
	}
	_ = unstructured.SetNestedSlice(u.Object, raw, "status", "conditions")
}

// CreateEvent creates an Event about a cluster-scoped object. The type of the Event is kind.
func CreateEvent(
	ctx context.Context, client typedcorev1.EventsGetter, about *unstructured.Unstructured,
	kind, reason, message string,
) error {
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", about.GetName(), now.UnixNano()), Namespace: metav1.NamespaceDefault,
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: about.GetAPIVersion(), Kind: about.GetKind(), Name: about.GetName(), UID: about.GetUID(),
			ResourceVersion: about.GetResourceVersion(),
		},
		Type: kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "trellis"},
	}
	_, err := client.Events(metav1.NamespaceDefault).Create(ctx, e, metav1.CreateOptions{})
	return err
}
