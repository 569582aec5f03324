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

// usage is the resource usage of a container: CPU time in nanoseconds, memory in bytes and the number of processes.
type usage struct{ cpu, memory, working, rss, processes uint64 }

// usage returns the usage of a container from its cgroup. Without a cgroup, it adds up the usage of the running
// processes. It then ignores processes that have ended.
func (c *container) usage(init process.ID) (usage, error) {
	if len(c.Cgroup.Folders) == 0 {
		return measureProcesses(init)
	}
	manager, err := c.Cgroup.manager()
	if err != nil {
		return usage{}, err
	}
	stats, err := manager.GetStats()
	if err != nil {
		return usage{}, fmt.Errorf("reading the usage of container %s: %w", c.ID, err)
	}
	return usageOf(stats), nil
}

// usageOf converts the statistics of a cgroup.
func usageOf(stats *cgroups.Stats) usage {
	m := stats.MemoryStats
	inactive, ok := m.Stats["total_inactive_file"]
	anon := m.Stats["total_rss"]
	if !ok { // cgroup v2 has no totals: its values include the cgroups below
		inactive, anon = m.Stats["inactive_file"], m.Stats["anon"]
	}
	return usage{
		cpu: stats.CpuStats.CpuUsage.TotalUsage, memory: m.Usage.Usage, rss: anon,
		working: m.Usage.Usage - min(inactive, m.Usage.Usage), processes: stats.PidsStats.Current,
	}
}

// measureProcesses adds up the usage of the processes in the PID namespace of init. If this is the namespace of the
// node, it returns the usage of init only.
func measureProcesses(init process.ID) (sum usage, err error) {
	namespaceOf := func(pid string) string {
		link, _ := os.Readlink(filepath.Join("/proc", pid, "ns/pid"))
		return link
	}
	namespace := namespaceOf(strconv.Itoa(init.PID))
	if namespace == "" {
		return sum, fmt.Errorf("process %d has ended", init.PID)
	}
	if namespace == namespaceOf("self") { // the other processes may belong to other containers
		sum.add(strconv.Itoa(init.PID))
		return sum, nil
	}
	for _, pid := range entries("/proc") {
		if _, err := strconv.Atoi(pid); err == nil && namespaceOf(pid) == namespace {
			sum.add(pid)
		}
	}
	return sum, nil
}

// clockTick is the unit of CPU times in /proc. It is always 1/100 s.
const clockTick = 10 * time.Millisecond

// add adds the usage of the process pid. It ignores a process that has ended.
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
	u.cpu += (number(user) + number(system)) * uint64(clockTick)
	memory := number(resident) * uint64(os.Getpagesize())
	u.memory, u.working, u.rss = u.memory+memory, u.working+memory, u.rss+memory
	u.processes++
}

func (u usage) cpuStats(at int64) *v1.CpuUsage {
	return &v1.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: &v1.UInt64Value{Value: u.cpu}}
}

func (u usage) memoryStats(at int64) *v1.MemoryUsage {
	return &v1.MemoryUsage{
		Timestamp: at, WorkingSetBytes: &v1.UInt64Value{Value: u.working},
		UsageBytes: &v1.UInt64Value{Value: u.memory}, RssBytes: &v1.UInt64Value{Value: u.rss},
	}
}

func (r *Runtime) stats(id string) (*v1.ContainerStats, usage, error) {
	c, started, err := r.runningContainer(id)
	if err != nil {
		return nil, usage{}, err
	}
	u, err := c.usage(started.Init)
	now := time.Now().UnixNano()
	attributes := &v1.ContainerAttributes{
		Id: c.ID, Metadata: c.Config.GetMetadata(),
		Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
	}
	return &v1.ContainerStats{Attributes: attributes, Cpu: u.cpuStats(now), Memory: u.memoryStats(now)}, u, err
}

// ContainerStats returns the usage of a running container.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*v1.ContainerStats, error) {
	stats, _, err := r.stats(id)
	return stats, err
}

// ListContainerStats returns the usage of running containers.
func (r *Runtime) ListContainerStats(_ context.Context, f *v1.ContainerStatsFilter) ([]*v1.ContainerStats, error) {
	var list []*v1.ContainerStats
	for _, id := range r.runningIDs(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
		if stats, _, err := r.stats(id); err == nil { // the container may have ended since
			list = append(list, stats)
		}
	}
	return list, nil
}

func (r *Runtime) runningIDs(id, sandbox string, labels map[string]string) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.state() == v1.ContainerState_CONTAINER_RUNNING && c.matches(id, sandbox, labels) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// PodSandboxStats returns the usage of a Pod, which is the sum of its containers.
func (r *Runtime) PodSandboxStats(_ context.Context, id string) (*v1.PodSandboxStats, error) {
	s := r.sandbox(id)
	if s == nil {
		return nil, notFound("sandbox", id)
	}
	var sum usage
	linux := &v1.LinuxPodSandboxStats{}
	for _, container := range r.runningIDs("", id, nil) {
		stats, u, err := r.stats(container)
		if err != nil {
			continue
		}
		linux.Containers = append(linux.Containers, stats)
		sum = usage{
			sum.cpu + u.cpu, sum.memory + u.memory, sum.working + u.working, sum.rss + u.rss,
			sum.processes + u.processes,
		}
	}
	now := time.Now().UnixNano()
	linux.Cpu, linux.Memory = sum.cpuStats(now), sum.memoryStats(now)
	linux.Process = &v1.ProcessUsage{Timestamp: now, ProcessCount: &v1.UInt64Value{Value: sum.processes}}
	attributes := &v1.PodSandboxAttributes{
		Id: id, Metadata: s.Config.GetMetadata(),
		Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(),
	}
	return &v1.PodSandboxStats{Attributes: attributes, Linux: linux}, nil
}

// ListPodSandboxStats returns the usage of running Pods.
func (r *Runtime) ListPodSandboxStats(ctx context.Context, f *v1.PodSandboxStatsFilter) ([]*v1.PodSandboxStats, error) {
	ready := &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}
	filter := &v1.PodSandboxFilter{Id: f.GetId(), State: ready, LabelSelector: f.GetLabelSelector()}
	pods, err := r.ListPodSandbox(ctx, filter)
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

// ListMetricDescriptors returns no descriptors, because the stats contain all measurements.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*v1.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics returns none.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*v1.PodSandboxMetrics, error) {
	return nil, nil
}
