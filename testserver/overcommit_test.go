package testserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
	"github.com/trellis-k8s/trellis/testserver"
)

const (
	overcommitRounds = 50
	podsPerScheduler = 6 // Pods of each scheduler in a round, equal to the capacity of all nodes
	nodeCount        = 3
	nodeCapacity     = podsPerScheduler / nodeCount
)

// TestSchedulersNeverOvercommit checks that two unmodified kube-schedulers never bind more Pods to a node than its
// capacity permits. Each Pod whose binding is rejected must be scheduled again. The schedulers get no events about
// bound Pods until both have tried to bind all their Pods (issue 16).
func TestSchedulersNeverOvercommit(t *testing.T) {
	program, found := storagetest.Program(t, "kube-scheduler")
	if !found {
		t.Skip("there is no kube-scheduler to test with: make peers builds it, see peers/README.md")
	}
	s := testserver.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	admin := kubernetes.NewForConfigOrDie(s.Config)
	for i := range nodeCount {
		capacity := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(nodeCapacity, resource.DecimalSI),
			corev1.ResourcePods: resource.MustParse("110")}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)},
			Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity}}
		made, err := admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Spec.Taints = nil // remove the taint not-ready
		if _, err := admin.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r := newRelay(t, s.Config)
	for _, name := range []string{"one", "two"} {
		runScheduler(t, program, name, r.url)
	}
	for range 2 {
		await(ctx, t, r.listening)
	}
	for round := range overcommitRounds {
		tried := r.hold(fmt.Sprintf("-%d-", round), 2*podsPerScheduler)
		for i := range podsPerScheduler {
			for _, scheduler := range []string{"one", "two"} {
				place(ctx, t, admin, fmt.Sprintf("%s-%d-%d", scheduler, round, i), scheduler)
			}
		}
		await(ctx, t, tried)
		r.release()
		full(ctx, t, admin, round%10 == 0)
		if err := admin.CoreV1().Pods("default").DeleteCollection(ctx,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused < overcommitRounds {
		t.Errorf("got %d rejected bindings in %d rounds, want at least one for each round", r.refused, overcommitRounds)
	}
}

// place creates a Pod that requests one CPU.
func place(ctx context.Context, t *testing.T, admin kubernetes.Interface, name, scheduler string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			},
		}}}}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func await(ctx context.Context, t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}

// full checks that the Pods of no node exceed its capacity. If wait is true, it waits until all nodes are full.
func full(ctx context.Context, t *testing.T, admin kubernetes.Interface, wait bool) {
	t.Helper()
	for {
		pods, err := admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		on, bound := map[string]int{}, 0
		for _, p := range pods.Items {
			if p.Spec.NodeName != "" {
				on[p.Spec.NodeName]++
				bound++
			}
		}
		for node, n := range on {
			if n > nodeCapacity {
				t.Fatalf("%s has capacity for %d Pods and has %d", node, nodeCapacity, n)
			}
		}
		if !wait || bound == podsPerScheduler {
			return
		}
		w, err := admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: pods.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		<-w.ResultChan()
		w.Stop()
	}
}

