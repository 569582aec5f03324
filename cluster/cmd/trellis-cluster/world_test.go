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

// patience bounds what a test waits for. It is none of what is tested.
const patience = time.Minute

// world is an API server with simulated nodes, on which Pods run once they are bound.
type world struct {
	*testing.T
	kubernetes.Interface
	server *testserver.Server
}

// ready nodes have no taint that a controller would have to take off first.
var ready = testserver.With(func(c *apiserver.Config) { c.Admission.Disable = append(c.Admission.Disable, "TaintNodesByCondition") })

func newWorld(t *testing.T, nodes int, options ...testserver.Option) *world {
	t.Helper()
	s := testserver.Start(t, options...)
	s.Nodes(nodes)
	return &world{T: t, Interface: kubernetes.NewForConfigOrDie(s.Config), server: s}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// write writes a file, and returns its path.
func (w *world) write(name, text string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), name)
	w.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// scheduler starts a kube-scheduler with a configuration, as the administrator or by the kubeconfig that it names. It serves no port.
func (w *world) scheduler(configuration string, args ...string) *process {
	w.Helper()
	var c map[string]any
	w.must(yaml.Unmarshal([]byte(configuration), &c))
	if c["clientConnection"] == nil {
		configuration += "\nclientConnection: {kubeconfig: " + w.server.Kubeconfig + "}\n"
	}
	file := w.write("config.yaml", configuration)
	return begin(w.T, "kube-scheduler", append([]string{"--config=" + file, "--secure-port=0"}, args...)...)
}

// kubeconfig is a file by which a service account comes.
func (w *world) kubeconfig(token string) string {
	w.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["a"] = &clientcmdapi.Cluster{Server: w.server.Config.Host, CertificateAuthorityData: w.server.Config.CAData}
	c.AuthInfos["a"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["a"] = &clientcmdapi.Context{Cluster: "a", AuthInfo: "a"}
	c.CurrentContext = "a"
	path := filepath.Join(w.TempDir(), "kubeconfig")
	w.must(clientcmd.WriteToFile(*c, path))
	return path
}

// pod makes a Pod that is changed before.
func (w *world) pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "registry.k8s.io/pause:2.0"}}},
	}
	for _, c := range change {
		c(pod)
	}
	made, err := w.CoreV1().Pods(pod.Namespace).Create(w.Context(), pod, metav1.CreateOptions{})
	w.must(err)
	return made
}

func by(scheduler string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulerName = scheduler }
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func on(label, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{label: value} }
}

// watcher is what a typed client has.
type watcher interface {
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// until returns an object once done is true of it. A watch begins with what there is.
func until[T runtime.Object](w *world, of watcher, name string, done func(T) bool) T {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var options metav1.ListOptions
	if name != "" {
		options.FieldSelector = "metadata.name=" + name
	}
	var last T
	events, err := of.Watch(ctx, options)
	w.must(err)
	defer events.Stop()
	for e := range events.ResultChan() {
		o, is := e.Object.(T)
		if !is {
			w.Fatalf("%T %v", e.Object, e.Object)
		}
		if last = o; e.Type != watch.Deleted && done(o) {
			return o
		}
	}
	w.Fatalf("%s: in vain; it is %+v", name, last)
	return last
}

// gone returns once an object is not there.
func gone(w *world, of watcher, name string, there func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	events, err := of.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	w.must(err)
	defer events.Stop()
	if !there() {
		return
	}
	for e := range events.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	w.Fatalf("%s is still there", name)
}

// bound returns a Pod of namespace default once it has a node.
func (w *world) bound(name string) *corev1.Pod {
	w.Helper()
	return until(w, w.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
}

// unplaced returns the message of the condition PodScheduled of a Pod, once that is False for a reason.
func (w *world) unplaced(name, reason string) (message string) {
	w.Helper()
	p := until(w, w.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == reason {
				message = c.Message
				return true
			}
		}
		return false
	})
	if p.Spec.NodeName != "" {
		w.Errorf("%s is on %s", name, p.Spec.NodeName)
	}
	return message
}

// event returns one about a Pod, once it is there.
func (w *world) event(pod, reason string) *corev1.Event {
	w.Helper()
	return until(w, w.CoreV1().Events("default"), "", func(e *corev1.Event) bool {
		return e.InvolvedObject.Name == pod && e.Reason == reason
	})
}

// node changes a node.
func (w *world) node(name string, change func(*corev1.Node)) {
	w.Helper()
	nodes := w.CoreV1().Nodes()
	n, err := nodes.Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	status := n.DeepCopy()
	change(n)
	n, err = nodes.Update(w.Context(), n, metav1.UpdateOptions{})
	w.must(err)
	change(status)
	n.Status = status.Status
	_, err = nodes.UpdateStatus(w.Context(), n, metav1.UpdateOptions{})
	w.must(err)
}

// insecurely is the administrator's configuration for a server that nothing is known of.
func (w *world) insecurely(host string) *rest.Config {
	c := rest.CopyConfig(w.server.Config)
	c.Host, c.TLSClientConfig.Insecure, c.TLSClientConfig.CAData, c.TLSClientConfig.CAFile = host, true, nil, ""
	return c
}
