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

// Rootless is true where this process may not do what a node has to: mount, and read the kernel's log. Then Spawn starts one
// that may, in namespaces of its own.
func Rootless() bool {
	if !mayMount() {
		return true
	}
	if userns.RunningInUserNS() {
		return false // where the kubelet does without the log
	}
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		return true
	}
	log.Close()
	return false
}

// mayMount is true if this process has CAP_SYS_ADMIN.
func mayMount() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// grace is how long a node that is to end may take.
const grace = 30 * time.Second

// Spawn runs this program once more, with other arguments, until it ends or ctx does. The new process has out as its output and
// no other file of this one. It ends with this process, however that ends. If
// confined, as a node has to be where Rootless, it is root in a user and a mount namespace of its own, of which its containers are.
func Spawn(ctx context.Context, out io.Writer, confined bool, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self, args...)
	c.Stdout, c.Stderr = out, out
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, grace
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // so that an interrupt at a terminal comes once, from here
	if confined {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	if err := descriptors.Keep(); err != nil {
		return err
	}
	runtime.LockOSThread() // whose end the process takes for ours
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

// Killed is whether it is a signal that has ended what Spawn ran.
func Killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && !exit.Exited()
}

var errNoNamespaces = errors.New("a node needs root, or user namespaces, which this system does not allow (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)")

// checkMounts refuses a namespace in which the system forbids what it is for.
func checkMounts() error {
	if !userns.RunningInUserNS() {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("%w: mount: %w", errNoNamespaces, err)
	}
	return nil
}
