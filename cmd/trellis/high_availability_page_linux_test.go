package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// machineBlock matches a fenced block of docs/high-availability.md. The info string names the machines that run it.
var machineBlock = regexp.MustCompile("(?ms)^```sh (first|others|each|balancer)\n(.*?)^```$")

// machines of docs/high-availability.md. Each has a folder, and the addresses belong to one separate network.
const (
	firstMachine, secondMachine, thirdMachine = "10.1.0.11", "10.1.0.12", "10.1.0.13"
	balancerMachine                           = "10.1.0.10"
)

var machinesOf = map[string][]string{
	"first": {firstMachine}, "others": {secondMachine, thirdMachine}, "balancer": {balancerMachine},
	"each": {firstMachine, secondMachine, thirdMachine},
}

// TestHighAvailabilityPage runs all commands of docs/high-availability.md in a separate network namespace: three
// servers on three members of etcd behind haproxy. While one server is killed and all servers are restarted in turn, a
// client that retries loses no write, and an informer receives all objects. A token remains valid until the last step
// of the replacement of the keys.
func TestHighAvailabilityPage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes; skipped with -short")
	}
	etcd, found := storagetest.Program(t, "etcd")
	if !found {
		t.Skip("bin/peers/etcd is missing: run \"make oracle\" to build it")
	}
	if os.Getenv(ownNetwork) == "" {
		for _, program := range []string{"openssl", "haproxy"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("no program %s: install it", program)
			}
		}
		inOwnNetwork(t)
		return
	}
	page, err := os.ReadFile("../../docs/high-availability.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := machineBlock.FindAllStringSubmatch(string(page), -1)
	if fences := strings.Count(string(page), "\n```"); len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("%d fences, but %d blocks with a known language", fences, len(blocks))
	}
	m := newMachines(t, filepath.Dir(etcd))
	var load *pageLoad
	token := ""
	for _, b := range blocks {
		switch {
		case strings.Contains(b[2], "kill -9"):
			load = startLoad(t, m.path(firstMachine, "ha.kubeconfig"))
		case strings.Contains(b[2], "mkdir new-keys"):
			load.stop()
			token = m.run(firstMachine, "trellis kubectl create token default --duration 1h")
		case strings.Contains(b[2], "rm -r old-keys"):
			m.wantToken(token, true)
		}
		for _, machine := range machinesOf[b[1]] {
			m.copyFiles()
			m.run(machine, b[2])
		}
	}
	m.wantToken(token, false)
	if out := m.run(firstMachine, "trellis kubectl --kubeconfig ha.kubeconfig get configmap settled -o name"); out !=
		"configmap/settled" {
		t.Errorf("got %q", out)
	}
}

// pageMachines runs blocks of commands as on several machines. Each has a folder and a shell session.
type pageMachines struct {
	*testing.T
	runners map[string]*pageRunner
	copied  map[string]bool // paths of files that copyFiles has written
}

func newMachines(t *testing.T, programs string) *pageMachines {
	m := &pageMachines{T: t, runners: map[string]*pageRunner{}, copied: map[string]bool{}}
	for i, machine := range []string{firstMachine, secondMachine, thirdMachine, balancerMachine} {
		if err := addAddress("lo:"+strconv.Itoa(i+1), machine); err != nil {
			t.Fatal(err)
		}
		r := newPageRunner(t)
		r.env = append(r.env, "IP="+machine, "PATH="+programs+":"+kubectlDir(t)+":"+os.Getenv("PATH"))
		m.runners[machine] = r
	}
	t.Cleanup(func() { // haproxy runs in the background
		if pid, err := os.ReadFile(m.path(balancerMachine, "haproxy.pid")); err == nil {
			_ = exec.Command("kill", strings.Fields(string(pid))...).Run()
		}
		if t.Failed() {
			for machine := range m.runners {
				for _, name := range []string{"etcd.log", "trellis.log"} {
					data, _ := os.ReadFile(m.path(machine, name))
					t.Logf("%s of %s ends with:\n%s", name, machine, data[max(0, len(data)-logTail):])
				}
			}
		}
	})
	return m
}

func (m *pageMachines) path(machine, name string) string {
	return filepath.Join(m.runners[machine].dir, name)
}

