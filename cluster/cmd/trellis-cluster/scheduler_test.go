package main

import (
	"debug/elf"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
)

// mySchedulerConfig is the configuration in the documentation, without its version.
const mySchedulerConfig = `
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: my-scheduler
leaderElection:
  leaderElect: false
`

// applyDocument applies a file of the documentation about schedulers.
func (f *fixture) applyDocument(name string) {
	f.Helper()
	f.must(manifests.Apply(f.Context(), f.server.Config, []string{document(f.T, "12-schedulers/"+name)}, io.Discard))
}

// TestThreePods checks that each of the documentation's three Pods is pending until the scheduler that it names runs.
// That scheduler then binds the Pod and records an Event with the node. SCD-001 SCD-002 SCD-014 SCD-015 SCD-016 SCD-030
// SCD-031 SCD-032 SCD-033 SCD-034 SCD-035 SCD-036 SCD-037 SCD-039
func TestThreePods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2, withoutNodeTaints)
	for _, pod := range []string{"pod1.yaml", "pod2.yaml", "pod3.yaml"} {
		f.applyDocument(pod)
	}
	startProgram(t, "trellis-cluster", "scheduler", "--kubeconfig="+f.server.Kubeconfig, "--secure-port=0")
	checkScheduled := func(name, scheduler string) {
		t.Helper()
		pod := f.waitForBinding(name)
		e := f.waitForEvent(name, "Scheduled")
		output := fmt.Sprintf("Successfully assigned default/%s to %s", name, pod.Spec.NodeName)
		if e.Type != corev1.EventTypeNormal || e.Message != output || e.ReportingController != scheduler {
			t.Errorf("%s: %+v", name, e)
		}
		waitFor(f, f.CoreV1().Pods("default"), name,
			func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	}
	checkScheduled("no-annotation", "default-scheduler")
	checkScheduled("annotation-default-scheduler", "default-scheduler")
	third, err := f.CoreV1().Pods("default").Get(t.Context(), "annotation-second-scheduler", metav1.GetOptions{})
	f.must(err)
	if third.Spec.NodeName != "" || third.Status.Phase != corev1.PodPending || len(third.Status.Conditions) > 0 {
		t.Errorf("got Pod %+v, want a pending one without conditions", third)
	}

	f.applyScheduler()
	m, err := f.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "my-scheduler-config", metav1.GetOptions{})
	f.must(err)
	second := f.startScheduler(m.Data["my-scheduler-config.yaml"])
	checkScheduled("annotation-second-scheduler", "my-scheduler")
	if len(configVersions()) == 1 {
		return
	}
	second.waitForOutput(1, "Warning: kubescheduler.config.k8s.io/v1beta2",
		"write apiVersion: kubescheduler.config.k8s.io/v1")
}

// applyScheduler applies the documentation's manifest of a second scheduler. If the tests run upstream's
// kube-scheduler, it changes the version of the configuration, because upstream has removed that version.
func (f *fixture) applyScheduler() {
	f.Helper()
	manifest, err := os.ReadFile(document(f.T, "12-schedulers/my-scheduler.yaml"))
	f.must(err)
	if !strings.Contains(string(manifest), "kubescheduler.config.k8s.io/v1beta2") {
		f.Fatal("the manifest does not have a configuration of v1beta2")
	}
	text := string(manifest)
	if len(configVersions()) == 1 {
		text = strings.ReplaceAll(text, "v1beta2", "v1")
	}
	f.must(manifests.Apply(f.Context(), f.server.Config, []string{f.writeFile("my-scheduler.yaml", text)}, io.Discard))
}

// configVersions returns the versions of the configuration to test. Upstream's kube-scheduler supports only v1.
func configVersions() []string {
	if os.Getenv("TEST_PEERS") != "" {
		return []string{"v1"}
	}
	return []string{"v1beta2", "v1beta3", "v1"}
}

// TestConfigurationVersions checks that a second scheduler accepts a configuration of each version, and does not
// schedule Pods of other schedulers. SCD-014 SCD-015 SCD-034
func TestConfigurationVersions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, withoutNodeTaints)
	for _, version := range configVersions() {
		p := f.startScheduler("apiVersion: kubescheduler.config.k8s.io/" + version + mySchedulerConfig)
		f.createPod("others-" + version)
		f.createPod(version, withScheduler("my-scheduler"))
		f.waitForBinding(version)
		if warned := strings.Contains(p.output(), "Warning: "); warned != (version != "v1") {
			t.Errorf("%s: got a warning: %v, want %v", version, warned, !warned)
		}
		pod, err := f.CoreV1().Pods("default").Get(t.Context(), "others-"+version, metav1.GetOptions{})
		f.must(err)
		if pod.Spec.NodeName != "" || len(pod.Status.Conditions) > 0 {
			t.Errorf("%s: %+v", version, pod.Status)
		}
		if code := p.terminate(); code != 0 && code != 1 { // 1 is upstream's exit code without leader election
			t.Errorf("%s: exit code %d", version, code)
		}
	}
}