// runScheduler runs a kube-scheduler until the end of the test.
func runScheduler(t *testing.T, program, name, server string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	for file, text := range map[string]string{
		kubeconfig: "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: '" +
			server + "'}}]\ncontexts: [{name: c, context: {cluster: c}}]\n",
		config: "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: " +
			"{leaderElect: false}\npodMaxBackoffSeconds: 1\nprofiles: [{schedulerName: " + name + "}]\n" +
			"clientConnection: {kubeconfig: '" + kubeconfig +
			"', contentType: application/json, acceptContentTypes: application/json, qps: 1000, burst: 1000}\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", config, "--secure-port", "0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
}

// relay is a reverse proxy between the schedulers and the server. After a call of hold, it delays events about
// modified Pods. It always forwards events about created and deleted Pods.
type relay struct {
	*httputil.ReverseProxy
	url string

	listening chan struct{} // receives a value when a scheduler starts a watch of Pods

	mu      sync.Mutex
	flushed *sync.Cond
	gate    chan struct{} // closed to release held events; nil while the relay holds none
	held    int           // number of held events
	round   string        // part of the names of this round's Pods
	tried   map[string]bool
	wanted  int
	done    chan struct{} // closed when binding has been tried for wanted Pods
	refused int
}

func newRelay(t *testing.T, to *rest.Config) *relay {
	t.Helper()
	transport, err := rest.TransportFor(to)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(to.Host)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ReverseProxy: httputil.NewSingleHostReverseProxy(host), tried: map[string]bool{},
		listening: make(chan struct{}, 16)}
	r.Transport, r.FlushInterval, r.ModifyResponse = transport, -1, r.modifyResponse
	r.flushed = sync.NewCond(&r.mu)
	server := httptest.NewServer(r)
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// hold starts to delay events about modified Pods of a round. The returned channel is closed after the schedulers
// have tried to bind the given number of Pods.
func (r *relay) hold(round string, pods int) (tried <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate, r.done = make(chan struct{}), make(chan struct{})
	r.round, r.wanted, r.tried = round, pods, map[string]bool{}
	return r.done
}

// release forwards all delayed events. It returns after they have been written.
func (r *relay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.gate)
	for r.gate = nil; r.held > 0; {
		r.flushed.Wait()
	}
}

func (r *relay) modifyResponse(resp *http.Response) error {
	name, binding := strings.CutSuffix(resp.Request.URL.Path, "/binding")
	switch {
	case binding:
		r.mu.Lock()
		defer r.mu.Unlock()
		if !strings.Contains(name, r.round) {
			return nil // a late request of an earlier round
		}
		if resp.StatusCode == http.StatusConflict {
			r.refused++
		}
		if r.tried[name] = true; len(r.tried) == r.wanted && r.done != nil {
			close(r.done)
			r.done = nil
		}
	case name == "/api/v1/pods" && resp.Request.URL.Query().Has("watch"):
		from := resp.Body
		out, in := io.Pipe()
		resp.Body = &stream{out, from}
		go r.pass(from, in)
		r.listening <- struct{}{}
	}
	return nil
}

// stream is the response body for a client. Its method Close also closes the body of the original response.
type stream struct {
	io.ReadCloser
	from io.Closer
}

func (s *stream) Close() error {
	_ = s.from.Close()
	return s.ReadCloser.Close()
}

// pass forwards the events of a watch.
func (r *relay) pass(from io.Reader, to *io.PipeWriter) {
	events := make(chan []byte)
	go func() {
		defer close(events)
		for lines := bufio.NewReader(from); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			events <- line
		}
	}()
	defer to.Close()
	var held [][]byte
	var gate chan struct{}
	flush := func() {
		_, _ = to.Write(bytes.Join(held, nil)) // fails only if the client has disconnected
		r.count(-len(held))
		held, gate = nil, nil
	}
	defer flush()
	for {
		select {
		case <-gate:
			flush()
		case e, more := <-events:
			if !more {
				return
			}
			if now := r.gateFor(e); now != nil {
				gate, held = now, append(held, e)
				continue
			}
			select {
			case <-gate:
				flush() // preserves the order
			default:
			}
			_, _ = to.Write(e)
		}
	}
}

// gateFor returns a channel if an event must be delayed until the channel is closed. It returns nil if the event must
// be forwarded immediately.
func (r *relay) gateFor(event []byte) chan struct{} {
	var e struct {
		Type   string
		Object metav1.PartialObjectMetadata
	}
	_ = json.Unmarshal(event, &e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Type != "MODIFIED" || r.gate == nil || !strings.Contains(e.Object.Name, r.round) {
		return nil
	}
	r.held++
	return r.gate
}

func (r *relay) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += n
	r.flushed.Broadcast()
}
