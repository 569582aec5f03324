package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/cadvisor/lib/model"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// machine tells the kubelet what cAdvisor does, of the whole machine alone, out of /proc and statfs: so it needs no cgroups, and
// knows every file system. What containers use their runtime tells.
type machine struct {
	root   string // the kubelet's folder
	memory uint64

	mu     sync.Mutex
	latest *model.ContainerStats // that was asked for
}

func newMachine(root string) (*machine, error) {
	memory, err := readMeminfo()
	return &machine{root: root, memory: memory["MemTotal"]}, err
}

// Start has nothing to start.
func (m *machine) Start() error { return nil }

// MachineInfo says how large the machine is.
func (m *machine) MachineInfo(klog.Logger) (*model.MachineInfo, error) {
	return &model.MachineInfo{
		Timestamp: time.Now(), NumCores: runtime.NumCPU(), MemoryCapacity: m.memory,
		MachineID: identifier("/etc/machine-id"), SystemUUID: identifier("/sys/class/dmi/id/product_uuid"), BootID: identifier("/proc/sys/kernel/random/boot_id"),
	}, nil
}

// identifier is "" where there is none, or it is not for everybody to read.
func identifier(file string) string {
	data, _ := os.ReadFile(file)
	return string(bytes.TrimSpace(data))
}

// VersionInfo says what runs on it.
func (m *machine) VersionInfo() (*model.VersionInfo, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	info := &model.VersionInfo{KernelVersion: unix.ByteSliceToString(u.Release[:]), ContainerOsVersion: "Linux"}
	release, _ := os.ReadFile("/etc/os-release") // a container's system may have none
	for line := range strings.Lines(string(release)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			info.ContainerOsVersion = strings.Trim(name, `"`)
		}
	}
	return info, nil
}

// ContainerInfoV2 is what the machine has used, which goes by the name of the root cgroup; there is no other here.
func (m *machine) ContainerInfoV2(name string, _ model.RequestOptions) (map[string]model.ContainerInfo, error) {
	if name != "/" {
		return nil, nil
	}
	now, err := usage()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := m.latest; before != nil && now.Timestamp.After(before.Timestamp) && now.Cpu.Usage.Total >= before.Cpu.Usage.Total {
		used := float64(now.Cpu.Usage.Total-before.Cpu.Usage.Total) / now.Timestamp.Sub(before.Timestamp).Seconds()
		now.CpuInst = &model.CpuInstStats{Usage: model.CpuInstUsage{Total: uint64(used)}}
	}
	m.latest = now
	return map[string]model.ContainerInfo{name: {
		ContainerReference: model.ContainerReference{Name: name},
		Spec:               model.ContainerSpec{HasCpu: true, HasMemory: true, Memory: model.MemorySpec{Limit: m.memory}},
		Stats:              []*model.ContainerStats{now},
	}}, nil
}

// GetRequestedContainersInfo is the same for /metrics/cadvisor.
func (m *machine) GetRequestedContainersInfo(name string, options model.RequestOptions) (map[string]*model.ContainerInfo, error) {
	infos, err := m.ContainerInfoV2(name, options)
	all := map[string]*model.ContainerInfo{}
	for name, info := range infos {
		all[name] = &info
	}
	return all, err
}

// RootFsInfo is the file system of the kubelet's folder, and so are the next two: images are files wherever they lie.
func (m *machine) RootFsInfo() (model.FsInfo, error) { return m.GetDirFsInfo(m.root) }

// ImagesFsInfo is RootFsInfo.
func (m *machine) ImagesFsInfo(context.Context) (model.FsInfo, error) { return m.RootFsInfo() }

// ContainerFsInfo is RootFsInfo.
func (m *machine) ContainerFsInfo(context.Context) (model.FsInfo, error) { return m.RootFsInfo() }

// GetDirFsInfo is the file system that a folder is on.
func (m *machine) GetDirFsInfo(path string) (model.FsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return model.FsInfo{}, fmt.Errorf("file system of %s: %w", path, err)
	}
	block := uint64(fs.Bsize)
	return model.FsInfo{
		Timestamp: time.Now(), Mountpoint: path, Device: fmt.Sprintf("%x:%x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
		Capacity: fs.Blocks * block, Available: fs.Bavail * block, Usage: (fs.Blocks - fs.Bfree) * block,
		Inodes: &fs.Files, InodesFree: &fs.Ffree,
	}, nil
}

// usage is what the machine uses now.
func usage() (*model.ContainerStats, error) {
	memory, err := readMeminfo()
	if err != nil {
		return nil, err
	}
	cpu, err := readCPU()
	if err != nil {
		return nil, err
	}
	working := memory["MemTotal"] - min(memory["MemTotal"], memory["MemAvailable"])
	return &model.ContainerStats{
		Timestamp: time.Now(),
		Cpu:       &model.CpuStats{Usage: model.CpuUsage{Total: cpu}},
		Memory:    &model.MemoryStats{Usage: memory["MemTotal"] - memory["MemFree"], WorkingSet: working, RSS: memory["AnonPages"]},
	}, nil
}

// readMeminfo is /proc/meminfo in bytes.
func readMeminfo() (map[string]uint64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	of := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 2 && fields[1] == "kB" {
			kib, _ := strconv.ParseUint(fields[0], 10, 64)
			of[name] = kib * 1024
		}
	}
	if of["MemTotal"] == 0 {
		return nil, fmt.Errorf("/proc/meminfo does not say how much memory there is")
	}
	return of, nil
}

// ticksPerSecond is the unit of /proc/stat on every architecture of Linux's that Go knows.
const ticksPerSecond = 100

// readCPU is how many nanoseconds all processors have worked: user, nice, system, irq, softirq and steal of /proc/stat.
func readCPU() (uint64, error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat begins with %q: %v", line, err)
	}
	var ticks uint64
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return ticks * uint64(time.Second/ticksPerSecond), nil
}
