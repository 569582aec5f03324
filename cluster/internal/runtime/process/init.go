package process

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// runInit runs a container's init. It sets up the container and then executes the container's command.
func runInit() error {
	shim := inheritPipes()
	return shim.reportResult(execCommand(shim))
}

// execCommand sets up the namespaces and the user of this process and executes the container's command. It returns
// only if this fails. For the pause image, it also returns when a signal ends the container.
func execCommand(shim childPipes) error {
	var s Spec
	if err := ReadFile(SpecFile, &s); err != nil {
		return err
	}
	if err := shim.setParentDeathSignal(); err != nil { // ends this process if the shim dies before it records the PID
		return err
	}
	if err := shim.waitForParent(); err != nil {
		return err
	}
	if err := joinCgroups(s.Cgroups); err != nil {
		return err
	}
	if s.OOMScoreAdj != 0 { // every user may raise the score, only root may lower it
		os.WriteFile("/proc/self/oom_score_adj", strconv.AppendInt(nil, int64(s.OOMScoreAdj), 10), 0)
	}
	image, err := s.openImageFile(s.Args[0])
	if err != nil {
		return err
	}
	syscall.Umask(0)
	if err := s.mount(); err != nil {
		return err
	}
	syscall.Umask(0o022)
	if err := s.switchUser(); err != nil {
		return err
	}
	if err := shim.setParentDeathSignal(); err != nil {
		return err
	}
	if s.Program == Pause {
		signals := notifySignals()
		shim.reportResult(nil)
		return waitForSignal(signals)
	}
	return s.launch(s.Args[0], image, func(path string) error {
		return &os.PathError{Op: "exec", Path: path, Err: unix.Exec(path, s.Args, s.Env)}
	})
}
