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

// requireCgroups returns a container, and skips the test if the container has no cgroup.
func requireCgroups(t *testing.T, f *fixture, id string) *container {
	t.Helper()
	c, err := f.container(id)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Cgroup.Folders) == 0 {
		t.Skip("cannot create cgroups on this machine")
	}
	return c
}

// readCgroupFile returns the content of a file of a container's cgroup. It reads the first file in names that exists.
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

// TestLimits checks that the limits of a container are set in its cgroup and can be changed. It also checks that the
// cgroup is removed with the container.
func TestLimits(t *testing.T) {
	f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { o.PIDs = 77 })
	c := sh("exec sleep 1000")
	c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuPeriod: 100000, CpuQuota: 50000,
		CpuShares: 512}
	id := f.start(c)
	running := requireCgroups(t, f, id)
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
		t.Error("the container's cgroup has no process")
	}
	err := f.UpdateContainerResources(f.ctx, id,
		&v1.ContainerResources{Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	check("134217728", "memory.limit_in_bytes", "memory.max")
	check("77", "pids.max")
	if got := f.status(id).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 128<<20 {
		t.Errorf("memory limit in the status: %d", got)
	}
	folder := running.Cgroup.Folders[0]
	if err := f.RemoveContainer(f.ctx, id); err != nil {
		t.Fatal(err)
	}
	if exists(folder) {
		t.Error("the cgroup of a removed container exists")
	}
}

// noHierarchy is an environment variable. If it is set, TestNoHierarchy unmounts the cgroups of its mount namespace.
const noHierarchy = "TEST_NO_HIERARCHY"

// TestNoHierarchy checks that a container without limits is created if no cgroup hierarchy is mounted.
func TestNoHierarchy(t *testing.T) {
	if os.Getenv(noHierarchy) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root to unmount the cgroups")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestNoHierarchy$", "-test.v")
		cmd.Env = append(os.Environ(), noHierarchy+"=1")
		// With this flag, Go makes the mounts private.
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const root = "/sys/fs/cgroup" // with all mounts below it
	if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("unmount %s: %v", root, err)
	}
	r := &Runtime{Options: Options{CgroupParent: "/" + name, Log: slog.New(slog.DiscardHandler)}}
	if g := r.createCgroup(&sandbox{}, "container",
		&v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}); len(g.Folders) != 0 {
		t.Errorf("created %v, want no cgroup", g.Folders)
	}
}

// TestUnified checks the limits that are written to cgroup v2 and the statistics that are read from it. The test uses
// plain files instead of the files of the kernel.
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
		"memory.max": "67108864", "cpu.max": "50000 100000", "cpu.weight": "100", "pids.max": "77",
		"cpuset.cpus": "0-1", "memory.oom.group": "1",
	} {
		if got, err := os.ReadFile(filepath.Join(folder, name)); strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	if err := manager.Set(cgroupResources(&v1.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: -1},
		0)); err != nil {
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
	if got, want := usageOf(stats), (usage{cpu: 1500000, memory: 9000000, working: 8000000, rss: 5000000,
		processes: 3}); got != want {
		t.Errorf("used: %+v, want %+v", got, want)
	}
	if n, err := manager.OOMKillCount(); n != 1 || err != nil {
		t.Errorf("got OOM kill count %d, %v; want 1", n, err)
	}
}

// TestOutOfMemory checks the status of a container that exceeds its memory limit.
func TestOutOfMemory(t *testing.T) {
	f := newFixture(t, nil)
	c := sh(`x=xxxxxxxxxxxxxxxx; while :; do x="$x$x"; done`)
	c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}
	id := f.start(c)
	requireCgroups(t, f, id)
	if s := f.waitForExit(id); s.GetReason() != "OOMKilled" || s.GetExitCode() != 137 {
		t.Errorf("status: %v", s)
	}
}

// TestStats checks the usage of containers and Pods, by cgroup and by process.
func TestStats(t *testing.T) {
	for _, by := range []string{"cgroup", "processes"} {
		t.Run(by, func(t *testing.T) {
			f := newFixture(t, nil)
			ready, wait := fifo(t)
			id := f.start(sh(`i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo >` + ready + `; read x <` +
				ready))
			wait()
			if by == "cgroup" {
				requireCgroups(t, f, id)
			} else {
				c, _ := f.container(id)
				c.Cgroup = cgroup{}
			}
			f.eventually("the kernel has updated the counters, every two seconds", func() bool {
				s, err := f.ContainerStats(f.ctx, id)
				return err != nil || s.GetMemory().GetRssBytes().GetValue() > 0
			})
			all, err := f.ListContainerStats(f.ctx, &v1.ContainerStatsFilter{PodSandboxId: f.pod})
			if err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			s := all[0]
			if s.GetAttributes().GetId() != id ||
				s.GetCpu().GetUsageCoreNanoSeconds().GetValue() < uint64(20*time.Millisecond) ||
				s.GetMemory().GetUsageBytes().GetValue() == 0 || s.GetMemory().GetRssBytes().GetValue() == 0 {
				t.Errorf("container: %v", s)
			}
			pods, err := f.ListPodSandboxStats(f.ctx, &v1.PodSandboxStatsFilter{})
			if err != nil || len(pods) != 1 || pods[0].GetLinux().GetProcess().GetProcessCount().GetValue() != 1 ||
				pods[0].GetLinux().GetMemory().GetWorkingSetBytes().GetValue() == 0 ||
				len(pods[0].GetLinux().GetContainers()) != 1 {
				t.Errorf("pods: %v, %v", pods, err)
			}
		})
	}
}

// TestEvents checks the events of a container from its creation to its removal.
func TestEvents(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(f.ctx)
	events, ended := make(chan *v1.ContainerEventResponse), make(chan error)
	connected := make(chan struct{})
	go func() {
		ended <- f.GetContainerEvents(ctx, events,
			func(v1.RuntimeService_GetContainerEventsClient) { close(connected) })
	}()
	<-connected
	id := f.start(sh("exit 3"))
	f.waitForExit(id)
	if err := f.RemoveContainer(f.ctx, id); err != nil {
		t.Fatal(err)
	}
	want := []v1.ContainerEventType{v1.ContainerEventType_CONTAINER_CREATED_EVENT,
		v1.ContainerEventType_CONTAINER_STARTED_EVENT, v1.ContainerEventType_CONTAINER_STOPPED_EVENT,
		v1.ContainerEventType_CONTAINER_DELETED_EVENT}
	seen := map[v1.ContainerEventType]*v1.ContainerEventResponse{}
	for range want { // the stop event of a short container may precede its start event
		e := <-events
		seen[e.GetContainerEventType()] = e
		if e.GetContainerId() != id || e.GetPodSandboxStatus().GetMetadata().GetUid() != "web-uid" {
			t.Errorf("event: %v", e)
		}
	}
	for _, kind := range want {
		if seen[kind] == nil {
			t.Errorf("no event %v", kind)
		}
	}
	if list := seen[v1.ContainerEventType_CONTAINER_STOPPED_EVENT].GetContainersStatuses(); len(list) != 1 ||
		list[0].GetExitCode() != 3 {
		t.Errorf("statuses in the stop event: %v", list)
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Error(err)
	}
}
