package storagetest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Etcd is a member of an etcd that a test can kill, restart and pause.
type Etcd struct {
	URL  string
	Dir  string // the data directory
	t    testing.TB
	peer string // URL for other members
	args []string
	cmd  *exec.Cmd
}

const etcdMissing = "bin/peers/etcd is missing: run \"make peers\" to build it (see peers/README.md)"

// Program returns the path of a program in the folder bin/peers (see peersDir), and whether the program exists.
func Program(t testing.TB, name string) (program string, found bool) {
	program = filepath.Join(peersDir(t), name)
	_, err := os.Stat(program)
	return program, err == nil
}

// StartEtcd starts an etcd that runs until the end of the test. If the flags contain a certificate, etcd serves TLS.
// StartEtcd skips the test if the program is missing.
func StartEtcd(t testing.TB, flags ...string) *Etcd {
	t.Helper()
	e := newMember(t, "default", flags)
	e.args = append(e.args, "--initial-cluster=default="+e.peer)
	e.Start()
	t.Cleanup(e.Kill)
	return e
}

// StartEtcdMembers starts an etcd of n members.
func StartEtcdMembers(t testing.TB, n int) []*Etcd {
	t.Helper()
	members, peers := make([]*Etcd, n), make([]string, n)
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		members[i] = newMember(t, name, nil)
		peers[i] = name + "=" + members[i].peer
	}
	var starts sync.WaitGroup
	for _, e := range members {
		e.args = append(e.args, "--initial-cluster="+strings.Join(peers, ","))
		starts.Go(e.Start)
		t.Cleanup(e.Kill)
	}
	starts.Wait()
	return members
}

// newMember returns a member that has not started.
func newMember(t testing.TB, name string, flags []string) *Etcd {
	t.Helper()
	program, found := Program(t, "etcd")
	if !found {
		t.Skip(etcdMissing)
	}
	dir, urls := t.TempDir(), [2]string{}
	for i := range urls {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = "http://" + l.Addr().String()
		_ = l.Close()
	}
	if slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--cert-file=") }) {
		urls[0] = strings.Replace(urls[0], "http:", "https:", 1)
	}
	return &Etcd{URL: urls[0], Dir: dir, t: t, peer: urls[1], args: append([]string{
		program, "--name=" + name, "--data-dir=" + dir, "--unsafe-no-fsync",
		"--listen-client-urls=" + urls[0], "--advertise-client-urls=" + urls[0],
		"--listen-peer-urls=" + urls[1], "--initial-advertise-peer-urls=" + urls[1],
	}, flags...)}
}

// peersDir returns the folder in TEST_PEERS, or else the folder bin/peers of the repository.
func peersDir(t testing.TB) string {
	if dir := os.Getenv("TEST_PEERS"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "peers", "README.md")); err == nil || dir == filepath.Dir(dir) {
			return filepath.Join(dir, "bin", "peers")
		}
		dir = filepath.Dir(dir)
	}
}

// Start starts etcd and waits until it serves clients.
func (e *Etcd) Start() {
	e.t.Helper()
	e.cmd = exec.Command(e.args[0], e.args[1:]...)
	stderr, err := e.cmd.StderrPipe()
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	var output []string
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "serving client traffic") {
			go func() {
				for lines.Scan() { // read on, so that etcd does not block on a full pipe
				}
			}()
			return
		}
		output = append(output, lines.Text())
	}
	e.t.Fatalf("etcd does not start:\n%s", strings.Join(output, "\n"))
}

// Kill kills etcd, as a crash would.
func (e *Etcd) Kill() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// Restore kills etcd, replaces its data directory with a copy of another one, and starts it.
func (e *Etcd) Restore(dir string) {
	e.t.Helper()
	e.Kill()
	if err := errors.Join(os.RemoveAll(e.Dir), os.CopyFS(e.Dir, os.DirFS(dir))); err != nil {
		e.t.Fatal(err)
	}
	e.Start()
}

// Signal sends a signal to etcd.
func (e *Etcd) Signal(signal os.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(signal); err != nil {
		e.t.Error(err)
	}
}
