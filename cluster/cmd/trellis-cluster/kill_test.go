package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// killableCluster is a cluster whose processes a test can kill. They are `trellis serve`, and `trellis-cluster up`
// with its child processes.
type killableCluster struct {
	*fixture
	dir                     string
	startServer, startParts func() *process
	serverProcess           *process
	partsProcess            *process
	startsFile              string // file to which each container appends the UID of its Pod when it starts
}

func newKillableCluster(t *testing.T) *killableCluster {
	m := &killableCluster{fixture: &fixture{T: t}}
	m.dir = m.newNodesDir(1)
	m.startsFile = filepath.Join(m.dir, "started")
	m.buildPrograms(m.dir+"/", "./cmd/trellis")
	kubeconfig, port := filepath.Join(m.dir, "data", "admin.kubeconfig"), freePort(t)
	m.startServer = func() *process {
		p := startCommand(t, exec.Command(filepath.Join(m.dir, "trellis"), "serve",
			"--data-dir="+filepath.Join(m.dir, "data"), "--secure-port="+port, "--disk-reserve-bytes=1"))
		p.waitForOutput(1, "api-resources") // the last line that the server prints when it starts
		return p
	}
	m.startParts = func() *process {
		return startProgram(t, "trellis-cluster", "up", "--kubeconfig="+kubeconfig, "--v=1",
			"--root-dir="+filepath.Join(m.dir, ".trellis-cluster"), "--image=busybox=/bin",
			"--kube-controller-manager-arg=--leader-elect-retry-period=500ms",
			"--kube-scheduler-arg=--leader-elect-retry-period=500ms")
	}
	m.serverProcess = m.startServer()
	m.serverProcess.kill() // the parts must be able to start before the server
	m.partsProcess = m.startParts()
	m.partsProcess.waitForOutput(1, "Waiting for the API server")
	m.serverProcess = m.startServer()
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	m.must(err)
	c.QPS = -1
	m.Interface = kubernetes.NewForConfigOrDie(c)
	return m
}

// recordingTemplate returns the template of Pods whose container appends the UID of its Pod to startsFile, and then
// runs the shell commands in script.
func (m *killableCluster) recordingTemplate(name, script string, policy corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{
			Name: "a", Image: "busybox", Command: []string{"sh", "-c",
				"echo $POD_UID >>" + m.startsFile + "\n" + script},
			Env: []corev1.EnvVar{{Name: "POD_UID",
				ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
		}}}}
}

// scale sets the number of replicas of the Deployment web.
func (m *killableCluster) scale(replicas int32) {
	m.Helper()
	_, err := m.AppsV1().Deployments("default").UpdateScale(m.Context(), "web",
		&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
			Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}, metav1.UpdateOptions{})
	m.must(err)
}

// waitForPodEvent calls the function do. It then waits until the function match returns true for an event of a Pod.
func (m *killableCluster) waitForPodEvent(do func(), match func(watch.EventType, *corev1.Pod) bool) {
	m.Helper()
	now, err := m.CoreV1().Pods("default").List(m.Context(), metav1.ListOptions{})
	m.must(err)
	changes, err := m.CoreV1().Pods("default").Watch(m.Context(),
		metav1.ListOptions{ResourceVersion: now.ResourceVersion,
			TimeoutSeconds: ptr.To(int64(testTimeout / time.Second))})
	m.must(err)
	defer changes.Stop()
	do()
	for e := range changes.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && match(e.Type, p) {
			return
		}
	}
	m.Fatal("no matching event of a Pod")
}

func isAdded(t watch.EventType, _ *corev1.Pod) bool { return t == watch.Added }

func isBound(t watch.EventType, p *corev1.Pod) bool {
	return t == watch.Modified && p.Spec.NodeName != "" && len(p.Status.ContainerStatuses) == 0
}

// killPart kills a child process of `trellis-cluster up`, and releases its Lease. Otherwise the test would have to
// wait until the Lease expires.
func (m *killableCluster) killPart(name, lease string) {
	m.Helper()
	for _, p := range processes(m.T) {
		if p.parent == m.partsProcess.cmd.Process.Pid && len(p.args) > 1 && p.args[1] == name {
			m.must(syscall.Kill(p.pid, syscall.SIGKILL))
		}
	}
	m.partsProcess.waitForOutput(1, "Part exited, restarting it", "signal: killed", name)
	if lease != "" {
		m.releaseLease(lease)
	}
}

