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

// The configuration of the documentation, but for its version.
const mySchedulerConfig = `
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: my-scheduler
leaderElection:
  leaderElect: false
`

// applyDocument applies a document about schedulers.
func (f *fixture) applyDocument(name string) {
	f.Helper()
	f.must(manifests.Apply(f.Context(), f.server.Config, []string{document(f.T, "12-schedulers/"+name)}, io.Discard))
}

// SCD-001 SCD-002 SCD-014 SCD-015 SCD-016 SCD-030 SCD-031 SCD-032 SCD-033 SCD-034 SCD-035 SCD-036 SCD-037 SCD-039: the three Pods
// of the documentation. Each has the scheduler that it names, waits for it, and has an event of it that says where it is.
func TestThreePods(t *testing.T) {
	f := newFixture(t, 2, withoutNodeTaints)
	for _, pod := range []string{"pod1.yaml", "pod2.yaml", "pod3.yaml"} {
		f.applyDocument(pod)
	}
	startProgram(t, "trellis-cluster", "scheduler", "--kubeconfig="+f.server.Kubeconfig, "--secure-port=0")
	seen := func(name, scheduler string) {
		t.Helper()
		pod := f.waitForBinding(name)
		e := f.waitForEvent(name, "Scheduled")
		output := fmt.Sprintf("Successfully assigned default/%s to %s", name, pod.Spec.NodeName)
		if e.Type != corev1.EventTypeNormal || e.Message != output || e.ReportingController != scheduler {
			t.Errorf("%s: %+v", name, e)
		}
		waitFor(f, f.CoreV1().Pods("default"), name, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	}
	seen("no-annotation", "default-scheduler")
	seen("annotation-default-scheduler", "default-scheduler")
	third, err := f.CoreV1().Pods("default").Get(t.Context(), "annotation-second-scheduler", metav1.GetOptions{})
	f.must(err)
	if third.Spec.NodeName != "" || third.Status.Phase != corev1.PodPending || len(third.Status.Conditions) > 0 {
		t.Errorf("not its scheduler's: %+v", third)
	}

	f.applyScheduler()
	m, err := f.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "my-scheduler-config", metav1.GetOptions{})
	f.must(err)
	second := f.startScheduler(m.Data["my-scheduler-config.yaml"])
	seen("annotation-second-scheduler", "my-scheduler")
	if len(configVersions()) == 1 {
		return
	}
	second.waitForOutput(1, "Warning: kubescheduler.config.k8s.io/v1beta2", "write apiVersion: kubescheduler.config.k8s.io/v1")
}

// applyScheduler applies the documentation's second scheduler, unchanged but for the real kube-scheduler's sake: it has dropped the
// version of the configuration.
func (f *fixture) applyScheduler() {
	f.Helper()
	manifest, err := os.ReadFile(document(f.T, "12-schedulers/my-scheduler.yaml"))
	f.must(err)
	if !strings.Contains(string(manifest), "kubescheduler.config.k8s.io/v1beta2") {
		f.Fatal("the example has changed")
	}
	text := string(manifest)
	if len(configVersions()) == 1 {
		text = strings.ReplaceAll(text, "v1beta2", "v1")
	}
	f.must(manifests.Apply(f.Context(), f.server.Config, []string{f.writeFile("my-scheduler.yaml", text)}, io.Discard))
}

// configVersions are those of configurations. The real kube-scheduler has dropped all but the last.
func configVersions() []string {
	if os.Getenv("TEST_PEERS") != "" {
		return []string{"v1"}
	}
	return []string{"v1beta2", "v1beta3", "v1"}
}

