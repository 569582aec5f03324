package process

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// PauseProcess describes the process that holds the namespaces of a Pod.
type PauseProcess struct {
	Folder     string // of the sandbox
	Namespaces int    // CLONE_NEW…
	Hostname   string
	Sysctls    map[string]string
}

// Start starts the process. It calls the function record with the ID of the process before the process sets up its
// namespaces.
func (p PauseProcess) Start(record func(ID) error) error {
	cmd := selfCommand(pauseName)
	cmd.Dir, cmd.Env = p.Folder, p.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(p.Namespaces), Setsid: true}
	err := startChild(cmd, func(pid int) error {
		id, err := Identify(pid)
		if err != nil {
			return err
		}
		return record(id)
	})
	if cmd.Process != nil {
		go cmd.Wait()
	}
	return err
}

// environment returns the environment that passes the host name and the sysctls to the process.
func (p PauseProcess) environment() []string {
	list := []string{"hostname=" + p.Hostname}
	for name, value := range p.Sysctls {
		list = append(list, "sysctl "+name+"="+value)
	}
	return list
}

// runPause sets up the namespaces of a Pod and runs until a signal ends it.
func runPause() error {
	signals, node := notifySignals(), inheritPipes()
	err := node.waitForParent()
	if err == nil {
		err = configureNamespaces(os.Environ())
	}
	if node.reportResult(err) != nil {
		return err
	}
	return waitForSignal(signals)
}

func notifySignals() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGCHLD)
	return signals
}

// waitForSignal waits for SIGTERM or SIGINT. Until then it reaps orphans. They become children of the first process of
// a PID namespace.
func waitForSignal(signals <-chan os.Signal) error {
	for s := range signals {
		if s != unix.SIGCHLD {
			return nil
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// configureNamespaces sets the host name and the sysctls of the new namespaces.
func configureNamespaces(settings []string) error {
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		if sysctl, ok := strings.CutPrefix(name, "sysctl "); ok {
			path := filepath.Join("/proc/sys", filepath.Clean("/"+strings.ReplaceAll(sysctl, ".", "/")))
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return fmt.Errorf("setting %s: %w", sysctl, err)
			}
		} else if value != "" {
			if err := unix.Sethostname([]byte(value)); err != nil {
				return fmt.Errorf("setting the host name %s: %w", value, err)
			}
		}
	}
	return nil
}

// Pause is the program of the built-in pause image. It is a part of this program, so the container's init executes no
// other file.
const Pause = pauseName
