package runtime

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func requireCgroups(t *testing.T, w *fixture, id string) *container {
	t.Helper()
	c, err := w.container(id)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Cgroup.Folders) == 0 {
		t.Skip("no cgroups may be made here")
	}
	return c
}

// readCgroupFile finds a file of a container's cgroup.
func readCgroupFile(t *testing.T, c *container, names ...string) string {
	t.Helper()
	for _, folder := range c.Cgroup.Folders {
		for _, name := range names {
			if text, err := os.ReadFile(filepath.Join(folder, name)); err == nil {
				return strings.TrimSpace(string(text))
			}
		}
	}
	t.Fatalf("no %v in %v", names, c.Cgroup.Folders)
	return ""
}

func TestLimits(t *testing.T) {
	w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { o.PIDs = 77 })
	c := sh("exec sleep 1000")
	c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512}
	id := w.start(c)
	running := requireCgroups(t, w, id)
	check := func(want string, names ...string) {
		t.Helper()
		if got := readCgroupFile(t, running, names...); got != want {
			t.Errorf("%v: %s, want %s", names, got, want)
		}
	}
	check("67108864", "memory.limit_in_bytes", "memory.max")
	check("77", "pids.max")
	if got := readCgroupFile(t, running, "cpu.cfs_quota_us", "cpu.max"); got != "50000" && got != "50000 100000" {
		t.Errorf("cpu: %s", got)
	}
	if procs := readCgroupFile(t, running, "cgroup.procs"); procs == "" {
		t.Error("nobody is in the container's cgroup")
	}
	err := w.UpdateContainerResources(w.ctx, id, &v1.ContainerResources{Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	check("134217728", "memory.limit_in_bytes", "memory.max")
	check("77", "pids.max")
	if got := w.status(id).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 128<<20 {
		t.Errorf("the status has %d", got)
	}
	folder := running.Cgroup.Folders[0]
	if err := w.RemoveContainer(w.ctx, id); err != nil {
		t.Fatal(err)
	}
	if exists(folder) {
		t.Error("the cgroup of a container that was removed is there")
	}
}

// noHierarchy says that a test runs where no cgroups are mounted.
const noHierarchy = "TEST_NO_HIERARCHY"

// Where no hierarchy is mounted a container has no limits, and the node goes on.
func TestNoHierarchy(t *testing.T) {
	if os.Getenv(noHierarchy) == "" {
		if os.Geteuid() != 0 {
			t.Skip("only root may unmount what is mounted: run the test as root")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestNoHierarchy$", "-test.v")
		cmd.Env = append(os.Environ(), noHierarchy+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL} // Go makes mounts private then
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const root = "/sys/fs/cgroup" // with all that is mounted below it
	if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("unmount %s: %v", root, err)
	}
	r := &Runtime{Options: Options{CgroupParent: "/" + name, Log: slog.New(slog.DiscardHandler)}}
	if g := r.createCgroup(&sandbox{}, "container", &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}); len(g.Folders) != 0 {
		t.Errorf("made %v", g.Folders)
	}
}

// What cgroup v2 is told, and tells; with plain files in place of the kernel's.
func TestUnified(t *testing.T) {
	cgroups.TestMode = true
	defer func() { cgroups.TestMode = false }()
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cgroup.controllers", "cpuset cpu io memory hugetlb pids")
	write("memory.current", "0")
	manager, err := fs2.NewManager(&cgroups.Cgroup{Resources: &cgroups.Resources{SkipDevices: true}}, folder)
	if err != nil {
		t.Fatal(err)
	}
	limits := &v1.LinuxContainerResources{
		MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 1024, CpusetCpus: "0-1",
		Unified: map[string]string{"memory.oom.group": "1"},
	}
	if err := manager.Set(cgroupResources(limits, 77)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"memory.max": "67108864", "cpu.max": "50000 100000", "cpu.weight": "100", "pids.max": "77", "cpuset.cpus": "0-1", "memory.oom.group": "1",
	} {
		if got, err := os.ReadFile(filepath.Join(folder, name)); strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	if err := manager.Set(cgroupResources(&v1.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: -1}, 0)); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(folder, "cpu.max")); strings.TrimSpace(string(got)) != "max 100000" {
		t.Errorf("without a limit: %s", got)
	}
	write("memory.current", "9000000")
	write("memory.stat", "anon 5000000\nfile 3000000\ninactive_file 1000000\n")
	write("memory.events", "oom 1\noom_kill 1\n")
	write("cpu.stat", "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n")
	write("pids.current", "3")
	stats, err := manager.GetStats()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := usageOf(stats), (usage{cpu: 1500000, memory: 9000000, working: 8000000, rss: 5000000, processes: 3}); got != want {
		t.Errorf("used: %+v, want %+v", got, want)
	}
	if n, err := manager.OOMKillCount(); n != 1 || err != nil {
		t.Errorf("killed for want of memory: %d, %v", n, err)
	}
}