// SCD-014 SCD-015 SCD-034: a second scheduler of any of the versions that there have been leaves the Pods of others alone.
func TestConfigurationVersions(t *testing.T) {
	f := newFixture(t, 1, withoutNodeTaints)
	for _, version := range configVersions() {
		p := f.startScheduler("apiVersion: kubescheduler.config.k8s.io/" + version + mySchedulerConfig)
		f.createPod("others-" + version)
		f.createPod(version, withScheduler("my-scheduler"))
		f.waitForBinding(version)
		if warned := strings.Contains(p.output(), "Warning: "); warned != (version != "v1") {
			t.Errorf("%s: warned: %v", version, warned)
		}
		pod, err := f.CoreV1().Pods("default").Get(t.Context(), "others-"+version, metav1.GetOptions{})
		f.must(err)
		if pod.Spec.NodeName != "" || len(pod.Status.Conditions) > 0 {
			t.Errorf("%s: %+v", version, pod.Status)
		}
		if code := p.terminate(); code != 0 && code != 1 { // upstream's: it has finished without an election
			t.Errorf("%s: exit code %d", version, code)
		}
	}
}

// SCD-004 SCD-005: the program is one static file, which is kube-scheduler under that name.
func TestStaticFile(t *testing.T) {
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
			t.Error("it needs a dynamic linker")
		}
	}
	alone := exec.Command(file, "--help")
	alone.Dir, alone.Env = t.TempDir(), []string{}
	if out, err := alone.CombinedOutput(); err != nil || !strings.Contains(string(out), "kube-scheduler [flags]") {
		t.Errorf("%v\n%s", err, out)
	}
}

