package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

const (
	binderCount = 64
	bindRounds  = 12
	nodeCPU     = 3000 // CPU capacity of each node in millicores
	nodePods    = 9
	nodeCount   = 3
)

// TestBindingsNeverOvercommit checks that no binding overcommits a node (issue 16). 64 writers bind, create,
// resize, terminate and delete Pods on a few nodes.
func TestBindingsNeverOvercommit(t *testing.T) {
	f := newFixture(t)
	f.runBinders(f)
}

// TestBindingsOfTwoServersNeverOvercommit checks that the writers of two servers together do not overcommit a node
// (issue 16).
func TestBindingsOfTwoServersNeverOvercommit(t *testing.T) {
	log := storagetest.NewLog(2)
	f := newFixtureOn(t, log.Open())
	f.runBinders(f, f.openSecondServer(log.Open()))
}

// runBinders distributes the writers over the servers, runs them, and checks the resulting history.
func (f *fixture) runBinders(servers ...*fixture) {
	for i := range nodeCount {
		f.createNode(fmt.Sprintf("n%d", i), fmt.Sprintf(`"cpu":"%dm","pods":"%d"`, nodeCPU, nodePods))
	}
	var wg sync.WaitGroup
	var bound, rejected atomic.Int32
	for i := range binderCount {
		server := servers[i%len(servers)]
		wg.Go(func() {
			b := binder{fixture: server, name: fmt.Sprintf("w%d", i), r: rand.New(rand.NewPCG(16, uint64(i))),
				bound: &bound, rejected: &rejected}
			for range bindRounds {
				if err := b.step(); err != nil {
					f.Errorf("%s: %v", b.name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if bound.Load() == 0 || rejected.Load() == 0 {
		f.Errorf("got %d bindings and %d rejected ones, want some of both", bound.Load(), rejected.Load())
	}
	newCapacityModel().check(f, f.eventsAfter(f.start))
}

// binder is one of the writers. It only deletes and changes Pods that it has created.
type binder struct {
	*fixture
	name            string
	r               *rand.Rand
	created         int
	pods            []string
	bound, rejected *atomic.Int32
}

// step makes one random write.
func (b *binder) step() error {
	switch n := b.r.IntN(10); {
	case n < 6:
		return b.createPodOnNode(n < 5)
	case len(b.pods) == 0:
		return nil
	case n == 6:
		_, _, err := b.Patch(b.ctx, subresource(b.podTarget(b.randomPod()), "resize"),
			verb.Patch{Type: mergePatch, Data: []byte(`{"spec":{"containers":[` + b.randomContainer() + `]}}`)},
			b.quietCaller())
		return err
	case n == 7:
		_, _, err := b.Patch(b.ctx, subresource(b.podTarget(b.randomPod()), "status"),
			verb.Patch{Type: mergePatch, Data: []byte(`{"status":{"phase":"` +
				[]string{"Succeeded", "Running"}[b.r.IntN(2)] + `"}}`)}, b.quietCaller())
		return err
	}
	return b.remove(b.randomPod())
}

// createPodOnNode creates a Pod on a random node. If bind is true, it creates the Pod without a node and then binds
// it.
func (b *binder) createPodOnNode(bind bool) error {
	b.created++
	pod, node, spec := fmt.Sprintf("%s-%d", b.name, b.created), fmt.Sprintf("n%d", b.r.IntN(nodeCount)), ""
	if !bind {
		spec = `,"nodeName":"` + node + `"`
	}
	at := b.podTarget("")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[%s]%s}}`, pod,
		b.randomContainer(), spec)
	if _, err := b.Create(b.ctx, at, verb.Body{Tree: decode(b, text)}, b.quietCaller()); err != nil {
		return err
	}
	b.pods = append(b.pods, pod)
	if !bind {
		return nil
	}
	binding := fmt.Sprintf(`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q},"target":{"name":%q}}`, pod,
		node)
	_, _, err := b.PostSubresource(b.ctx, subresource(b.podTarget(pod), "binding"), verb.Body{Tree: decode(b, binding)},
		b.quietCaller())
	switch {
	case err == nil:
		b.bound.Add(1)
		return nil
	case apierrors.IsConflict(err) && strings.Contains(err.Error(), "has insufficient capacity"):
		b.rejected.Add(1)
		return b.remove(pod)
	}
	return err
}

func (b *binder) remove(pod string) error {
	b.pods = slices.DeleteFunc(b.pods, func(p string) bool { return p == pod })
	_, _, err := b.Delete(b.ctx, b.podTarget(pod), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))},
		b.quietCaller())
	return err
}

func (b *binder) randomPod() string { return b.pods[b.r.IntN(len(b.pods))] }

func (b *binder) podTarget(pod string) verb.Target { return b.fixture.pods(pod) }

// quietCaller returns the caller without its Warn function. That function appends to f.warnings, which is not safe
// for concurrent use.
func (b *binder) quietCaller() verb.Caller {
	c := b.caller
	c.Warn = nil
	return c
}

// randomContainer returns a container that requests a random amount of CPU, and sometimes a host port.
func (b *binder) randomContainer() string {
	port := ""
	if b.r.IntN(4) == 0 {
		port = fmt.Sprintf(`,"ports":[{"containerPort":80,"hostPort":%d}]`, 8000+b.r.IntN(3))
	}
	return fmt.Sprintf(`{"name":"c","image":"i","resources":{"requests":{"cpu":"%dm"}}%s}`, 100+b.r.IntN(800), port)
}

// capacityModel computes the usage of the nodes. It uses only the history of the Pods.
type capacityModel struct{ pods map[string]*corev1.Pod }

func newCapacityModel() *capacityModel { return &capacityModel{map[string]*corev1.Pod{}} }

// check applies the history commit by commit. After each commit it checks the nodes of the Pods that the commit has
// bound.
func (m *capacityModel) check(t testing.TB, history []*storage.Event) {
	t.Helper()
	seen := 0
	for len(history) > 0 {
		n := 1
		for n < len(history) && history[n].Revision == history[0].Revision {
			n++
		}
		var bound []*corev1.Pod
		for _, e := range history[:n] {
			if strings.HasPrefix(e.Key, "/registry/pods/") {
				bound = append(bound, m.apply(t, e)...)
			}
		}
		for _, pod := range bound {
			seen++
			m.checkNode(t, history[0].Revision, pod)
		}
		history = history[n:]
	}
	if seen == 0 {
		t.Error("the history has no binding")
	}
}

// apply applies one event to the model. It returns the Pod if the event is a binding.
func (m *capacityModel) apply(t testing.TB, e *storage.Event) (bound []*corev1.Pod) {
	t.Helper()
	was := m.pods[e.Key]
	delete(m.pods, e.Key)
	if e.Record == nil {
		return nil
	}
	is := new(corev1.Pod)
	if err := json.Unmarshal(e.Record.Value, is); err != nil {
		t.Fatal(err)
	}
	m.pods[e.Key] = is
	if was != nil && was.Spec.NodeName == "" && is.Spec.NodeName != "" {
		bound = append(bound, is)
	}
	return bound
}

// checkNode checks that the node of a bound Pod is not overcommitted. revision is the revision of the binding.
func (m *capacityModel) checkNode(t testing.TB, revision int64, bound *corev1.Pod) {
	t.Helper()
	var cpu int64
	count, ports := 0, map[int32]int{}
	for _, p := range m.pods {
		if p.Spec.NodeName != bound.Spec.NodeName || p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		count++
		cpu += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		for _, port := range p.Spec.Containers[0].Ports {
			ports[port.HostPort]++
		}
	}
	if cpu > nodeCPU || count > nodePods {
		t.Errorf("revision %d: %s was bound to %s, which then has %d Pods that request %dm", revision, bound.Name,
			bound.Spec.NodeName, count, cpu)
	}
	for _, port := range bound.Spec.Containers[0].Ports {
		if ports[port.HostPort] > 1 {
			t.Errorf("revision %d: %s was bound to %s, where %d Pods then use port %d", revision, bound.Name,
				bound.Spec.NodeName, ports[port.HostPort], port.HostPort)
		}
	}
}
