package process

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// begin is a container's init: it makes the container around itself, and becomes its command.
func begin() error {
	shim := born()
	return shim.tell(become(shim))
}

func become(shim birth) error {
	var s Spec
	if err := ReadFile(SpecFile, &s); err != nil {
		return err
	}
	if err := shim.tether(); err != nil { // without which nobody would know of it
		return err
	}
	if err := shim.ready(); err != nil {
		return err
	}
	if err := enroll(s.Cgroups); err != nil {
		return err
	}
	if s.OOMScoreAdj != 0 { // raising it is always allowed, lowering is for root
		os.WriteFile("/proc/self/oom_score_adj", strconv.AppendInt(nil, int64(s.OOMScoreAdj), 10), 0)
	}
	own, err := s.own(s.Args[0])
	if err != nil {
		return err
	}
	syscall.Umask(0)
	if err := s.mount(); err != nil {
		return err
	}
	syscall.Umask(0o022)
	if err := s.settleUser(); err != nil {
		return err
	}
	if err := shim.tether(); err != nil {
		return err
	}
	if s.Program == Pause {
		signals := awaken()
		shim.tell(nil)
		return rest(signals)
	}
	return s.launch(s.Args[0], own, func(path string) error {
		return &os.PathError{Op: "exec", Path: path, Err: unix.Exec(path, s.Args, s.Env)}
	})
}
