package controllers_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestTrellisControllersDisabled checks that "-*" disables the namespace controller and the garbage collector, so that
// kube-controller-manager can run them. The CRD controller, which kube-controller-manager does not have, still runs.
func TestTrellisControllersDisabled(t *testing.T) {
	s := testserver.Start(t, withControllers("-*"))
	client, ctx := kubernetes.NewForConfigOrDie(s.Config).CoreV1(), t.Context()
	if _, err := client.Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: named("ends")}, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	owner, err := client.ConfigMaps("ends").
		Create(ctx, &corev1.ConfigMap{ObjectMeta: named("owner")}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := &corev1.ConfigMap{ObjectMeta: named("owned")}
	owned.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}
	if _, err := client.ConfigMaps("ends").Create(ctx, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigMaps("ends").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.Namespaces().Delete(ctx, "ends", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	crds := apiextensions.NewForConfigOrDie(s.Config).CustomResourceDefinitions()
	yes := true
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: named("xs.example.com"),
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "xs", Kind: "X"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}}},
			}},
	}
	if crd, err = crds.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := crds.Delete(ctx, crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := crds.Watch(ctx, metav1.ListOptions{ResourceVersion: crd.ResourceVersion})
	awaitEvent(t, w, err, func(event watch.EventType, _ runtime.Object) bool { return event == watch.Deleted })

	if n, err := client.Namespaces().Get(
		ctx, "ends", metav1.GetOptions{},
	); err != nil || n.DeletionTimestamp == nil || len(n.Status.Conditions) > 0 {
		t.Errorf("a disabled controller has changed the namespace: %v %+v", err, n)
	}
	if _, err := client.ConfigMaps("ends").Get(ctx, "owned", metav1.GetOptions{}); err != nil {
		t.Errorf("get the dependent of a deleted ConfigMap: %v", err)
	}
}

// TestTrellisControllerEnabled checks which values of Controllers enable one of TrellisControllers.
func TestTrellisControllerEnabled(t *testing.T) {
	const name = "namespace-controller"
	for _, c := range []struct {
		names []string
		want  bool
	}{{nil, true}, {[]string{"*"}, true}, {[]string{"resourcequota-controller"}, true},
		{[]string{"*", "-" + name}, false}, {[]string{"-*"}, false}, {[]string{"-*", name}, true},
		{[]string{"-garbage-collector-controller"}, true}} {
		if got := controllers.TrellisEnabled(c.names, name); got != c.want {
			t.Errorf("%v: got %v, want %v", c.names, got, c.want)
		}
	}
}
