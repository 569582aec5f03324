package main

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

// TestMemoryLimit checks that the memory limit of the process is the minimum of the limits of its cgroups, their
// parents and the machine. The files are those of systemd, of containers and of cgroups v1. The limit also sets the
// garbage collector's soft limit.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	const mib = 1 << 20
	for name, c := range map[string]struct {
		files       map[string]string
		limit, soft int64
	}{
		"no Linux": {nil, 0, math.MaxInt64},
		"machine":  {map[string]string{"proc/meminfo": "MemFree: 1 kB\nMemTotal:  1024 kB\n"}, mib, math.MaxInt64},
		"unlimited": {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0,
			math.MaxInt64},
		"version 2": {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/memory.max": "1048576\n"}, mib, mib / 100 * 90},
		"container": {map[string]string{"proc/self/cgroup": "0::/pod/x\n", "sys/fs/cgroup/memory.max": "1048576\n",
			"proc/meminfo": "MemTotal: 4096 kB\n"}, mib, mib / 100 * 90},
		"version 1": {map[string]string{"proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2097152\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n"}, 2 * mib, 2 * mib / 100 * 90},
	} {
		files := fstest.MapFS{}
		for path, text := range c.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		debug.SetMemoryLimit(math.MaxInt64)
		limit, soft := limitMemory(files), debug.SetMemoryLimit(-1)
		if limit != c.limit || soft != c.soft {
			t.Errorf("%s: got limit %d and soft limit %d, want %d and %d", name, limit, soft, c.limit, c.soft)
		}
	}
	debug.SetMemoryLimit(mib) // GOMEMLIMIT
	if n := limitMemory(fstest.MapFS{"proc/meminfo": &fstest.MapFile{Data: []byte("MemTotal: 4096 kB\n")}}); n != mib ||
		debug.SetMemoryLimit(-1) != mib {
		t.Errorf("with GOMEMLIMIT: got limit %d, want %d", n, mib)
	}
	for limit, want := range map[int64]int64{0: 1 << 30, 512 * mib: 128 * mib, 1 << 40: 1 << 30} {
		if got := budgetFor(limit); got != want {
			t.Errorf("limit %d: got budget %d, want %d", limit, got, want)
		}
	}
}
