package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
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
	// Without its shim nobody would know of it. If that has ended already, it is never told to go on.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if err := shim.ready(); err != nil {
		return err
	}
	if err := enroll(s.Cgroups); err != nil {
		return err
	}
	if s.OOMScoreAdj != 0 { // raising it is always allowed, lowering is for root
		os.WriteFile("/proc/self/oom_score_adj", fmt.Append(nil, s.OOMScoreAdj), 0)
	}
	syscall.Umask(0)
	if err := s.mount(); err != nil {
		return err
	}
	syscall.Umask(0o022)
	program, err := s.find(s.Args[0])
	if err != nil {
		return err
	}
	if program == Pause {
		signals := awaken()
		shim.tell(nil)
		return rest(signals)
	}
	return &os.PathError{Op: "exec", Path: program, Err: unix.Exec(program, s.Args, s.Env)}
}

// find finds the file that a word of the pod's means.
func (s *Spec) find(word string) (string, error) {
	if s.Program != "" && (len(s.Args) == 0 || word == s.Args[0]) {
		return s.Program, nil
	}
	var paths []string
	if s.Images != "" {
		inside, err := securejoin.SecureJoin(s.Images, word)
		if err != nil {
			return "", err
		}
		paths = append(paths, inside)
	}
	if strings.Contains(word, "/") {
		paths = append(paths, word)
	} else {
		for _, folder := range filepath.SplitList(value(s.Env, "PATH")) {
			paths = append(paths, filepath.Join(folder, word))
		}
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	if strings.Contains(word, "/") {
		return "", fmt.Errorf("exec: %q: no such file, or not executable", word)
	}
	return "", &exec.Error{Name: word, Err: exec.ErrNotFound}
}

func value(env []string, name string) string {
	found := ""
	for _, pair := range env {
		if v, ok := strings.CutPrefix(pair, name+"="); ok {
			found = v
		}
	}
	return found
}