func TestOutOfMemory(t *testing.T) {
	w := newFixture(t, nil)
	c := sh(`x=xxxxxxxxxxxxxxxx; while :; do x="$x$x"; done`)
	c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}
	id := w.start(c)
	requireCgroups(t, w, id)
	if s := w.waitForExit(id); s.GetReason() != "OOMKilled" || s.GetExitCode() != 137 {
		t.Errorf("status: %v", s)
	}
}

func TestStats(t *testing.T) {
	for _, by := range []string{"cgroup", "processes"} {
		t.Run(by, func(t *testing.T) {
			w := newFixture(t, nil)
			ready, wait := fifo(t)
			id := w.start(sh(`i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo >` + ready + `; read x <` + ready))
			wait()
			if by == "cgroup" {
				requireCgroups(t, w, id)
			} else {
				c, _ := w.container(id)
				c.Cgroup = cgroup{}
			}
			w.eventually("the kernel has counted, which it does every two seconds", func() bool {
				s, err := w.ContainerStats(w.ctx, id)
				return err != nil || s.GetMemory().GetRssBytes().GetValue() > 0
			})
			all, err := w.ListContainerStats(w.ctx, &v1.ContainerStatsFilter{PodSandboxId: w.pod})
			if err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			s := all[0]
			if s.GetAttributes().GetId() != id || s.GetCpu().GetUsageCoreNanoSeconds().GetValue() < uint64(20*time.Millisecond) ||
				s.GetMemory().GetUsageBytes().GetValue() == 0 || s.GetMemory().GetRssBytes().GetValue() == 0 {
				t.Errorf("container: %v", s)
			}
			pods, err := w.ListPodSandboxStats(w.ctx, &v1.PodSandboxStatsFilter{})
			if err != nil || len(pods) != 1 || pods[0].GetLinux().GetProcess().GetProcessCount().GetValue() != 1 ||
				pods[0].GetLinux().GetMemory().GetWorkingSetBytes().GetValue() == 0 || len(pods[0].GetLinux().GetContainers()) != 1 {
				t.Errorf("pods: %v, %v", pods, err)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	w := newFixture(t, nil)
	ctx, cancel := context.WithCancel(w.ctx)
	events, ended := make(chan *v1.ContainerEventResponse), make(chan error)
	connected := make(chan struct{})
	go func() {
		ended <- w.GetContainerEvents(ctx, events, func(v1.RuntimeService_GetContainerEventsClient) { close(connected) })
	}()
	<-connected
	id := w.start(sh("exit 3"))
	w.waitForExit(id)
	if err := w.RemoveContainer(w.ctx, id); err != nil {
		t.Fatal(err)
	}
	want := []v1.ContainerEventType{v1.ContainerEventType_CONTAINER_CREATED_EVENT, v1.ContainerEventType_CONTAINER_STARTED_EVENT, v1.ContainerEventType_CONTAINER_STOPPED_EVENT, v1.ContainerEventType_CONTAINER_DELETED_EVENT}
	seen := map[v1.ContainerEventType]*v1.ContainerEventResponse{}
	for range want { // of a container that ends at once, the end may be told before the start
		e := <-events
		seen[e.GetContainerEventType()] = e
		if e.GetContainerId() != id || e.GetPodSandboxStatus().GetMetadata().GetUid() != "web-uid" {
			t.Errorf("event: %v", e)
		}
	}
	for _, what := range want {
		if seen[what] == nil {
			t.Errorf("nobody told of %v", what)
		}
	}
	if list := seen[v1.ContainerEventType_CONTAINER_STOPPED_EVENT].GetContainersStatuses(); len(list) != 1 || list[0].GetExitCode() != 3 {
		t.Errorf("told of the end: %v", list)
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Error(err)
	}
}
