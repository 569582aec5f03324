package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// usage is what a container has used, or uses.
type usage struct{ cpu, memory, working, rss, processes uint64 }

// used measures a container: by its cgroup, or else by its processes, where what has ended does not count.
func (c *container) used(init process.ID) (usage, error) {
	if len(c.Group.Folders) == 0 {
		return measure(init)
	}
	manager, err := c.Group.manager()
	if err != nil {
		return usage{}, err
	}
	stats, err := manager.GetStats()
	if err != nil {
		return usage{}, fmt.Errorf("reading what container %s uses: %w", c.ID, err)
	}
	return usageOf(stats), nil
}

func usageOf(stats *cgroups.Stats) usage {
	m := stats.MemoryStats
	inactive, ok := m.Stats["total_inactive_file"]
	anon := m.Stats["total_rss"]
	if !ok { // cgroup v2 has no totals: its numbers are of all that is below
		inactive, anon = m.Stats["inactive_file"], m.Stats["anon"]
	}
	return usage{
		cpu: stats.CpuStats.CpuUsage.TotalUsage, memory: m.Usage.Usage, rss: anon,
		working: m.Usage.Usage - min(inactive, m.Usage.Usage), processes: stats.PidsStats.Current,
	}
}

// measure adds up the processes that share the PID namespace of one.
func measure(init process.ID) (sum usage, err error) {
	space := func(pid string) string {
		link, _ := os.Readlink(filepath.Join("/proc", pid, "ns/pid"))
		return link
	}
	ours := space(strconv.Itoa(init.PID))
	if ours == "" {
		return sum, fmt.Errorf("process %d has ended", init.PID)
	}
	if ours == space("self") { // the namespace of the node: the first process alone is known to be the container's
		sum.add(strconv.Itoa(init.PID))
		return sum, nil
	}
	for _, pid := range entries("/proc") {
		if _, err := strconv.Atoi(pid); err == nil && space(pid) == ours {
			sum.add(pid)
		}
	}
	return sum, nil
}

// tick is the kernel's unit of processor time for programs: always 1/100 s.
const tick = 10 * time.Millisecond

func (u *usage) add(pid string) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return
	}
	const user, system, resident = 11, 12, 21 // fields after the name
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) <= resident {
		return
	}
	number := func(i int) uint64 { n, _ := strconv.ParseUint(fields[i], 10, 64); return n }
	u.cpu += (number(user) + number(system)) * uint64(tick)
	memory := number(resident) * uint64(os.Getpagesize())
	u.memory, u.working, u.rss = u.memory+memory, u.working+memory, u.rss+memory
	u.processes++
}

func (u usage) processor(at int64) *v1.CpuUsage {
	return &v1.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: &v1.UInt64Value{Value: u.cpu}}
}

func (u usage) ram(at int64) *v1.MemoryUsage {
	return &v1.MemoryUsage{
		Timestamp: at, WorkingSetBytes: &v1.UInt64Value{Value: u.working},
		UsageBytes: &v1.UInt64Value{Value: u.memory}, RssBytes: &v1.UInt64Value{Value: u.rss},
	}
}

func (r *Runtime) stats(id string) (*v1.ContainerStats, usage, error) {
	c, started, err := r.running(id)
	if err != nil {
		return nil, usage{}, err
	}
	u, err := c.used(started.Init)
	now := time.Now().UnixNano()
	attributes := &v1.ContainerAttributes{Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations()}
	return &v1.ContainerStats{Attributes: attributes, Cpu: u.processor(now), Memory: u.ram(now)}, u, err
}

// ContainerStats measures a container that runs.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*v1.ContainerStats, error) {
	stats, _, err := r.stats(id)
	return stats, err
}

// ListContainerStats measures containers that run.
func (r *Runtime) ListContainerStats(_ context.Context, f *v1.ContainerStatsFilter) ([]*v1.ContainerStats, error) {
	var list []*v1.ContainerStats
	for _, id := range r.alive(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		if stats, _, err := r.stats(id); err == nil { // it may have ended meanwhile
			list = append(list, stats)
		}
	}
	return list, nil
}

func (r *Runtime) alive(id, sandbox string, labels map[string]string) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.state() == v1.ContainerState_CONTAINER_RUNNING && c.fits(id, sandbox, labels) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// PodSandboxStats measures a pod: the sum of its containers.
func (r *Runtime) PodSandboxStats(_ context.Context, id string) (*v1.PodSandboxStats, error) {
	s := r.sandbox(id)
	if s == nil {
		return nil, missing("sandbox", id)
	}
	var sum usage
	linux := &v1.LinuxPodSandboxStats{}
	for _, container := range r.alive("", id, nil) {
		stats, u, err := r.stats(container)
		if err != nil {
			continue
		}
		linux.Containers = append(linux.Containers, stats)
		sum = usage{sum.cpu + u.cpu, sum.memory + u.memory, sum.working + u.working, sum.rss + u.rss, sum.processes + u.processes}
	}
	now := time.Now().UnixNano()
	linux.Cpu, linux.Memory = sum.processor(now), sum.ram(now)
	linux.Process = &v1.ProcessUsage{Timestamp: now, ProcessCount: &v1.UInt64Value{Value: sum.processes}}
	attributes := &v1.PodSandboxAttributes{Id: id, Metadata: s.Config.GetMetadata(), Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations()}
	return &v1.PodSandboxStats{Attributes: attributes, Linux: linux}, nil
}

// ListPodSandboxStats measures pods that run.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, f *v1.PodSandboxStatsFilter) ([]*v1.PodSandboxStats, error) {
	ready := &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}
	pods, err := r.ListPodSandbox(ctx, &v1.PodSandboxFilter{Id: f.GetId(), State: ready, LabelSelector: f.GetLabelSelector()})
	if err != nil {
		return nil, err
	}
	var list []*v1.PodSandboxStats
	for _, pod := range pods {
		if stats, err := r.PodSandboxStats(ctx, pod.GetId()); err == nil {
			list = append(list, stats)
		}
	}
	return list, nil
}

// ListMetricDescriptors has none: what is measured is in the stats.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*v1.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics has none.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*v1.PodSandboxMetrics, error) {
	return nil, nil
}
