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

// Holder is the process that holds the namespaces of a pod.
type Holder struct {
	Folder     string // of the sandbox
	Namespaces int    // CLONE_NEW…
	Hostname   string
	Sysctls    map[string]string
}

// Start starts the holder, and has keep write down who it is before it goes on.
func (h Holder) Start(keep func(ID) error) error {
	cmd := again(pauseName)
	cmd.Dir, cmd.Env = h.Folder, h.settings()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(h.Namespaces), Setsid: true}
	err := start(cmd, func(pid int) error {
		id, err := Identify(pid)
		if err != nil {
			return err
		}
		return keep(id)
	})
	if cmd.Process != nil {
		go cmd.Wait()
	}
	return err
}

func (h Holder) settings() []string {
	list := []string{"hostname=" + h.Hostname}
	for name, value := range h.Sysctls {
		list = append(list, "sysctl "+name+"="+value)
	}
	return list
}

// pause sets up the namespaces of a pod, and stays.
func pause() error {
	signals, node := awaken(), born()
	err := node.ready()
	if err == nil {
		err = settle(os.Environ())
	}
	if node.tell(err) != nil {
		return err
	}
	return rest(signals)
}

func awaken() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGCHLD)
	return signals
}

// rest waits to be told to end, and takes care of orphans where this is the first process of a PID namespace.
func rest(signals <-chan os.Signal) error {
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

// settle sets what belongs to the new namespaces.
func settle(settings []string) error {
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

// Pause is the program of the image that is built in; a container's init needs no other file for it.
const Pause = pauseName
