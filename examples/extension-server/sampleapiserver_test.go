package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	explain "k8s.io/kubectl/pkg/explain/v2"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
	"github.com/trellis-k8s/trellis/testserver"
)

// startSample runs k8s.io/sample-apiserver at the address e.config.Address. It uses the certificate and the service
// account of e.
func (e *env) startSample(etcd *storagetest.Etcd) *exec.Cmd {
	e.Helper()
	program, found := storagetest.Program(e, "sample-apiserver")
	if !found {
		e.Skip("sample-apiserver is not built: run make peers, see peers/README.md")
	}
	_, port, err := net.SplitHostPort(e.config.Address)
	e.must(err)
	log, err := os.Create(filepath.Join(e.ArtifactDir(), "sample-apiserver.log"))
	e.must(err)
	cmd := exec.Command(program, "--etcd-servers="+etcd.URL, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--tls-cert-file="+e.config.CertFile, "--tls-private-key-file="+e.config.KeyFile,
		"--kubeconfig="+e.config.Kubeconfig, "--authentication-kubeconfig="+
			e.config.Kubeconfig, "--authorization-kubeconfig="+e.config.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	e.must(cmd.Start())
	e.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return cmd
}

// TestSampleAPIServer checks that upstream's unmodified sample-apiserver works as an extension server, also after it
// is killed and restarted. AGG-001 AGG-003 AGG-027 AGG-034 EXT-018 EXT-019 EXT-027 EXT-028
func TestSampleAPIServer(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	e := prepare(t, s.Config)
	const reads = "get,list,watch"
	s.User("system:serviceaccount:wardle:apiserver",
		testserver.May(reads, "mutatingwebhookconfigurations.admissionregistration.k8s.io"), testserver.May(reads,
			"validatingwebhookconfigurations.admissionregistration.k8s.io"),
		testserver.May(reads, "mutatingadmissionpolicies.admissionregistration.k8s.io"), testserver.May(reads,
			"mutatingadmissionpolicybindings.admissionregistration.k8s.io"),
		testserver.May(reads, "validatingadmissionpolicies.admissionregistration.k8s.io"), testserver.May(reads,
			"validatingadmissionpolicybindings.admissionregistration.k8s.io"),
		testserver.May(reads, "flowschemas.flowcontrol.apiserver.k8s.io"), testserver.May(reads,
			"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	e.must(err)
	e.config.Address = l.Addr().String()
	e.must(l.Close())
	etcd := storagetest.StartEtcd(t)
	sample := e.startSample(etcd)
	e.register()

	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"))
	flunders, ctx := e.flunders(jane), t.Context()
	list, err := flunders.List(ctx, metav1.ListOptions{})
	e.must(err)
	if len(list.Items) != 0 || list.GetKind() != "FlunderList" {
		t.Errorf("%v", list.Object)
	}
	events, err := flunders.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	e.must(err)
	defer events.Stop()
	for _, name := range []string{"kept", "deleted"} {
		_, err := flunders.Create(ctx, flunder(name, map[string]any{"reference": "another"}), metav1.CreateOptions{})
		e.must(err)
	}
	e.must(flunders.Delete(ctx, "deleted", metav1.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
	fischers := dynamic.NewForConfigOrDie(jane).Resource(group.WithResource("fischers"))
	if _, err := fischers.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("jane lists fischers: %v", err)
	}
	var explained bytes.Buffer
	e.must(explain.PrintModelDescription([]string{"spec"}, &explained,
		discovery.NewDiscoveryClientForConfigOrDie(jane).OpenAPIV3(), group.WithResource("flunders"), false, 0,
		"plaintext"))
	if text := explained.String(); !strings.Contains(text, "KIND:       Flunder") ||
		!strings.Contains(text, "referenceType\t<string>") {
		t.Error(text)
	}

	e.must(sample.Process.Kill())
	e.available("False")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while it is unavailable: %v", err)
	}
	e.startSample(etcd)
	e.available("True")
	o, err := flunders.Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || o.GetUID() == "" {
		t.Errorf("after the restart: %v %v", o, err)
	}
}
