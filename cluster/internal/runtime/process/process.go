// Package process is what of the process runtime lives outside the node's own process: the holder of a pod's
// namespaces, the shim that watches over a container, its init, and the way of a command into it. Each is this same
// program, started again under another name. It knows the kernel and a folder with files, and nothing of CRI.
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

// Names of the processes, as ps shows them; the name a program was started under says what it is.
const (
	pauseName = "trellis-pause"
	shimName  = "trellis-shim"
	initName  = "trellis-init"
	enterName = "trellis-enter"
)

// These processes live as long as a pod does. So they begin here, before the packages that a node is made of set
// themselves up, and hold 4 MiB each instead of 10.
var _ = assume()

// ownDescriptors is the number of descriptors that each role has from its parent: the standard streams and two pipes.
const ownDescriptors = 5

// assume becomes what the name says that this program was started under, and then does not return.
func assume() bool {
	roles := map[string]func() error{pauseName: pause, shimName: shim, initName: begin, enterName: enter}
	role, ok := roles[os.Args[0]]
	if !ok {
		return false
	}
	os.WriteFile("/proc/self/comm", []byte(os.Args[0]), 0) // in place of exe
	runtime.LockOSThread()                                 // namespaces, and what happens when a parent ends, are a thread's
	err := descriptors.Drop(ownDescriptors)
	if err == nil {
		err = role()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(startFailed)
	}
	os.Exit(0)
	return true
}

// again is a command that runs this program in another role.
func again(name string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{name}, Env: []string{}}
}

// ID names a process for good: its number may be given to another one, the moment it started at not.
type ID struct {
	PID   int
	Start string // the boot, and clock ticks since then
}

// Identify finds the ID of a process that runs.
func Identify(pid int) (ID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	// The name, in brackets, may hold anything; from the state on it is fields.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const state, start = 0, 19
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ID{}, fmt.Errorf("process %d has ended", pid)
	}
	return ID{PID: pid, Start: strings.TrimSpace(string(boot)) + "/" + fields[start]}, nil
}

// Alive says whether the process still runs.
func (id ID) Alive() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Foreign says whether the process has another user namespace than this one.
func (id ID) Foreign() bool {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", id.PID))
	ours, _ := os.Readlink("/proc/self/ns/user")
	return err == nil && theirs != ours
}

// Open opens the process: what is done to the descriptor reaches this process or none.
func (id ID) Open() (*os.File, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", id.PID, err)
	}
	if !id.Alive() { // asked after opening: from now on the number is not given to another
		unix.Close(fd)
		return nil, fmt.Errorf("process %d has ended", id.PID)
	}
	return os.NewFile(uintptr(fd), "process "+strconv.Itoa(id.PID)), nil
}

// Signal sends a signal; to a process that has ended it does nothing.
func (id ID) Signal(s unix.Signal) error {
	f, err := id.Open()
	if err != nil {
		return nil
	}
	defer f.Close()
	return unix.PidfdSendSignal(int(f.Fd()), s, nil, 0)
}

// join takes the calling thread into namespaces of a process.
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