// SCD-019 SCD-017 SCD-044: flags of kube-scheduler, and what it serves: health to everybody, the rest to those who may.
func TestSchedulerServing(t *testing.T) {
	f := newFixture(t, 1, withoutNodeTaints)
	port := freePort(t)
	kubeconfig := f.server.Kubeconfig
	p := startProgram(t, "kube-scheduler", "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--secure-port="+port, "--bind-address=127.0.0.1", "-v=2")
	f.createPod("a")
	f.waitForBinding("a")
	p.waitForOutput(1, "Loaded client CA", "client-ca-file", `"kubernetes"`) // which it asks the server for; before, everybody is nobody
	admin := f.insecureConfig("https://127.0.0.1:" + port)
	for path, of := range map[string]struct {
		anonymous int
		says      string
	}{
		"/healthz": {http.StatusOK, "ok"}, "/livez": {http.StatusOK, "ok"}, "/readyz": {http.StatusOK, "ok"},
		"/metrics": {http.StatusForbidden, "scheduler_schedule_attempts_total"}, "/configz": {http.StatusForbidden, `"schedulerName":"default-scheduler"`},
	} {
		if code, _ := get(t, rest.AnonymousClientConfig(admin), path); code != of.anonymous {
			t.Errorf("%s, to nobody: %d", path, code)
		}
		if code, body := get(t, admin, path); code != http.StatusOK || !strings.Contains(body, of.says) {
			t.Errorf("%s: %d %s", path, code, body)
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

// SCD-042: one scheduler has several profiles, each with its plugins.
func TestProfiles(t *testing.T) {
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
	if output := f.waitForUnscheduled("usual", corev1.PodReasonUnschedulable); !strings.HasPrefix(output, "0/1 nodes are available: 1 node(s) were unschedulable") {
		t.Error(output)
	}
}

// SCD-043: a mistake in a configuration ends it at its start. It names the field.
func TestInvalidConfigurations(t *testing.T) {
	f := newFixture(t, 0, withoutNodeTaints)
	for configuration, output := range map[string]string{
		"apiVersion: kubescheduler.config.k8s.io/v1\nprofles: []":                                                              `unknown field "profles"`,
		"apiVersion: kubescheduler.config.k8s.io/v1beta2\nprofles: []":                                                         `unknown field "profles"`,
		"apiVersion: kubescheduler.config.k8s.io/v1beta3\nhealthzBindAddress: ''":                                              `unknown field "healthzBindAddress"`,
		"apiVersion: kubescheduler.config.k8s.io/v1beta2\nhealthzBindAddress: 0.0.0.0:10251":                                   "healthzBindAddress: Invalid value",
		"apiVersion: kubescheduler.config.k8s.io/v1\nparallelism: -1":                                                          "parallelism: Invalid value: -1",
		"apiVersion: kubescheduler.config.k8s.io/v1\nprofiles: [{schedulerName: a}, {schedulerName: a}]":                       "profiles[1].schedulerName: Duplicate value",
		"apiVersion: kubescheduler.config.k8s.io/v1beta1":                                                                      `no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta1"`,
		"apiVersion: kubescheduler.config.k8s.io/v1beta2\nprofiles: [{plugins: {filter: {enabled: [{name: NodeLabel}]}}}]":     `"NodeLabel" does not exist`,
		"apiVersion: kubescheduler.config.k8s.io/v1beta2\nprofiles: [{pluginConfig: [{name: NodeAffinity, args: {none: 1}}]}]": `unknown field "none"`,
	} {
		if version, _, _ := strings.Cut(strings.TrimPrefix(configuration, "apiVersion: kubescheduler.config.k8s.io/"), "\n"); version != "v1beta1" && !slices.Contains(configVersions(), version) {
			continue
		}
		p := f.startScheduler(configuration + "\nkind: KubeSchedulerConfiguration")
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), output) {
			t.Errorf("%s\nexit code %d, %s", configuration, code, p.output())
		}
	}
}

// electionConfig is the configuration of a scheduler that is elected, by a lock in a namespace.
func electionConfig(namespace, name, more string) string {
	return fmt.Sprintf(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: my-scheduler
leaderElection: {leaderElect: true, resourceNamespace: %s, resourceName: %s}
%s`, namespace, name, more)
}

// SCD-021 SCD-022 SCD-023 SCD-029: only the one that holds the Lease schedules. Another takes its place when it is killed.
func TestElection(t *testing.T) {
	f := newFixture(t, 1, withoutNodeTaints)
	quick := []string{"--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms", "-v=4"}
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
		t.Error("two schedule")
	}
	first.kill()
	f.createPod("c", withScheduler("my-scheduler"))
	f.waitForBinding("c")
	second.waitForOutput(1, "Successfully bound pod to node", "default/c")
	next, err := leases.Get(t.Context(), "a-lock", metav1.GetOptions{})
	f.must(err)
	if *next.Spec.HolderIdentity == *held.Spec.HolderIdentity || *next.Spec.LeaseTransitions != *held.Spec.LeaseTransitions+1 || !next.Spec.AcquireTime.After(held.Spec.AcquireTime.Time) {
		t.Errorf("%+v", next.Spec)
	}
}

// SCD-024 SCD-025 SCD-027 SCD-029: with the rights of the documentation, a second scheduler gets no lock under its own name, and
// schedules nothing, before the name is added to the role.
func TestElectionRequiresRole(t *testing.T) {
	f := newFixture(t, 1, withoutNodeTaints)
	f.applyScheduler()
	token, err := f.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "my-scheduler", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	f.must(err)
	p := f.startScheduler(electionConfig("kube-system", "my-scheduler", "clientConnection: {kubeconfig: "+f.writeKubeconfig(token.Status.Token)+"}"))
	f.createPod("a", withScheduler("my-scheduler"))
	p.waitForOutput(2, `leases.coordination.k8s.io "my-scheduler" is forbidden: User "system:serviceaccount:kube-system:my-scheduler" cannot get resource "leases"`)
	pod, err := f.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
	f.must(err)
	if pod.Spec.NodeName != "" {
		t.Errorf("it is on %s", pod.Spec.NodeName)
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
	if s := lease.Spec; *s.LeaseDurationSeconds != 15 || *s.HolderIdentity == "" || s.AcquireTime == nil || s.RenewTime == nil || *s.LeaseTransitions != 0 {
		t.Errorf("%+v", s)
	}
}
