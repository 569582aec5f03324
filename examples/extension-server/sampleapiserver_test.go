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

// startSample runs k8s.io/sample-apiserver, with the certificate and as the account of w, at the address that w.register says.
func (w *world) startSample(etcd *storagetest.Etcd) *exec.Cmd {
	w.Helper()
	program, found := storagetest.Program(w, "sample-apiserver")
	if !found {
		w.Skip("there is no sample-apiserver: make peers builds it, see peers/README.md")
	}
	_, port, err := net.SplitHostPort(w.config.Address)
	w.must(err)
	log, err := os.Create(filepath.Join(w.ArtifactDir(), "sample-apiserver.log"))
	w.must(err)
	cmd := exec.Command(program, "--etcd-servers="+etcd.URL, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--tls-cert-file="+w.config.CertFile, "--tls-private-key-file="+w.config.KeyFile,
		"--kubeconfig="+w.config.Kubeconfig, "--authentication-kubeconfig="+w.config.Kubeconfig, "--authorization-kubeconfig="+w.config.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	w.must(cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return cmd
}

// AGG-001 AGG-003 AGG-027 AGG-034 EXT-018 EXT-019 EXT-027 EXT-028: upstream's sample, as it is, is an extension server of this one. It
// dies, and comes back.
func TestUpstreamsSample(t *testing.T) {
	s := testserver.Start(t, testserver.LocalServices("wardle/wardle-server"))
	w := prepare(t, s.Config)
	const reads = "get,list,watch"
	s.User("system:serviceaccount:wardle:apiserver",
		testserver.May(reads, "mutatingwebhookconfigurations.admissionregistration.k8s.io"), testserver.May(reads, "validatingwebhookconfigurations.admissionregistration.k8s.io"),
		testserver.May(reads, "mutatingadmissionpolicies.admissionregistration.k8s.io"), testserver.May(reads, "mutatingadmissionpolicybindings.admissionregistration.k8s.io"),
		testserver.May(reads, "validatingadmissionpolicies.admissionregistration.k8s.io"), testserver.May(reads, "validatingadmissionpolicybindings.admissionregistration.k8s.io"),
		testserver.May(reads, "flowschemas.flowcontrol.apiserver.k8s.io"), testserver.May(reads, "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io"))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.config.Address = l.Addr().String()
	w.must(l.Close())
	etcd := storagetest.StartEtcd(t)
	sample := w.startSample(etcd)
	w.register()

	jane := s.User("jane", testserver.May(all, "flunders.wardle.example.com"))
	flunders, ctx := w.flunders(jane), t.Context()
	list, err := flunders.List(ctx, metav1.ListOptions{})
	w.must(err)
	if len(list.Items) != 0 || list.GetKind() != "FlunderList" {
		t.Errorf("%v", list.Object)
	}
	events, err := flunders.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	w.must(err)
	defer events.Stop()
	for _, name := range []string{"kept", "gone"} {
		_, err := flunders.Create(ctx, flunder(name, map[string]any{"reference": "another"}), metav1.CreateOptions{})
		w.must(err)
	}
	w.must(flunders.Delete(ctx, "gone", metav1.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
	fischers := dynamic.NewForConfigOrDie(jane).Resource(group.WithResource("fischers"))
	if _, err := fischers.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("jane sees fischers: %v", err)
	}
	var said bytes.Buffer
	w.must(explain.PrintModelDescription([]string{"spec"}, &said, discovery.NewDiscoveryClientForConfigOrDie(jane).OpenAPIV3(), group.WithResource("flunders"), false, 0, "plaintext"))
	if text := said.String(); !strings.Contains(text, "KIND:       Flunder") || !strings.Contains(text, "referenceType\t<string>") {
		t.Error(text)
	}

	w.must(sample.Process.Kill())
	w.available("False")
	if _, err := flunders.Get(ctx, "kept", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while it is away: %v", err)
	}
	w.startSample(etcd)
	w.available("True")
	o, err := flunders.Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || o.GetUID() == "" {
		t.Errorf("after it is back: %v %v", o, err)
	}
}
