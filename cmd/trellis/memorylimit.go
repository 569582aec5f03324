package main

import (
	"bytes"
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// budgetShare is the divisor of the memory limit that results in the memory for the bodies of running requests.
	// The rest is for stored objects, their encodings, and garbage. Garbage can be as large as the live heap.
	budgetShare = 4
	// maxBudget is the maximum of the default budget. With more memory, the server would accept more requests than it
	// has processor time for.
	maxBudget = 1 << 30
	// softLimit is Go's soft memory limit in percent of a cgroup's limit. The rest is for stacks, threads and memory of
	// the kernel.
	softLimit = 90
)

// budgetFor returns the default of --request-memory-budget for a memory limit. 0 means that the limit is unknown.
func budgetFor(limit int64) int64 {
	if limit == 0 {
		return maxBudget
	}
	return min(limit/budgetShare, maxBudget)
}

// limitMemory returns the memory limit of the process in bytes. This is the minimum of GOMEMLIMIT, the limits of the
// process's cgroups and the memory of the machine. It is 0 if none of them is known. If GOMEMLIMIT is not set,
// limitMemory also sets Go's soft memory limit below the limit of the cgroups. root is the root of the file system.
func limitMemory(root fs.FS) int64 {
	soft, group := debug.SetMemoryLimit(-1), cgroupLimit(root)
	if soft == math.MaxInt64 && group < math.MaxInt64 {
		debug.SetMemoryLimit(group / 100 * softLimit)
	}
	limit := min(soft, group, machineMemory(root))
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// cgroupLimit returns the smallest limit of the cgroups (version 1 or 2) of the process.
func cgroupLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	groups, _ := fs.ReadFile(root, "proc/self/cgroup") // exists only on Linux
	for line := range bytes.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3) // hierarchy:controllers:path
		if len(fields) < 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		switch {
		case strings.Contains(","+fields[1]+",", ",memory,"):
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case fields[1] != "":
			continue
		}
		// In a container, the root folder can be the cgroup of the container, although the path is relative to the
		// root of the machine.
		for at := path.Join("/", fields[2]); ; at = path.Dir(at) {
			text, _ := fs.ReadFile(root, path.Join(folder, at, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}

// machineMemory returns the memory of the machine in bytes.
func machineMemory(root fs.FS) int64 {
	info, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range bytes.Lines(info) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && fields[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil && n > 0 {
				return n << 10
			}
		}
	}
	return math.MaxInt64
}