// releaseLease removes the holder of a Lease.
func (m *killableCluster) releaseLease(lease string) {
	m.Helper()
	_, err := m.CoordinationV1().Leases("kube-system").Patch(m.Context(), lease, types.MergePatchType,
		[]byte(`{"spec":{"holderIdentity":""}}`), metav1.PatchOptions{})
	m.must(err)
}

// runningPods maps the UID of each running Pod to its process.
func (m *killableCluster) runningPods() map[types.UID]processID {
	m.Helper()
	all := map[types.UID]processID{}
	for _, p := range processes(m.T) {
		if uid, ok := p.environment["POD_UID"]; ok {
			if other, ok := all[types.UID(uid)]; ok {
				m.Errorf("Pod %s has the processes %d and %d: %s", uid, other.pid, p.pid, p.args)
			}
			all[types.UID(uid)] = processID{p.pid, p.start}
		}
	}
	return all
}

// waitForReplicas waits until the Deployment web and the StatefulSet db have the given numbers of Pods, and returns
// the processes of all Pods. The parameter before is the result of an earlier call: its Pods must still exist and have
// the same processes. Only Pods of the Job may have ended. No container may have been started twice.
func (m *killableCluster) waitForReplicas(before map[types.UID]processID, web, db int32) map[types.UID]processID {
	m.Helper()
	waitFor(m.fixture, m.AppsV1().Deployments("default"), "web",
		func(d *appsv1.Deployment) bool { return d.Status.AvailableReplicas == web && d.Status.Replicas == web })
	waitFor(m.fixture, m.AppsV1().StatefulSets("default"), "db",
		func(s *appsv1.StatefulSet) bool { return s.Status.AvailableReplicas == db })
	after := m.runningPods()
	pods, err := m.CoreV1().Pods("default").List(m.Context(), metav1.ListOptions{})
	m.must(err)
	exists := map[types.UID]bool{}
	for _, p := range pods.Items {
		exists[p.UID] = true
		oldID, ran := before[p.UID]
		newID, runs := after[p.UID]
		if ran && p.Labels["app"] != "sum" && oldID != newID {
			m.Errorf("Pod %s: got process %+v, want %+v", p.Name, newID, oldID)
		}
		if !runs && isReady(&p) {
			m.Errorf("Pod %s is ready but has no process", p.Name)
		}
	}
	for uid := range before {
		if !exists[uid] {
			m.Errorf("the Pod with UID %s does not exist any more", uid)
		}
	}
	m.checkStartedOnce()
	return after
}

// checkStartedOnce checks that the container of each Pod was started only once.
func (m *killableCluster) checkStartedOnce() {
	m.Helper()
	text, err := os.ReadFile(m.startsFile)
	m.must(err)
	uids := strings.Fields(string(text))
	slices.Sort(uids)
	if unique := slices.Compact(slices.Clone(uids)); len(unique) != len(uids) {
		m.Errorf("containers of a Pod were started twice: UIDs %v", uids)
	}
}

// processID identifies a process.
type processID struct {
	pid   int
	start string // start time in clock ticks since boot
}

// processInfo describes a process of this machine.
type processInfo struct {
	processID
	parent      int
	args        []string
	environment map[string]string
}

func processes(t *testing.T) (all []processInfo) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		read := func(name string) string { // returns "" if the process has exited
			text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), name))
			return string(text)
		}
		stat := read("stat")
		fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
		if len(fields) < 20 || fields[0] == "Z" {
			continue
		}
		p := processInfo{processID: processID{pid, fields[19]}, args: strings.Split(read("cmdline"), "\x00"),
			environment: map[string]string{}}
		p.parent, _ = strconv.Atoi(fields[1])
		for _, variable := range strings.Split(read("environ"), "\x00") {
			if name, value, ok := strings.Cut(variable, "="); ok {
				p.environment[name] = value
			}
		}
		all = append(all, p)
	}
	return all
}

