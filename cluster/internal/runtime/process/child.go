package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// First byte that a child writes to its parent.
const (
	readyByte  = '+' // the child exists and waits
	failedByte = '-' // an error message follows
)

// startChild starts a role of this program in two steps. First the child reports that it exists, and the function
// record stores its PID. Then the child continues. If this process ends before record returns, the child also ends, so
// every child that continues is recorded. startChild returns when the child has reported its result or has executed
// another program.
func startChild(cmd *exec.Cmd, record func(pid int) error) error {
	childGate, proceed, err1 := os.Pipe()
	report, result, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer proceed.Close()
	defer report.Close()
	cmd.ExtraFiles = []*os.File{childGate, result}
	err := cmd.Start()
	childGate.Close()
	result.Close()
	if err != nil {
		return fmt.Errorf("starting %s: %w", cmd.Args[0], err)
	}
	first := []byte{0}
	if _, err := report.Read(first); err != nil {
		return fmt.Errorf("%s ended without a report", cmd.Args[0])
	}
	if first[0] == readyByte {
		if err := record(cmd.Process.Pid); err != nil {
			return err
		}
		if _, err := proceed.Write([]byte{1}); err != nil {
			return fmt.Errorf("%s ended: %w", cmd.Args[0], err)
		}
	}
	if message, _ := io.ReadAll(report); len(message) > 0 {
		return errors.New(strings.TrimPrefix(string(message), string(failedByte)))
	}
	return nil
}

// childPipes holds the child's ends of the pipes that startChild makes.
type childPipes struct {
	proceed *os.File // receives a byte when the child may continue
	result  *os.File
}

// inheritPipes opens the pipes that startChild has passed to this process.
func inheritPipes() childPipes {
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	return childPipes{os.NewFile(3, "proceed"), os.NewFile(4, "result")}
}

// waitForParent reports to the parent that this process exists, and blocks until the parent has recorded it.
func (p childPipes) waitForParent() error {
	if _, err := p.result.Write([]byte{readyByte}); err != nil {
		return errParentEnded
	}
	defer p.proceed.Close()
	if _, err := p.proceed.Read(make([]byte, 1)); err != nil {
		return errParentEnded
	}
	return nil
}

var errParentEnded = errors.New("the parent process has ended")

// setParentDeathSignal makes the kernel kill this process when its parent ends. It returns an error if the parent has
// already ended. The kernel clears this setting when the process changes its user.
func (p childPipes) setParentDeathSignal() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	parent := []unix.PollFd{{Fd: int32(p.result.Fd())}}
	if unix.Poll(parent, 0); parent[0].Revents&unix.POLLERR != 0 {
		return errParentEnded
	}
	return nil
}

// reportResult sends err to the parent, or success if err is nil, and returns err.
func (p childPipes) reportResult(err error) error {
	if err != nil {
		fmt.Fprint(p.result, string(failedByte), err)
	}
	p.result.Close()
	return err
}
