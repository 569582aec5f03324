package main

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/fixture/kubeapiserver"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// startKubeAPIServer runs kube-apiserver with a separate etcd until the end of the test. It returns the configuration
// of an administrator's client.
func startKubeAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	s := kubeapiserver.New(t, storagetest.StartEtcd(t))
	url := s.Start("--service-cluster-ip-range=10.0.0.0/24", "--client-ca-file="+s.File("ca.crt"),
		"--requestheader-client-ca-file="+s.File("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+s.File("front-proxy-client.crt"),
		"--proxy-client-key-file="+s.File("front-proxy-client.key"))
	return &rest.Config{Host: url, BearerToken: kubeapiserver.Token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// TestBehindKubeAPIServer checks that the example works as an extension server of kube-apiserver. AGG-003, EXT-019
func TestBehindKubeAPIServer(t *testing.T) {
	admin := startKubeAPIServer(t)
	e := prepare(t, admin)
	e.start()
	e.register()
	jane := rest.CopyConfig(admin)
	jane.Impersonate = rest.ImpersonationConfig{UserName: "jane"}
	if status, text := e.get(jane, "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders",
		"application/json"); status != http.StatusForbidden {
		t.Errorf("%d %s", status, text)
	}
	flunders, ctx := e.flunders(admin), t.Context()
	_, err := flunders.Create(ctx, manifest(t, "manifests/flunder.yaml")[0], metav1.CreateOptions{})
	e.must(err)
	o, err := flunders.Get(ctx, "my-first-flunder", metav1.GetOptions{})
	e.must(err)
	if o.GetUID() == "" || o.GetManagedFields() == nil {
		t.Errorf("%v", o.Object)
	}
	e.must(flunders.Delete(ctx, o.GetName(), metav1.DeleteOptions{}))
	list, err := flunders.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%v %v", list, err)
	}
}
