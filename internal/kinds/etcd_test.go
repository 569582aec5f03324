package kinds_test

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/fixture/kubeapiserver"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startUpstream starts a kube-apiserver with all APIs, without the admission plugins that need other objects.
func startUpstream(s *kubeapiserver.Server) *rest.Config {
	url := s.Start("--service-cluster-ip-range=10.0.0.0/24", "--runtime-config=api/all=true", "--allow-privileged",
		"--disable-admission-plugins=ServiceAccount,Priority,StorageObjectInUseProtection,"+
			"CertificateSubjectRestriction,ResourceQuota,LimitRanger,DefaultIngressClass,RuntimeClass")
	return &rest.Config{Host: url, BearerToken: kubeapiserver.Token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// startTrellis starts a server on the same etcd, without controllers that write objects.
func startTrellis(t *testing.T, e *storagetest.Etcd) (*apiserver.Server, *rest.Config) {
	t.Helper()
	s, err := apiserver.Start(t.Context(), apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}},
		Controllers: []string{"clusterrole-aggregation-controller"}, RuntimeConfig: map[string]string{"api/all": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	c := s.ClientConfig()
	c.QPS = -1
	return s, c
}

// stored is an object of a test in etcd.
type stored struct {
	resource schema.GroupVersionResource
	key      string // in etcd
	object   *unstructured.Unstructured
}

func (o *stored) client(c *rest.Config) dynamic.ResourceInterface {
	r := dynamic.NewForConfigOrDie(c).Resource(o.resource)
	if ns := o.object.GetNamespace(); ns != "" {
		return r.Namespace(ns)
	}
	return r
}

// sampleObjects returns the sample of each stored kind, one for each key in etcd.
func sampleObjects(t *testing.T) (all []*stored) {
	t.Helper()
	seen := map[string]bool{}
	for _, s := range samples(t) {
		o := &stored{object: &unstructured.Unstructured{}}
		if err := yaml.Unmarshal([]byte(s.text), &o.object.Object); err != nil {
			t.Fatal(err)
		}
		gvk := o.object.GroupVersionKind()
		for _, d := range kinds.Definitions(kinds.Config{}) {
			if v := d.Version(s.apiVersion); v != nil && d.Names.Kind == gvk.Kind && d.Stored() {
				o.resource = v.GroupVersion.WithResource(d.Names.Plural)
				o.key = d.Key(o.object.GetNamespace(), s.object)
			}
		}
		if o.key != "" && !seen[o.key] {
			seen[o.key] = true
			all = append(all, o)
		}
	}
	return all
}

// compare checks that a server returns each object unchanged. It ignores the status of the objects whose status
// kube-apiserver and Trellis write themselves.
func compare(t *testing.T, c *rest.Config, all []*stored) {
	t.Helper()
	for _, o := range all {
		got, err := o.client(c).Get(t.Context(), o.object.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Errorf("%s: %v", o.key, err)
			continue
		}
		want := o.object.DeepCopy()
		switch o.resource.Resource {
		case "apiservices", "customresourcedefinitions", "flowschemas", "servicecidrs",
			"storageversionmigrations":
			for _, u := range []*unstructured.Unstructured{got, want} {
				delete(u.Object, "status")
				u.SetManagedFields(nil)
				u.SetResourceVersion("")
				u.SetFinalizers(nil)
			}
		}
		if !reflect.DeepEqual(got.Object, want.Object) {
			t.Errorf("%s:\n got %v\nwant %v", o.key, got, want)
		}
	}
}

// customObjects are a CustomResourceDefinition and an object of its kind.
func customObjects() []*stored {
	return []*stored{{
		resource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"},
		key: "/registry/apiextensions.k8s.io/customresourcedefinitions/things.example.com",
		object: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": "things.example.com"},
			"spec": map[string]any{
				"group": "example.com", "scope": "Namespaced",
				"names": map[string]any{"plural": "things", "singular": "thing", "kind": "Thing",
					"listKind": "ThingList"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
						"x-kubernetes-preserve-unknown-fields": true}}}},
			},
		}},
	}, {
		resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"},
		key:      "/registry/example.com/things/ns/a",
		object: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Thing", "metadata": map[string]any{"name": "a", "namespace": "ns"},
			"spec": map[string]any{"text": "<&>", "number": int64(3)},
		}},
	}}
}

