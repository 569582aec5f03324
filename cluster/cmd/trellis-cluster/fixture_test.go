package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// testTimeout is the maximum duration of each wait in a test.
const testTimeout = time.Minute

// fixture is an API server with simulated nodes, which report bound Pods as running.
type fixture struct {
	*testing.T
	kubernetes.Interface
	server *testserver.Server
}

// withoutNodeTaints disables the admission plugin that adds a taint to each new node. Only a controller could remove
// this taint.
var withoutNodeTaints = testserver.With(func(c *apiserver.Config) {
	c.Admission.Disable = append(c.Admission.Disable,
		"TaintNodesByCondition")
})

func newFixture(t *testing.T, nodes int, options ...testserver.Option) *fixture {
	t.Helper()
	s := testserver.Start(t, options...)
	s.Nodes(nodes)
	return &fixture{T: t, Interface: kubernetes.NewForConfigOrDie(s.Config), server: s}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// writeFile writes a temporary file and returns its path.
func (f *fixture) writeFile(name, text string) string {
	f.Helper()
	path := filepath.Join(f.TempDir(), name)
	f.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// startScheduler starts a kube-scheduler that does not listen on a port. If the configuration names no kubeconfig, the
// scheduler uses the administrator's kubeconfig.
func (f *fixture) startScheduler(configuration string, args ...string) *process {
	f.Helper()
	var c map[string]any
	f.must(yaml.Unmarshal([]byte(configuration), &c))
	if c["clientConnection"] == nil {
		configuration += "\nclientConnection: {kubeconfig: " + f.server.Kubeconfig + "}\n"
	}
	file := f.writeFile("config.yaml", configuration)
	return startProgram(f.T, "kube-scheduler", append([]string{"--config=" + file, "--secure-port=0"}, args...)...)
}

// writeKubeconfig writes a kubeconfig with the token of a service account and returns its path.
func (f *fixture) writeKubeconfig(token string) string {
	f.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["a"] = &clientcmdapi.Cluster{Server: f.server.Config.Host,
		CertificateAuthorityData: f.server.Config.CAData}
	c.AuthInfos["a"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["a"] = &clientcmdapi.Context{Cluster: "a", AuthInfo: "a"}
	c.CurrentContext = "a"
	path := filepath.Join(f.TempDir(), "kubeconfig")
	f.must(clientcmd.WriteToFile(*c, path))
	return path
}

// createPod prepares a Pod with the functions in change, and creates it in namespace default.
func (f *fixture) createPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	f.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "registry.k8s.io/pause:2.0"}}},
	}
	for _, c := range change {
		c(pod)
	}
	created, err := f.CoreV1().Pods(pod.Namespace).Create(f.Context(), pod, metav1.CreateOptions{})
	f.must(err)
	return created
}

func withScheduler(scheduler string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulerName = scheduler }
}

func withCPURequest(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func withNodeSelector(label, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{label: value} }
}

// watcher is the common part of typed and dynamic clients that waitFor needs.
type watcher interface {
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// waitFor watches objects until the function done returns true for one of them, and returns this object. If name is
// not "", waitFor watches only the object with this name. The watch starts with the existing objects.
func waitFor[T runtime.Object](f *fixture, of watcher, name string, done func(T) bool) T {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), testTimeout)
	defer cancel()
	var options metav1.ListOptions
	if name != "" {
		options.FieldSelector = "metadata.name=" + name
	}
	var last T
	events, err := of.Watch(ctx, options)
	f.must(err)
	defer events.Stop()
	for e := range events.ResultChan() {
		o, ok := e.Object.(T)
		if !ok {
			f.Fatalf("unexpected event with %T %v", e.Object, e.Object)
		}
		if last = o; e.Type != watch.Deleted && done(o) {
			return o
		}
	}
	f.Fatalf("%s: the condition is not met; last object: %+v", name, last)
	return last
}

// waitForDeletion waits until an object no longer exists. The function exists reports whether the object currently
// exists.
func waitForDeletion(f *fixture, of watcher, name string, exists func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), testTimeout)
	defer cancel()
	events, err := of.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	f.must(err)
	defer events.Stop()
	if !exists() {
		return
	}
	for e := range events.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	f.Fatalf("%s still exists", name)
}

// waitForBinding waits until a Pod of namespace default is bound to a node, and returns the Pod.
func (f *fixture) waitForBinding(name string) *corev1.Pod {
	f.Helper()
	return waitFor(f, f.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
}

// waitForUnscheduled waits until the condition PodScheduled of a Pod is False with the given reason, and returns the
// message of the condition.
func (f *fixture) waitForUnscheduled(name, reason string) (message string) {
	f.Helper()
	p := waitFor(f, f.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == reason {
				message = c.Message
				return true
			}
		}
		return false
	})
	if p.Spec.NodeName != "" {
		f.Errorf("%s is bound to %s, want no node", name, p.Spec.NodeName)
	}
	return message
}

// waitForEvent waits for an Event with the given reason about a Pod, and returns it.
func (f *fixture) waitForEvent(pod, reason string) *corev1.Event {
	f.Helper()
	return waitFor(f, f.CoreV1().Events("default"), "", func(e *corev1.Event) bool {
		return e.InvolvedObject.Name == pod && e.Reason == reason
	})
}

// updateNode changes the metadata, spec and status of a node with the function change.
func (f *fixture) updateNode(name string, change func(*corev1.Node)) {
	f.Helper()
	nodes := f.CoreV1().Nodes()
	n, err := nodes.Get(f.Context(), name, metav1.GetOptions{})
	f.must(err)
	status := n.DeepCopy()
	change(n)
	n, err = nodes.Update(f.Context(), n, metav1.UpdateOptions{})
	f.must(err)
	change(status)
	n.Status = status.Status
	_, err = nodes.UpdateStatus(f.Context(), n, metav1.UpdateOptions{})
	f.must(err)
}

// insecureConfig returns a copy of the administrator's client configuration with another host. Its clients do not
// verify the certificate of this host.
func (f *fixture) insecureConfig(host string) *rest.Config {
	c := rest.CopyConfig(f.server.Config)
	c.Host, c.TLSClientConfig.Insecure, c.TLSClientConfig.CAData, c.TLSClientConfig.CAFile = host, true, nil, ""
	return c
}
