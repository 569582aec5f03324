package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/cluster/internal/descriptors"
)

// Rootless reports whether this process lacks a right that a node needs. A node must be able to mount file systems and
// to read the kernel's log. If Rootless returns true, the node must run in a confined process, see Spawn.
func Rootless() bool {
	if !canMount() {
		return true
	}
	if userns.RunningInUserNS() {
		return false // in a user namespace the kubelet does not need the log
	}
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		return true
	}
	log.Close()
	return false
}

// canMount reports whether this process has CAP_SYS_ADMIN.
func canMount() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// terminationTimeout is the time between SIGTERM and SIGKILL for a node.
const terminationTimeout = 30 * time.Second

// Spawn runs this program with other arguments in a child process, until the child exits or ctx ends. The child writes
// its output to out, and inherits no other files. The child also ends when this process ends for any reason. If
// confined is true, the child is root in a new user and mount namespace. This is necessary if Rootless returns true.
func Spawn(ctx context.Context, out io.Writer, confined bool, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self, args...)
	c.Stdout, c.Stderr = out, out
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, terminationTimeout
	// The child gets a separate process group. Otherwise an interrupt from the terminal would reach the child too, in
	// addition to the signal that this process sends.
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if confined {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := descriptors.CloseAllOnExec(); err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts the child
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		if confined {
			return fmt.Errorf("%w: %w", errNoNamespaces, err)
		}
		return err
	}
	if err := c.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// Killed reports whether a signal ended the child. The parameter err is an error of Spawn.
func Killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && !exit.Exited()
}

var errNoNamespaces = errors.New("a node without root needs user namespaces, but this system does not permit them: " +
	"check the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and " +
	"kernel.apparmor_restrict_unprivileged_userns")

// checkMounts returns an error if this process is in a user namespace and the system does not permit mounts there.
func checkMounts() error {
	if !userns.RunningInUserNS() {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("%w: mount: %w", errNoNamespaces, err)
	}
	return nil
}
