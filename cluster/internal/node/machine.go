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

// machine implements cadvisor.Interface for the whole machine. It reads /proc and statfs instead of cgroups, so it
// works without cgroups and on every file system. The runtime reports the usage of containers.
type machine struct {
	root   string // the kubelet's folder
	memory uint64

	mu   sync.Mutex
	last *model.ContainerStats // last returned statistics, to calculate the CPU usage
}

func newMachine(root string) (*machine, error) {
	memory, err := readMeminfo()
	return &machine{root: root, memory: memory["MemTotal"]}, err
}

// Start does nothing.
func (m *machine) Start() error { return nil }

// MachineInfo returns the size and the identity of the machine.
func (m *machine) MachineInfo(klog.Logger) (*model.MachineInfo, error) {
	return &model.MachineInfo{
		Timestamp: time.Now(), NumCores: runtime.NumCPU(), MemoryCapacity: m.memory,
		MachineID:  identifier("/etc/machine-id"),
		SystemUUID: identifier("/sys/class/dmi/id/product_uuid"),
		BootID:     identifier("/proc/sys/kernel/random/boot_id"),
	}, nil
}

// identifier returns the content of a file, or "" if the file does not exist or may not be read.
func identifier(file string) string {
	data, _ := os.ReadFile(file)
	return string(bytes.TrimSpace(data))
}

// VersionInfo returns the versions of the kernel and of the operating system.
func (m *machine) VersionInfo() (*model.VersionInfo, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	info := &model.VersionInfo{KernelVersion: unix.ByteSliceToString(u.Release[:]), ContainerOsVersion: "Linux"}
	release, _ := os.ReadFile("/etc/os-release") // optional: the system of a container may not have it
	for line := range strings.Lines(string(release)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			info.ContainerOsVersion = strings.Trim(name, `"`)
		}
	}
	return info, nil
}

// ContainerInfoV2 returns the usage of the machine for the root cgroup, and nothing for other cgroups.
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
	if before := m.last; before != nil && now.Timestamp.After(before.Timestamp) &&
		now.Cpu.Usage.Total >= before.Cpu.Usage.Total {
		used := float64(now.Cpu.Usage.Total-before.Cpu.Usage.Total) / now.Timestamp.Sub(before.Timestamp).Seconds()
		now.CpuInst = &model.CpuInstStats{Usage: model.CpuInstUsage{Total: uint64(used)}}
	}
	m.last = now
	return map[string]model.ContainerInfo{name: {
		ContainerReference: model.ContainerReference{Name: name},
		Spec: model.ContainerSpec{HasCpu: true, HasMemory: true,
			Memory: model.MemorySpec{Limit: m.memory}},
		Stats: []*model.ContainerStats{now},
	}}, nil
}

// GetRequestedContainersInfo returns the result of ContainerInfoV2 for /metrics/cadvisor.
func (m *machine) GetRequestedContainersInfo(
	name string, options model.RequestOptions,
) (map[string]*model.ContainerInfo, error) {
	infos, err := m.ContainerInfoV2(name, options)
	all := map[string]*model.ContainerInfo{}
	for name, info := range infos {
		all[name] = &info
	}
	return all, err
}

// RootFsInfo returns the file system of the kubelet's folder.
func (m *machine) RootFsInfo() (model.FsInfo, error) { return m.GetDirFsInfo(m.root) }

// ImagesFsInfo returns RootFsInfo, because images are existing files of the machine and have no separate file system.
func (m *machine) ImagesFsInfo(context.Context) (model.FsInfo, error) { return m.RootFsInfo() }

// ContainerFsInfo returns RootFsInfo.
func (m *machine) ContainerFsInfo(context.Context) (model.FsInfo, error) { return m.RootFsInfo() }

// GetDirFsInfo returns the file system of a folder.
func (m *machine) GetDirFsInfo(path string) (model.FsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return model.FsInfo{}, fmt.Errorf("cannot get the size and usage of the file system of %s: %w", path, err)
	}
	block := uint64(fs.Bsize)
	return model.FsInfo{
		Timestamp: time.Now(), Mountpoint: path,
		Device:   fmt.Sprintf("%x:%x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
		Capacity: fs.Blocks * block, Available: fs.Bavail * block, Usage: (fs.Blocks - fs.Bfree) * block,
		Inodes: &fs.Files, InodesFree: &fs.Ffree,
	}, nil
}

// usage returns the current usage of the machine.
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
		Memory: &model.MemoryStats{
			Usage: memory["MemTotal"] - memory["MemFree"], WorkingSet: working, RSS: memory["AnonPages"],
		},
	}, nil
}

// readMeminfo returns the values of /proc/meminfo in bytes.
func readMeminfo() (map[string]uint64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	values := map[string]uint64{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 2 && fields[1] == "kB" {
			kib, _ := strconv.ParseUint(fields[0], 10, 64)
			values[name] = kib * 1024
		}
	}
	if values["MemTotal"] == 0 {
		return nil, fmt.Errorf("/proc/meminfo does not contain MemTotal")
	}
	return values, nil
}

// ticksPerSecond is the number of clock ticks per second in /proc/stat. It is the same on every architecture that Go
// supports.
const ticksPerSecond = 100

// readCPU returns the busy time of all CPUs in nanoseconds: user, nice, system, irq, softirq and steal of /proc/stat.
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
