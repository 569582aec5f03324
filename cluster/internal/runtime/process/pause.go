package process

import (
	"errors"
	"fmt"
	"io"
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

// Start starts the holder and has keep write down who it is. Had this process ended before, the holder would have, too:
// there is none that nobody knows.
func (h Holder) Start(keep func(ID) error) error {
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer open.Close()
	failed, report, err := os.Pipe()
	if err != nil {
		return errors.Join(err, gate.Close())
	}
	defer failed.Close()
	cmd := again(pauseName)
	cmd.Dir = h.Folder
	cmd.ExtraFiles = []*os.File{gate, report}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(h.Namespaces), Setsid: true}
	cmd.Env = h.settings()
	err = cmd.Start()
	gate.Close()
	report.Close()
	if err != nil {
		return fmt.Errorf("making the namespaces of a pod: %w", err)
	}
	go cmd.Wait()
	id, err := Identify(cmd.Process.Pid)
	if err == nil {
		err = keep(id)
	}
	if err != nil {
		return err // the gate closes
	}
	if _, err := open.Write([]byte{1}); err != nil {
		return err
	}
	if message, _ := io.ReadAll(failed); len(message) > 0 {
		return errors.New(string(message))
	}
	return nil
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
	signals := awaken()
	gate, report := os.NewFile(3, "gate"), os.NewFile(4, "report")
	if _, err := gate.Read(make([]byte, 1)); err != nil {
		return nil
	}
	if err := settle(os.Environ()); err != nil {
		fmt.Fprint(report, err)
		return err
	}
	report.Close()
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