// run runs commands on a machine, and returns the last line of their output. Later commands on this machine have the
// same variables.
func (m *pageMachines) run(machine, commands string) string {
	m.Helper()
	lines := strings.Split(strings.TrimSpace(m.runners[machine].run("set -a\n"+commands, false)), "\n")
	return lines[len(lines)-1]
}

// copyFiles copies the files that the page tells the reader to copy from the first machine to the others.
func (m *pageMachines) copyFiles() {
	m.Helper()
	if ca, err := os.ReadFile(m.path(firstMachine, ".trellis/pki/ca.crt")); err == nil {
		if err := os.WriteFile(m.path(balancerMachine, "trellis-ca.crt"), ca, 0o600); err != nil {
			m.Fatal(err)
		}
	}
	for _, machine := range machinesOf["others"] {
		for _, name := range []string{"etcd-pki", "keys.tar", "new-keys"} {
			from, to := m.path(firstMachine, name), m.path(machine, name)
			if _, err := os.Stat(from); err != nil || m.copied[to] {
				continue
			}
			m.copied[to] = true
			if out, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
				m.Fatalf("%v: %s", err, out)
			}
		}
		_ = os.Remove(m.path(machine, "etcd-pki/ca.key")) // the page does not copy it
	}
}

// wantToken checks whether all servers accept a token.
func (m *pageMachines) wantToken(token string, valid bool) {
	m.Helper()
	for _, machine := range machinesOf["each"] {
		config, err := clientcmd.BuildConfigFromFlags("", m.path(machine, ".trellis/admin.kubeconfig"))
		if err != nil {
			m.Fatal(err)
		}
		config.CertData, config.KeyData, config.BearerToken = nil, nil, token
		maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
		_, err = maps.List(m.Context(), metav1.ListOptions{})
		if valid && !apierrors.IsForbidden(err) || !valid && !apierrors.IsUnauthorized(err) {
			m.Errorf("%s: valid must be %v: %v", machine, valid, err)
		}
	}
}

// pageLoad is a client that creates ConfigMaps without a pause, and an informer of them.
type pageLoad struct {
	t       *testing.T
	client  kubernetes.Interface
	cancel  context.CancelFunc // stops the creation
	unwatch context.CancelFunc // stops the informer
	created chan int           // number of created objects
	watched cache.Store
}

func startLoad(t *testing.T, kubeconfig string) *pageLoad {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Timeout = -1, 0
	ctx, cancel := context.WithCancel(t.Context())
	watching, unwatch := context.WithCancel(t.Context())
	l := &pageLoad{t: t, client: kubernetes.NewForConfigOrDie(config), cancel: cancel, unwatch: unwatch,
		created: make(chan int, 1)}
	factory := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace("default"))
	l.watched = factory.Core().V1().ConfigMaps().Informer().GetStore()
	factory.Start(watching.Done())
	factory.WaitForCacheSync(watching.Done())
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := l.create(objectName(n)); err != nil {
				t.Errorf("create object %d: %v", n, err)
				break
			}
		}
		l.created <- n
	}()
	return l
}

func objectName(n int) string { return fmt.Sprintf("load-%d", n) }

// create creates a ConfigMap. It retries after a connection error, a 503 and a 504, whose outcome is unknown.
func (l *pageLoad) create(name string) error {
	for first := true; ; first = false {
		ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
		_, err := l.client.CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		cancel()
		status := apierrors.APIStatus(nil)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err) && !first:
			return nil
		case errors.As(err, &status) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err):
			return err
		case l.t.Context().Err() != nil:
			return err
		}
	}
}

// stop stops the client, and checks that all its objects exist and that the informer has received them.
func (l *pageLoad) stop() {
	l.t.Helper()
	defer l.unwatch()
	l.cancel()
	n := <-l.created
	found, err := l.client.CoreV1().ConfigMaps("default").List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	exists := map[string]bool{}
	for i := range found.Items {
		exists[found.Items[i].Name] = true
	}
	l.t.Logf("%d objects created", n)
	eventually(l.t, "the informer receives all objects",
		func() bool { return len(l.watched.ListKeys()) == len(exists) })
	for i := range n {
		if _, watched, _ := l.watched.GetByKey("default/" + objectName(i)); !exists[objectName(i)] || !watched {
			l.t.Errorf("%s: exists: %v, received by the informer: %v", objectName(i), exists[objectName(i)], watched)
		}
	}
}