// TestKilledParts checks that the cluster recovers when the API server, `trellis-cluster up` or one of its child
// processes is killed (issue 16). Running containers must keep their processes, no container may be started twice, and
// unfinished work must be completed. While the server is down, the controllers and the scheduler lose their Leases and
// restart. Nodes must not restart.
func TestKilledParts(t *testing.T) {
	m := newKillableCluster(t)
	gate := filepath.Join(m.dir, "gate")
	m.must(syscall.Mkfifo(gate, 0o600))
	gateFile, err := os.OpenFile(gate, os.O_RDWR, 0) // each line in this pipe lets one Pod of the Job complete
	m.must(err)
	defer gateFile.Close()
	const jobs = 4
	_, err = m.BatchV1().Jobs("default").Create(t.Context(),
		&batchv1.Job{ObjectMeta: objectMeta("sum"), Spec: batchv1.JobSpec{
			Completions: ptr.To[int32](jobs), Parallelism: ptr.To[int32](2),
			Template: m.recordingTemplate("sum", "read x <"+gate, corev1.RestartPolicyNever),
		}}, metav1.CreateOptions{})
	m.must(err)
	selector := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	_, err = m.AppsV1().Deployments("default").Create(t.Context(),
		&appsv1.Deployment{ObjectMeta: objectMeta("web"), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](5), Selector: selector("web"),
			Template: m.recordingTemplate("web", "exec sleep 1000000", corev1.RestartPolicyAlways),
		}}, metav1.CreateOptions{})
	m.must(err)
	sets := m.AppsV1().StatefulSets("default")
	_, err = sets.Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: objectMeta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](2), Selector: selector("db"),
		Template: m.recordingTemplate("db", "exec sleep 1000000", corev1.RestartPolicyAlways),
	}}, metav1.CreateOptions{})
	m.must(err)
	waitFor(m.fixture, m.BatchV1().Jobs("default"), "sum",
		func(j *batchv1.Job) bool { return ptr.Deref(j.Status.Ready, 0) == 2 })
	before := m.waitForReplicas(nil, 5, 2)
	for _, name := range []string{"controllers", "scheduler", "node"} {
		hasFlag := func(p processInfo) bool {
			return p.parent == m.partsProcess.cmd.Process.Pid && len(p.args) > 1 && p.args[1] == name &&
				slices.Contains(p.args, "--v=1")
		}
		if !slices.ContainsFunc(processes(t), hasFlag) {
			t.Errorf("part %s does not have the flag --v=1", name)
		}
	}

	m.waitForPodEvent(func() { m.scale(8) }, isBound)
	m.killPart("scheduler", "kube-scheduler")
	before = m.waitForReplicas(before, 8, 2)

	m.waitForPodEvent(func() { m.scale(11) }, isAdded)
	fmt.Fprintln(gateFile) // one Pod of the Job completes while no controller runs
	m.killPart("controllers", "trellis-cluster-controllers")
	before = m.waitForReplicas(before, 11, 2)
	waitFor(m.fixture, m.BatchV1().Jobs("default"), "sum", func(j *batchv1.Job) bool {
		return j.Status.Succeeded == 1 &&
			ptr.Deref(j.Status.Ready, 0) == 2
	})

	m.waitForPodEvent(func() {
		_, err := sets.Patch(t.Context(), "db", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`),
			metav1.PatchOptions{})
		m.must(err)
	}, isBound)
	fmt.Fprintln(gateFile)
	m.killPart("node", "")
	before = m.waitForReplicas(before, 11, 4)

	m.waitForPodEvent(func() { m.scale(13) }, isAdded)
	m.serverProcess.kill()
	for _, part := range []string{"controllers", "scheduler"} {
		m.partsProcess.waitForOutput(1, "Part exited, restarting it", "exit status 1", part)
	}
	m.serverProcess = m.startServer()
	before = m.waitForReplicas(before, 13, 4)
	if strings.Count(m.partsProcess.output(), `part="node-1"`) != 1 {
		t.Error("a node exited when the server was killed")
	}

	m.waitForPodEvent(func() { m.scale(15) }, isBound)
	m.partsProcess.kill()
	m.releaseLease("kube-scheduler")
	m.releaseLease("trellis-cluster-controllers")
	m.partsProcess = m.startParts()
	m.waitForReplicas(before, 15, 4)

	fmt.Fprint(gateFile, "\n\n")
	job := waitFor(m.fixture, m.BatchV1().Jobs("default"), "sum",
		func(j *batchv1.Job) bool { return j.Status.CompletionTime != nil })
	done, err := m.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=sum"})
	m.must(err)
	if job.Status.Succeeded != jobs || job.Status.Failed != 0 || len(done.Items) != jobs {
		t.Errorf("got %d Pods and status %+v of the Job, want %d succeeded", len(done.Items), job.Status, jobs)
	}
	m.checkStartedOnce()
}
