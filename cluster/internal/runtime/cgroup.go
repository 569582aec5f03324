package runtime

import (
	"path/filepath"
	"sort"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// group is the cgroup of a container. The zero group is that of a container without limits, where the node may make
// no cgroups.
type group struct {
	Path    string
	Folders []string // one, or with cgroup v1 one a hierarchy
}

// makeGroup makes the cgroup of a container. Without the right to, the container has no limits.
func (r *Runtime) makeGroup(s *sandbox, id string, limits *v1.LinuxContainerResources) group {
	parent := s.Config.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = r.CgroupParent
	}
	g := group{Path: filepath.Join("/", parent, id)}
	manager, err := g.manager()
	if err == nil {
		err = manager.Apply(-1) // makes it, with nobody in it
	}
	if err == nil {
		for _, folder := range manager.GetPaths() {
			if exists(folder) { // nothing is made where there is nothing to limit
				g.Folders = append(g.Folders, folder)
			}
		}
		sort.Strings(g.Folders)
		err = g.limit(limits, r.PIDs)
	}
	if err != nil {
		r.Log.Info("A container has no limits", "container", id, "reason", err)
	}
	if err != nil && manager != nil && len(g.Folders) == 0 {
		manager.Destroy()
		return group{}
	}
	return g
}

// manager is nil where there is an error, as where no hierarchy is mounted.
func (g group) manager() (cgroups.Manager, error) {
	config := &cgroups.Cgroup{Path: g.Path, Resources: &cgroups.Resources{SkipDevices: true}}
	if cgroups.IsCgroup2UnifiedMode() {
		return orNil(fs2.NewManager(config, ""))
	}
	return orNil(fs.NewManager(config, nil))
}

// orNil makes one of nil and an error one that compares to nil, which a nil pointer in an interface does not.
func orNil(m cgroups.Manager, err error) (cgroups.Manager, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// limit sets what a container may have. What is not said stays.
func (g group) limit(l *v1.LinuxContainerResources, pids int64) error {
	if g.Path == "" || len(g.Folders) == 0 {
		return nil
	}
	manager, err := g.manager()
	if err != nil {
		return err
	}
	return manager.Set(resources(l, pids))
}

func resources(l *v1.LinuxContainerResources, pids int64) *cgroups.Resources {
	shares := uint64(max(l.GetCpuShares(), 0))
	limits := &cgroups.Resources{
		SkipDevices: true,
		Memory:      l.GetMemoryLimitInBytes(),
		CpuQuota:    l.GetCpuQuota(),
		CpuPeriod:   uint64(max(l.GetCpuPeriod(), 0)),
		CpuShares:   shares,
		CpuWeight:   cgroups.ConvertCPUSharesToCgroupV2Value(shares),
		CpusetCpus:  l.GetCpusetCpus(),
		CpusetMems:  l.GetCpusetMems(),
		Unified:     l.GetUnified(),
	}
	if pids > 0 {
		limits.PidsLimit = &pids
	}
	return limits
}

// outOfMemory says whether the kernel has killed something in there for want of memory.
func (g group) outOfMemory() bool {
	if len(g.Folders) == 0 {
		return false
	}
	manager, err := g.manager()
	if err != nil {
		return false
	}
	killed, err := manager.OOMKillCount()
	return err == nil && killed > 0
}

func (g group) destroy() error {
	if len(g.Folders) == 0 {
		return nil
	}
	manager, err := g.manager()
	if err != nil {
		return err
	}
	return manager.Destroy()
}
