package compat_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/trellis-k8s/trellis/testserver"
)

var boxKind = schema.GroupVersionKind{Group: "clients.example.com", Version: "v1", Kind: "Box"}

func boxCRD() *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boxes.clients.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: boxKind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boxes", Kind: "Box"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &preserve,
				}},
			}},
		},
	}
}

// boxReconciler creates a ConfigMap owned by each Box, sets the Box's status and records an event.
type boxReconciler struct {
	client.Client
	recorder events.EventRecorder
	seen     atomic.Int64
}

func (r *boxReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.seen.Add(1)
	box := &unstructured.Unstructured{}
	box.SetGroupVersionKind(boxKind)
	if err := r.Get(ctx, req.NamespacedName, box); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: box.GetName(), Namespace: box.GetNamespace()}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, owned, func() error {
		size, _, _ := unstructured.NestedString(box.Object, "spec", "size")
		owned.Data = map[string]string{"size": size}
		return controllerutil.SetControllerReference(box, owned, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	r.recorder.Eventf(box, nil, corev1.EventTypeNormal, "Filled", "Fill", "box %s is filled", box.GetName())
	before := box.DeepCopy()
	if err := unstructured.SetNestedField(box.Object, "Filled", "status", "phase"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Status().Patch(ctx, box, client.MergeFrom(before))
}

// TestControllerRuntimeManager checks a controller-runtime manager with leader election, before and after a restart of
// the server (CRD-018 CRD-062 CRD-066 CRD-071).
func TestControllerRuntimeManager(t *testing.T) {
	server := testserver.Start(t, testserver.OnDisk())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	direct, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := direct.Create(ctx, boxCRD()); err != nil {
		t.Fatal(err)
	}
	reconciler, stopped := startManager(ctx, t, server.Config, scheme)
	createBox(ctx, t, direct, "first")
	server.Restart()
	createBox(ctx, t, direct, "second")

	box := &unstructured.Unstructured{}
	box.SetGroupVersionKind(boxKind)
	box.SetName("first")
	box.SetNamespace("default")
	if err := direct.Delete(ctx, box); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the ConfigMap of a deleted Box to be collected", func() error {
		err := direct.Get(ctx, client.ObjectKeyFromObject(box), &corev1.ConfigMap{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("got error %v, want NotFound", err)
	})
	eventually(ctx, t, "an event", func() error {
		var all eventsv1.EventList
		if err := direct.List(ctx, &all, client.InNamespace("default")); err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.Reason == "Filled" {
				return nil
			}
		}
		return fmt.Errorf("got %d events, but none with reason Filled", len(all.Items))
	})
	if reconciler.seen.Load() == 0 {
		t.Error("got no call of Reconcile")
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Errorf("got error %v of the manager, want none", err)
	}
}

// startManager starts a manager with a boxReconciler. After ctx is done, the returned channel receives the result
// of the manager.
func startManager(
	ctx context.Context, t *testing.T, config *rest.Config, scheme *runtime.Scheme,
) (*boxReconciler, <-chan error) {
	t.Helper()
	manager, err := ctrl.NewManager(rest.CopyConfig(config), ctrl.Options{
		Scheme: scheme, LeaderElection: true, LeaderElectionID: "boxes.clients.example.com",
		LeaderElectionNamespace: "default",
		Metrics:                 metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	reconciler := &boxReconciler{Client: manager.GetClient(), recorder: manager.GetEventRecorder("boxes")}
	box := &unstructured.Unstructured{}
	box.SetGroupVersionKind(boxKind)
	if err := ctrl.NewControllerManagedBy(manager).For(box).Owns(&corev1.ConfigMap{}).Complete(reconciler); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- manager.Start(ctx) }()
	return reconciler, stopped
}

// createBox creates a Box and blocks until the reconciler has created its ConfigMap and set its status.
func createBox(ctx context.Context, t *testing.T, c client.Client, name string) {
	t.Helper()
	box := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name, "namespace": "default"}, "spec": map[string]any{"size": "large"},
	}}
	box.SetGroupVersionKind(boxKind)
	if err := c.Create(ctx, box); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKeyFromObject(box)
	eventually(ctx, t, "Box "+name+" to be filled", func() error {
		if err := c.Get(ctx, key, box); err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(box.Object, "status", "phase"); phase != "Filled" {
			return fmt.Errorf("got status %v, want phase Filled", box.Object["status"])
		}
		var owned corev1.ConfigMap
		if err := c.Get(ctx, key, &owned); err != nil {
			return err
		}
		if owned.Data["size"] != "large" {
			return fmt.Errorf("got ConfigMap data %v, want size large", owned.Data)
		}
		return nil
	})
}

// eventually calls check until it returns nil, and fails the test after 40 seconds.
func eventually(ctx context.Context, t *testing.T, condition string, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 40*time.Second, true,
		func(context.Context) (bool, error) {
			last = check()
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("waiting for %s: %v", condition, last)
	}
}
