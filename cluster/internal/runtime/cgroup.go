package runtime

import (
	"path/filepath"
	"sort"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cgroup is the cgroup of a container. The zero value means that the container has no limits, because the node may not
// create cgroups.
type cgroup struct {
	Path    string
	Folders []string // one folder in cgroup v2; one folder for each hierarchy in v1
}

// createCgroup creates the cgroup of a container. If the node may not create cgroups, createCgroup logs the reason and
// the container has no limits.
func (r *Runtime) createCgroup(s *sandbox, id string, limits *v1.LinuxContainerResources) cgroup {
	parent := s.Config.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = r.CgroupParent
	}
	group := cgroup{Path: filepath.Join("/", parent, id)}
	manager, err := group.manager()
	if err == nil {
		err = manager.Apply(-1) // creates it without a process
	}
	if err == nil {
		for _, folder := range manager.GetPaths() {
			if exists(folder) { // some hierarchies get a folder only if the container has a limit
				group.Folders = append(group.Folders, folder)
			}
		}
		sort.Strings(group.Folders)
		err = group.setLimits(limits, r.PIDs)
	}
	if err != nil {
		r.Log.Info("A container has no limits", "container", id, "reason", err)
	}
	if err != nil && manager != nil && len(group.Folders) == 0 {
		manager.Destroy()
		return cgroup{}
	}
	return group
}

// manager returns the manager of the cgroup. If it returns an error, the manager is nil. This happens, for example, if
// no hierarchy is mounted.
func (g cgroup) manager() (cgroups.Manager, error) {
	config := &cgroups.Cgroup{Path: g.Path, Resources: &cgroups.Resources{SkipDevices: true}}
	if cgroups.IsCgroup2UnifiedMode() {
		return managerOrNil(fs2.NewManager(config, ""))
	}
	return managerOrNil(fs.NewManager(config, nil))
}

// managerOrNil returns a nil interface if err is not nil. A nil pointer in the interface would not be equal to nil.
func managerOrNil(m cgroups.Manager, err error) (cgroups.Manager, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// setLimits sets the limits of the container. Limits that are missing in l stay unchanged.
func (g cgroup) setLimits(l *v1.LinuxContainerResources, pids int64) error {
	if g.Path == "" || len(g.Folders) == 0 {
		return nil
	}
	manager, err := g.manager()
	if err != nil {
		return err
	}
	return manager.Set(cgroupResources(l, pids))
}

// cgroupResources converts the limits of a container from CRI. If pids is 0, the number of processes has no limit.
func cgroupResources(l *v1.LinuxContainerResources, pids int64) *cgroups.Resources {
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

// oomKilled reports whether the kernel has killed a process of the cgroup because of its memory limit.
func (g cgroup) oomKilled() bool {
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

func (g cgroup) destroy() error {
	if len(g.Folders) == 0 {
		return nil
	}
	manager, err := g.manager()
	if err != nil {
		return err
	}
	return manager.Destroy()
}
