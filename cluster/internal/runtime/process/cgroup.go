package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// joinCgroups moves this process into the cgroups with the given folders.
func joinCgroups(folders []string) error {
	for _, folder := range folders {
		if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("joining a cgroup: %w", err)
		}
	}
	return nil
}

// killCgroup kills all processes in a cgroup. If the kernel does not support cgroup.kill, killCgroup sends a signal to
// each process.
func killCgroup(folder string) {
	if os.WriteFile(filepath.Join(folder, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	list, _ := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
	for _, line := range bytes.Fields(list) {
		if pid, err := strconv.Atoi(string(line)); err == nil && pid > 1 {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}
