package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestDeletedObjectRequeuesItsNamespace checks that the deletion of an object queues its namespace if the namespace
// is being deleted. A long backoff of earlier attempts must not delay it. (CRD-031)
func TestDeletedObjectRequeuesItsNamespace(t *testing.T) {
	n := newNamespaceController(nil, nil)
	defer time.AfterFunc(10*time.Second, n.queue.ShutDown).Stop()
	n.terminating.add("ends")
	k := kind{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap", true}
	for _, name := range []string{"lives", "ends"} {
		o := &metav1.PartialObjectMetadata{}
		o.Name, o.Namespace = "c", name
		n.observe(change{kind: k, object: o})
		n.observe(change{kind: k, object: o, deleted: true})
	}
	if got, shutdown := n.queue.Get(); shutdown || got != "ends" {
		t.Errorf("got queued namespace %q, want ends", got)
	}
	if n.queue.Len() > 0 {
		t.Error("more than one namespace is queued")
	}
}