// TestAdoptEtcd checks that Trellis serves the objects of all built-in kinds and of a custom kind from the etcd of a
// kube-apiserver. A kube-apiserver then serves what Trellis has written.
func TestAdoptEtcd(t *testing.T) {
	e := storagetest.StartEtcd(t)
	upstream := kubeapiserver.New(t, e)
	config := startUpstream(upstream)
	all := []*stored{{resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"},
		key: "/registry/namespaces/ns", object: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "ns"}}}}}
	all = append(append(all, sampleObjects(t)...), customObjects()...)
	for _, o := range all {
		created, err := o.client(config).Create(t.Context(), o.object, metav1.CreateOptions{})
		for apierrors.IsNotFound(err) { // the custom kind is not served yet
			<-time.After(10 * time.Millisecond)
			created, err = o.client(config).Create(t.Context(), o.object, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatalf("create %s in kube-apiserver: %v", o.key, err)
		}
		o.object = created
	}
	compare(t, config, all)
	upstream.Stop()

	server, config := startTrellis(t, e)
	compare(t, config, all)
	for _, o := range all {
		patched, err := o.client(config).Patch(t.Context(), o.object.GetName(), types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"written-by":"trellis"}}}`), metav1.PatchOptions{})
		if err != nil {
			t.Errorf("patch %s in Trellis: %v", o.key, err)
			continue
		}
		o.object = patched
	}
	compare(t, config, all)
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	checkProtobuf(t, e, all)
	compare(t, startUpstream(upstream), all)
}

// checkProtobuf checks that etcd contains protobuf for built-in kinds. kube-apiserver stores CustomResourceDefinitions
// and APIServices as JSON.
func checkProtobuf(t *testing.T, e *storagetest.Etcd, all []*stored) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, o := range all {
		got, err := client.Get(t.Context(), o.key)
		if err != nil || len(got.Kvs) != 1 {
			t.Errorf("%s: %v, %v", o.key, got, err)
			continue
		}
		isJSON := strings.HasPrefix(o.key, "/registry/api") || o.resource.Group == "example.com"
		if value := got.Kvs[0].Value; bytes.HasPrefix(value, []byte("k8s\x00")) == isJSON {
			t.Errorf("%s: %.40q", o.key, value)
		}
	}
}

// TestShareEtcd checks Trellis and a kube-apiserver that write to the same etcd. No update is lost, and watches of both
// servers return the same events.
func TestShareEtcd(t *testing.T) {
	e := storagetest.StartEtcd(t)
	configs := []*rest.Config{startUpstream(kubeapiserver.New(t, e)), nil}
	_, configs[1] = startTrellis(t, e)
	const count = 50
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"}}
	created, err := kubernetes.NewForConfigOrDie(configs[0]).CoreV1().ConfigMaps("default").Create(t.Context(), object,
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var seen [2][]string
	var work, watching sync.WaitGroup
	for i, config := range configs {
		maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=counter",
			ResourceVersion: created.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		watching.Go(func() {
			for ev := range w.ResultChan() {
				m, ok := ev.Object.(*corev1.ConfigMap)
				if !ok {
					t.Errorf("server %d: %+v", i, ev)
					return
				}
				seen[i] = append(seen[i], fmt.Sprint(ev.Type, m.ResourceVersion, m.Data))
				if ev.Type == watch.Deleted {
					return
				}
			}
		})
		work.Go(func() {
			for n := range count {
				again := wait.Backoff{Steps: 1000, Duration: time.Millisecond, Jitter: 1}
				err := retry.OnError(again, apierrors.IsConflict, func() error {
					m, err := maps.Get(ctx, "counter", metav1.GetOptions{})
					if err != nil {
						return err
					}
					if m.Data == nil {
						m.Data = map[string]string{}
					}
					m.Data[fmt.Sprintf("server-%d-%d", i, n)] = "x"
					_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					t.Errorf("server %d, update %d: %v", i, n, err)
				}
			}
		})
	}
	work.Wait()
	for i, config := range configs {
		m, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").Get(t.Context(), "counter",
			metav1.GetOptions{})
		if err != nil || len(m.Data) != 2*count {
			t.Errorf("server %d: %d of %d updates, %v", i, len(m.Data), 2*count, err)
		}
	}
	if err := kubernetes.NewForConfigOrDie(configs[1]).CoreV1().ConfigMaps("default").Delete(t.Context(), "counter",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	watching.Wait()
	if !reflect.DeepEqual(seen[0], seen[1]) {
		t.Errorf("kube-apiserver has sent %d events, Trellis %d:\n%v\n%v", len(seen[0]), len(seen[1]), seen[0], seen[1])
	}
}