// TestStaticFile checks that trellis-cluster is one statically linked file. Under the name kube-scheduler, this file
// must behave like kube-scheduler. SCD-004 SCD-005
func TestStaticFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kube-scheduler")
	build := exec.Command("go", "build", "-trimpath", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the program requires a dynamic linker")
		}
	}
	help := exec.Command(file, "--help")
	help.Dir, help.Env = t.TempDir(), []string{}
	if out, err := help.CombinedOutput(); err != nil || !strings.Contains(string(out), "kube-scheduler [flags]") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSchedulerServing checks the flags of kube-scheduler for its HTTPS port. The port must serve health to anonymous
// clients. It must serve metrics and the configuration only to authorized clients. SCD-019 SCD-017 SCD-044
func TestSchedulerServing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, withoutNodeTaints)
	port := freePort(t)
	kubeconfig := f.server.Kubeconfig
	p := startProgram(t, "kube-scheduler", "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--secure-port="+port, "--bind-address=127.0.0.1", "-v=2")
	f.createPod("a")
	f.waitForBinding("a")
	// Until the scheduler has read the client CA from the API server, it treats all clients as anonymous.
	p.waitForOutput(1, "Loaded client CA", "client-ca-file", `"kubernetes"`)
	admin := f.insecureConfig("https://127.0.0.1:" + port)
	for path, want := range map[string]struct {
		anonymous int
		body      string
	}{
		"/healthz": {http.StatusOK, "ok"}, "/livez": {http.StatusOK, "ok"}, "/readyz": {http.StatusOK, "ok"},
		"/metrics": {http.StatusForbidden, "scheduler_schedule_attempts_total"}, "/configz": {http.StatusForbidden,
			`"schedulerName":"default-scheduler"`},
	} {
		if code, _ := get(t, rest.AnonymousClientConfig(admin), path); code != want.anonymous {
			t.Errorf("GET %s as anonymous: got %d, want %d", path, code, want.anonymous)
		}
		if code, body := get(t, admin, path); code != http.StatusOK || !strings.Contains(body, want.body) {
			t.Errorf("GET %s: got %d %s", path, code, body)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func get(t *testing.T, c *rest.Config, path string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(c.Host + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestProfiles checks that one scheduler can have several profiles with different plugins. SCD-042
func TestProfiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, withoutNodeTaints)
	f.updateNode("node-0", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	f.startScheduler(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: default-scheduler
- schedulerName: anywhere
  plugins:
    multiPoint:
      disabled: [{name: NodeUnschedulable}, {name: TaintToleration}]
`)
	f.createPod("usual")
	f.createPod("any", withScheduler("anywhere"))
	f.waitForBinding("any")
	if e := f.waitForEvent("any", "Scheduled"); e.ReportingController != "anywhere" {
		t.Errorf("%+v", e)
	}
	if output := f.waitForUnscheduled("usual", corev1.PodReasonUnschedulable); !strings.HasPrefix(output,
		"0/1 nodes are available: 1 node(s) were unschedulable") {
		t.Error(output)
	}
}

// TestInvalidConfigurations checks that a scheduler with an invalid configuration exits immediately, with an error
// that names the field. SCD-043
func TestInvalidConfigurations(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0, withoutNodeTaints)
	for _, c := range []struct{ version, fields, want string }{
		{"v1", "profles: []", `unknown field "profles"`},
		{"v1beta2", "profles: []", `unknown field "profles"`},
		{"v1beta3", "healthzBindAddress: ''", `unknown field "healthzBindAddress"`},
		{"v1beta2", "healthzBindAddress: 0.0.0.0:10251", "healthzBindAddress: Invalid value"},
		{"v1", "parallelism: -1", "parallelism: Invalid value: -1"},
		{"v1", "profiles: [{schedulerName: a}, {schedulerName: a}]", "profiles[1].schedulerName: Duplicate value"},
		{"v1beta1", "", `no kind "KubeSchedulerConfiguration" is registered for version ` +
			`"kubescheduler.config.k8s.io/v1beta1"`},
		{"v1beta2", "profiles: [{plugins: {filter: {enabled: [{name: NodeLabel}]}}}]", `"NodeLabel" does not exist`},
		{"v1beta2", "profiles: [{pluginConfig: [{name: NodeAffinity, args: {none: 1}}]}]", `unknown field "none"`},
	} {
		if c.version != "v1beta1" && !slices.Contains(configVersions(), c.version) {
			continue
		}
		configuration := "apiVersion: kubescheduler.config.k8s.io/" + c.version + "\n" + c.fields
		p := f.startScheduler(configuration + "\nkind: KubeSchedulerConfiguration")
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), c.want) {
			t.Errorf("%s\ngot exit code %d and %s\nwant 1 and %q", configuration, code, p.output(), c.want)
		}
	}
}

// electionConfig returns the configuration of a scheduler with leader election by a Lease. It ends with the text in
// more.
func electionConfig(namespace, name, more string) string {
	return fmt.Sprintf(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: my-scheduler
leaderElection: {leaderElect: true, resourceNamespace: %s, resourceName: %s}
%s`, namespace, name, more)
}

// TestElection checks that only the scheduler with the Lease schedules Pods. When this scheduler is killed, another
// scheduler must acquire the Lease. SCD-021 SCD-022 SCD-023 SCD-029
func TestElection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, withoutNodeTaints)
	quick := []string{"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s",
		"--leader-elect-retry-period=500ms", "-v=4"}
	first := f.startScheduler(electionConfig("default", "a-lock", ""), quick...)
	leases := f.CoordinationV1().Leases("default")
	held := waitFor(f, leases, "a-lock", func(l *coordinationv1.Lease) bool {
		return l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != ""
	})
	f.createPod("a", withScheduler("my-scheduler"))
	f.waitForBinding("a")
	second := f.startScheduler(electionConfig("default", "a-lock", ""), quick...)
	second.waitForOutput(1, "Lease is held by and has not yet expired", *held.Spec.HolderIdentity)
	f.createPod("b", withScheduler("my-scheduler"))
	f.waitForBinding("b")
	first.waitForOutput(2, "Successfully bound pod to node")
	if strings.Contains(second.output(), "Successfully bound pod to node") {
		t.Error("both schedulers bind Pods")
	}
	first.kill()
	f.createPod("c", withScheduler("my-scheduler"))
	f.waitForBinding("c")
	second.waitForOutput(1, "Successfully bound pod to node", "default/c")
	next, err := leases.Get(t.Context(), "a-lock", metav1.GetOptions{})
	f.must(err)
	if *next.Spec.HolderIdentity == *held.Spec.HolderIdentity ||
		*next.Spec.LeaseTransitions != *held.Spec.LeaseTransitions+1 ||
		!next.Spec.AcquireTime.After(held.Spec.AcquireTime.Time) {
		t.Errorf("%+v", next.Spec)
	}
}

// TestElectionRequiresRole starts a second scheduler with the documentation's role and a Lease with its own name. It
// checks that the scheduler acquires the Lease, and schedules Pods, only after the role contains that name. SCD-024
// SCD-025 SCD-027 SCD-029
func TestElectionRequiresRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1, withoutNodeTaints)
	f.applyScheduler()
	token, err := f.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "my-scheduler",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	f.must(err)
	p := f.startScheduler(electionConfig("kube-system", "my-scheduler",
		"clientConnection: {kubeconfig: "+f.writeKubeconfig(token.Status.Token)+"}"))
	f.createPod("a", withScheduler("my-scheduler"))
	p.waitForOutput(2, `leases.coordination.k8s.io "my-scheduler" is forbidden: `+
		`User "system:serviceaccount:kube-system:my-scheduler" cannot get resource "leases"`)
	pod, err := f.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	f.must(err)
	if pod.Spec.NodeName != "" {
		t.Errorf("got node %s, want none", pod.Spec.NodeName)
	}

	roles := f.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "system:kube-scheduler", metav1.GetOptions{})
	f.must(err)
	for i, rule := range role.Rules {
		if len(rule.ResourceNames) > 0 && rule.ResourceNames[0] == "kube-scheduler" {
			role.Rules[i].ResourceNames = append(rule.ResourceNames, "my-scheduler")
		}
	}
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	f.must(err)
	f.waitForBinding("a")
	lease, err := f.CoordinationV1().Leases("kube-system").Get(t.Context(), "my-scheduler", metav1.GetOptions{})
	f.must(err)
	if s := lease.Spec; *s.LeaseDurationSeconds != 15 || *s.HolderIdentity == "" || s.AcquireTime == nil ||
		s.RenewTime == nil || *s.LeaseTransitions != 0 {
		t.Errorf("%+v", s)
	}
}
