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

// What a process says to its parent: that it is there, or why it will not be.
const (
	ready  = '+'
	failed = '-'
)

// start starts one of our processes in two steps: it says that it is there, note writes down who it is, and then it is
// told to go on. If this process ends before, so does that one: there is none that nobody knows. start returns when
// the process has done what it had to, or has become another program.
func start(cmd *exec.Cmd, note func(pid int) error) error {
	gate, open, err1 := os.Pipe()
	report, result, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer open.Close()
	defer report.Close()
	cmd.ExtraFiles = []*os.File{gate, result}
	err := cmd.Start()
	gate.Close()
	result.Close()
	if err != nil {
		return fmt.Errorf("starting %s: %w", cmd.Args[0], err)
	}
	first := []byte{0}
	if _, err := report.Read(first); err != nil {
		return fmt.Errorf("%s ended without a word", cmd.Args[0])
	}
	if first[0] == ready {
		if err := note(cmd.Process.Pid); err != nil {
			return err
		}
		if _, err := open.Write([]byte{1}); err != nil {
			return fmt.Errorf("%s ended: %w", cmd.Args[0], err)
		}
	}
	if message, _ := io.ReadAll(report); len(message) > 0 {
		return errors.New(strings.TrimPrefix(string(message), string(failed)))
	}
	return nil
}

// birth is the other side of start.
type birth struct{ gate, result *os.File }

func born() birth {
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	return birth{os.NewFile(3, "gate"), os.NewFile(4, "result")}
}

// ready returns when this process may go on.
func (b birth) ready() error {
	if _, err := b.result.Write([]byte{ready}); err != nil {
		return err
	}
	defer b.gate.Close()
	if _, err := b.gate.Read(make([]byte, 1)); err != nil {
		return errors.New("what started it has ended")
	}
	return nil
}

// tether has this process end with its parent, also if that has ended just now. Who becomes another user is free again.
func (b birth) tether() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	parent := []unix.PollFd{{Fd: int32(b.result.Fd())}}
	if unix.Poll(parent, 0); parent[0].Revents&unix.POLLERR != 0 {
		return errors.New("what started it has ended")
	}
	return nil
}

// tell says how it went.
func (b birth) tell(err error) error {
	if err != nil {
		fmt.Fprint(b.result, string(failed), err)
	}
	b.result.Close()
	return err
}
