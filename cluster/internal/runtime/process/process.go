// Package process implements the processes that the process runtime starts. These are the pause process of a Pod, and
// the shim, the init and the commands of a container. All of them run the executable of the node under another name.
// The package uses the kernel and the files in a container's folder. It must not import CRI.
package process

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/cluster/internal/descriptors"
)

// Names of the processes, as ps shows them. The first argument of a process selects its role.
const (
	pauseName = "trellis-pause"
	shimName  = "trellis-shim"
	initName  = "trellis-init"
	enterName = "trellis-enter"
)

// A role runs during the initialization of this package, before the packages of the node initialize. So each process
// uses only 4 MiB of memory instead of 10 MiB.
var _ = runRole()

// inheritedDescriptors is the number of descriptors that a role inherits from its parent: the standard streams and two
// pipes.
const inheritedDescriptors = 5

// runRole runs the role that the first argument of this process names, and then exits. If the argument names no role,
// it returns false.
func runRole() bool {
	roles := map[string]func() error{pauseName: runPause, shimName: runShim, initName: runInit, enterName: runEnter}
	role, ok := roles[os.Args[0]]
	if !ok {
		return false
	}
	os.WriteFile("/proc/self/comm", []byte(os.Args[0]), 0) // the default is exe
	runtime.LockOSThread()                                 // namespaces and parent-death signals belong to a thread
	err := descriptors.CloseInherited(inheritedDescriptors)
	if err == nil {
		err = role()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(startErrorCode)
	}
	os.Exit(0)
	return true
}

// selfCommand returns a command that runs this program. The parameter name is the role of the new process.
func selfCommand(name string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{name}, Env: []string{}}
}

// ID identifies a process uniquely. The kernel may reuse a PID, but not with the same start time.
type ID struct {
	PID   int
	Start string // boot ID, and clock ticks from the boot to the start
}

// Identify returns the ID of a running process. A zombie does not count as running.
func Identify(pid int) (ID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	// The name, in brackets, may contain any character. The fields after it are separated by spaces.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const state, start = 0, 19
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ID{}, fmt.Errorf("process %d has ended", pid)
	}
	return ID{PID: pid, Start: strings.TrimSpace(string(boot)) + "/" + fields[start]}, nil
}

// Alive reports whether the process still runs.
func (id ID) Alive() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// InOtherUserNamespace reports whether the process is in another user namespace than this process.
func (id ID) InOtherUserNamespace() bool {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", id.PID))
	own, _ := os.Readlink("/proc/self/ns/user")
	return err == nil && namespace != own
}

// Open returns a pidfd of the process. Operations on the pidfd never affect another process.
func (id ID) Open() (*os.File, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	if !id.Alive() { // checked after opening, because an open pidfd prevents the reuse of the PID
		unix.Close(fd)
		return nil, fmt.Errorf("process %d has ended", id.PID)
	}
	return os.NewFile(uintptr(fd), "process "+strconv.Itoa(id.PID)), nil
}

// Signal sends a signal to the process. It does nothing if the process has ended.
func (id ID) Signal(s unix.Signal) error {
	f, err := id.Open()
	if err != nil {
		return nil
	}
	defer f.Close()
	return unix.PidfdSendSignal(int(f.Fd()), s, nil, 0)
}

// join moves the calling thread into the given namespaces (CLONE_NEW…) of the process.
func (id ID) join(namespaces int) error {
	if namespaces == 0 {
		return nil
	}
	f, err := id.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), namespaces); err != nil {
		return fmt.Errorf("joining the namespaces of process %d: %w", id.PID, err)
	}
	return nil
}
