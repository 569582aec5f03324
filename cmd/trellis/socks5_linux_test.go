package main

import (
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

const (
	// ownNetwork is the name of an environment variable. It is set in a test process that has a separate network
	// namespace. Its value is the user ID of the parent process.
	ownNetwork = "TEST_OWN_NETWORK"
	// remoteServerAddress is the address of kubernetes-remote-server.example in the separate network (an address of
	// RFC 5737). It cannot be a loopback address, because clients ignore HTTPS_PROXY for loopback addresses.
	remoteServerAddress = "192.0.2.10"
)

// TestSOCKS5 runs the scripts in testdata/socks5 through `ssh -D` to a real sshd, and through `trellis socks5`. They
// run in a separate network namespace, where fixed ports cause no conflicts and no DNS server is reachable.
func TestSOCKS5(t *testing.T) {
	if os.Getenv(ownNetwork) == "" {
		inOwnNetwork(t)
		return
	}
	setUpNetwork(t)
	other := otherKubectl()
	bin := kubectlDir(t)
	commands := maps.Clone(scriptCommands)
	commands["connects"], commands["httpproxy"], commands["page"] = connects, runHTTPProxy, runSOCKS5Page
	for _, tunnel := range []string{"ssh", "socks5"} {
		t.Run(tunnel, func(t *testing.T) {
			if _, err := os.Stat("/usr/sbin/sshd"); tunnel == "ssh" && (err != nil || os.Getenv(ownNetwork) != "0") {
				t.Skip("no sshd, or the user is not root: run as root, with apt-get install openssh-server " +
					"openssh-client")
			}
			testscript.Run(t, testscript.Params{
				Dir:  "testdata/socks5",
				Cmds: commands,
				Setup: func(env *testscript.Env) error {
					env.Setenv("BY", tunnel)
					env.Setenv("FAR", remoteServerAddress)
					env.Setenv("OTHER_KUBECTL", other)
					return setUp(env, "", bin)
				},
				Condition: func(name string) (bool, error) {
					return name == "ssh" && tunnel == "ssh" || name == "other-kubectl" && other != "", nil
				},
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
			})
		})
	}
}

// skippedTest matches the skipped tests in the output of a test process.
var skippedTest = regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+)`)

// inOwnNetwork runs the calling test again in a new process with a separate network namespace. It skips the subtests
// that the new process has skipped.
func inOwnNetwork(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), ownNetwork+"="+strconv.Itoa(os.Geteuid()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("this system allows only root to create a network namespace: run the test as root, or permit user " +
			"namespaces (sysctl kernel.unprivileged_userns_clone=1)")
	}
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	for _, m := range skippedTest.FindAllStringSubmatch(string(out), -1) {
		part, isPart := strings.CutPrefix(m[1], t.Name()+"/")
		if !isPart {
			t.SkipNow()
		}
		t.Run(part, func(t *testing.T) { t.Skip("skipped in the separate network namespace") })
	}
}

// TestOwnNetworkSkips checks that inOwnNetwork skips a test that is skipped in the separate network namespace.
func TestOwnNetworkSkips(t *testing.T) {
	skipped := false
	t.Run("skips", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		if os.Getenv(ownNetwork) != "" {
			t.Skip("tests the skip")
		}
		inOwnNetwork(t)
	})
	if !skipped {
		t.Error("the subtest is not skipped")
	}
}

// setUpNetwork adds remoteServerAddress to the network of this process.
func setUpNetwork(t *testing.T) {
	t.Helper()
	if err := addAddress("lo:1", remoteServerAddress); err != nil {
		t.Fatal(err)
	}
}

// addAddress brings up the loopback interface of the thread's network and adds an address to it, with a
// label such as lo:1.
func addAddress(label, address string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	added, err := unix.NewIfreq(label)
	if err == nil {
		err = added.SetInet4Addr(net.ParseIP(address).To4())
	}
	return errors.Join(err, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up), unix.IoctlIfreq(fd, unix.SIOCSIFADDR, added))
}

// otherKubectl returns the path of this machine's kubectl, or "". It ignores the first folder of PATH, which holds the
// kubectl of testscript.
func otherKubectl() string {
	_, path, _ := strings.Cut(os.Getenv("PATH"), string(filepath.ListSeparator))
	for _, dir := range filepath.SplitList(path) {
		name := filepath.Join(dir, "kubectl")
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	return ""
}

// socks5Page is the documentation page that contains the chapter about the proxy. The script runs the commands in
// this chapter.
const socks5Page, socks5Chapter = "../../docs/reach.md", "## The API through SOCKS5"

// runSOCKS5Page runs the commands of the chapter: page. Each block runs in a separate shell. The output must be that
// in the chapter.
func runSOCKS5Page(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: page")
	}
	text, err := os.ReadFile(filepath.Join(ts.Getenv("MODULE"), "cmd/trellis", socks5Page))
	ts.Check(err)
	_, chapter, found := strings.Cut("\n"+string(text), "\n"+socks5Chapter+"\n")
	if !found {
		ts.Fatalf("%s has no chapter %q", socks5Page, socks5Chapter)
	}
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	for _, b := range pageBlock.FindAllStringSubmatch(chapter, -1) {
		output := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		switch b[1] {
		case "text":
			if !strings.Contains(masked(output), masked(b[2])) {
				ts.Fatalf("%s shows\n%sbut the output is\n%s", socks5Page, b[2], output)
			}
		case "sh":
			ts.Fatalf("no test runs these commands:\n%s", b[2])
		default:
			if err := ts.Exec("sh", "-eu", "-c", b[2]); (err != nil) != (b[1] == "sh refused") {
				ts.Fatalf("%s%v", b[2], err)
			}
		}
	}
}

// connects waits until ADDRESS accepts connections: connects ADDRESS. With !, it waits until ADDRESS no longer
// accepts connections.
func connects(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: connects address")
	}
	for tick, deadline := time.NewTicker(5*time.Millisecond), time.After(scriptTimeout); ; {
		conn, err := net.Dial("tcp", args[0])
		if err == nil {
			_ = conn.Close()
		}
		if (err != nil) == neg {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("%s: %v", args[0], err)
		}
	}
}

// runHTTPProxy runs an HTTP proxy (RFC 9110, CONNECT) until the end of the script: httpproxy [CERTIFICATE KEY]. It
// connects to remoteServerAddress for every host name. With a certificate and its key, the proxy uses HTTPS. The
// variable PROXY_PORT contains its port.
func runHTTPProxy(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 && len(args) != 2 {
		ts.Fatalf("usage: httpproxy [certificate key]")
	}
	p := httptest.NewUnstartedServer(http.HandlerFunc(connectRemoteServer))
	if len(args) == 0 {
		p.Start()
	} else {
		pair, err := tls.LoadX509KeyPair(ts.MkAbs(args[0]), ts.MkAbs(args[1]))
		ts.Check(err)
		p.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		p.StartTLS()
	}
	ts.Defer(p.Close)
	_, port, err := net.SplitHostPort(p.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv("PROXY_PORT", port)
}

func connectRemoteServer(w http.ResponseWriter, r *http.Request) {
	_, port, err := net.SplitHostPort(r.Host)
	if r.Method != http.MethodConnect || err != nil {
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	target, err := net.Dial("tcp", net.JoinHostPort(remoteServerAddress, port))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = target.Close() }()
	w.WriteHeader(http.StatusOK)
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = client.Close() }()
	go func() {
		_, _ = io.Copy(target, buffered)
		_ = target.Close()
	}()
	_, _ = io.Copy(client, target)
}
