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
	// budgetShare is the part of the memory limit that is for request bodies in work. The rest is for stored objects, their encodings
	// and garbage, of which there may be nearly as much as lives.
	budgetShare = 4
	// maxBudget bounds the default budget: no sensible body needs more, and what takes memory takes processor time as well.
	maxBudget = 1 << 30
	// softLimit is the part of a cgroup's limit, in percent, above which the collector works harder. The rest is for stacks, threads
	// and what the system keeps for the process.
	softLimit = 90
)

// budgetFor is the default of --request-memory-budget. limit is 0 where it is not known.
func budgetFor(limit int64) int64 {
	if limit == 0 {
		return maxBudget
	}
	return min(limit/budgetShare, maxBudget)
}

// limitMemory returns the memory limit of the process in bytes: the least of GOMEMLIMIT, the limits of its cgroups and the memory of
// the machine, 0 where none is known. Without GOMEMLIMIT it makes the collector respect the cgroups. root is the root of the file system.
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

// cgroupLimit is the least limit of the cgroups, version 1 or 2, that the process is in.
func cgroupLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	groups, _ := fs.ReadFile(root, "proc/self/cgroup") // which only Linux has
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
		// A container may see its own cgroup as the root, and the path as the machine has it.
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

// machineMemory is the memory of the machine.
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
