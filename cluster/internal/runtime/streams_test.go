package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
)

func TestExecSync(t *testing.T) {
	w := newFixture(t, nil)
	c := sh("exec sleep 1000")
	c.Envs, c.WorkingDir = []*v1.KeyValue{{Key: "A", Value: []byte("b")}}, "/usr"
	id := w.start(c)
	// The last two: it sees the container's processes, and is one of them.
	if out := w.exec(id, `echo "$A $(pwd) $(hostname) $(cat /proc/1/comm) $(cat /proc/$$/comm)"`); out != "b /usr web-host sleep sh\n" {
		t.Errorf("out: %s", out)
	}
	out, errs, err := w.ExecSync(w.ctx, id, []string{"sh", "-c", "echo o; echo e >&2; exit 5"}, time.Minute)
	var code utilexec.ExitError
	if !errors.As(err, &code) || code.ExitStatus() != 5 || string(out) != "o\n" || string(errs) != "e\n" {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	if _, _, err = w.ExecSync(w.ctx, id, []string{"nothing"}, 0); errors.As(err, &code) || err == nil || !strings.Contains(err.Error(), "executable file not found in $PATH") {
		t.Errorf("a command that is not there: %v", err)
	}
	ready, wait := fifo(t)
	go func() { wait() }()
	if _, _, err = w.ExecSync(w.ctx, id, []string{"sh", "-c", "echo >" + ready + "; sleep 1000"}, 300*time.Millisecond); !errors.Is(err, remote.ErrCommandTimedOut) {
		t.Errorf("a command that takes too long: %v", err)
	}
	if _, _, err = w.ExecSync(w.ctx, w.start(sh("")), []string{"true"}, 0); err == nil {
		// It may have run in the time between; then the container was there.
		t.Log("the command came before the container's end")
	}
	if err := w.StopContainer(w.ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err = w.ExecSync(w.ctx, id, []string{"true"}, 0); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("in a container that has ended: %v", err)
	}
}

func stream(t *testing.T, address string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, "POST", u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

func TestExecStreams(t *testing.T) {
	w := newFixture(t, nil)
	id := w.start(sh("exec sleep 1000"))
	exec := func(tty bool, script string, o remotecommand.StreamOptions) error {
		t.Helper()
		answer, err := w.Exec(w.ctx, &v1.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Tty: tty, Stdin: o.Stdin != nil, Stdout: true, Stderr: !tty})
		if err != nil {
			t.Fatal(err)
		}
		o.Tty = tty
		return stream(t, answer.GetUrl(), o)
	}
	var out, errs bytes.Buffer
	large := strings.Repeat("0123456789abcdef", 1<<16)
	err := exec(false, "cat; echo e >&2; exit 4", remotecommand.StreamOptions{Stdin: strings.NewReader(large), Stdout: &out, Stderr: &errs})
	var code utilexec.ExitError
	if !errors.As(err, &code) || code.ExitStatus() != 4 || out.String() != large || errs.String() != "e\n" {
		t.Errorf("%v; %d bytes of %d; %q", err, out.Len(), len(large), errs.String())
	}
	out.Reset()
	sizes := queue{make(chan remotecommand.TerminalSize, 1)}
	sizes.c <- remotecommand.TerminalSize{Width: 123, Height: 45}
	typed, typist := io.Pipe()
	go fmt.Fprint(typist, "hello\n")
	err = exec(true, `tty >/dev/null || exit 1; while [ "$(stty size)" != "45 123" ]; do sleep 0.02; done; read line; echo "got $line"`,
		remotecommand.StreamOptions{Stdin: typed, Stdout: &out, TerminalSizeQueue: sizes})
	if err != nil || !strings.HasSuffix(out.String(), "got hello\r\n") {
		t.Errorf("on a terminal: %v, %q", err, out.String())
	}
}

// A program at a terminal finds TERM, as in other runtimes.
func TestTerm(t *testing.T) {
	w := newFixture(t, nil)
	for name, want := range map[string]string{"": "xterm", "TERM": "dumb"} {
		c := sh("exec sleep 1000")
		c.Envs = []*v1.KeyValue{{Key: name, Value: []byte("dumb")}}
		id := w.start(c)
		var out bytes.Buffer
		ask := []string{"sh", "-c", "echo $TERM"}
		answer, err := w.Exec(w.ctx, &v1.ExecRequest{ContainerId: id, Cmd: ask, Tty: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := stream(t, answer.GetUrl(), remotecommand.StreamOptions{Stdout: &out, Tty: true}); err != nil || out.String() != want+"\r\n" {
			t.Errorf("with %q of its own: %q, %v", name, out.String(), err)
		}
		if got := w.exec(id, "echo $TERM"); name == "" && got != "\n" {
			t.Errorf("without a terminal: %q", got)
		}
	}
}

type queue struct {
	c chan remotecommand.TerminalSize
}

func (q queue) Next() *remotecommand.TerminalSize {
	s, ok := <-q.c
	if !ok {
		return nil
	}
	return &s
}

func TestAttach(t *testing.T) {
	w := newFixture(t, nil)
	for _, tty := range []bool{false, true} {
		c := sh(`read line; echo "first $line"; read line; echo "second $line"; cat >/dev/null; echo end`)
		c.Stdin, c.StdinOnce, c.Tty = true, true, tty
		id := w.start(c)
		answer, err := w.Attach(w.ctx, &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		in, out := "a\nb\n", bytes.Buffer{}
		if tty {
			in += "\x04" // the end, as it is typed
		}
		if err := stream(t, answer.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(in), Stdout: &out, Tty: tty}); err != nil {
			t.Error(err)
		}
		want := "first a\nsecond b\nend\n"
		if got := strings.ReplaceAll(out.String(), "\r", ""); !tty && got != want || !strings.HasSuffix(got, "end\n") || !strings.Contains(got, "first a\n") {
			t.Errorf("tty %t: attached: %q", tty, got)
		}
		if s := w.waitForExit(id); s.GetExitCode() != 0 || !tty && strings.ReplaceAll(w.logText(id), "stdout F ", "") != want {
			t.Errorf("tty %t: %v\n%s", tty, s, w.logText(id))
		}
	}
}

// Who was attached to a container that says nothing, and has gone, leaves nothing.
func TestAttachDisconnect(t *testing.T) {
	w := newFixture(t, nil)
	for _, stdin := range []bool{false, true} {
		c := sh("exec sleep 1000")
		c.Stdin = true
		id := w.start(c)
		shim := fmt.Sprintf("/proc/%d/fd", w.shimPID(id))
		connections := func() (n int) {
			all, err := os.ReadDir(shim)
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range all {
				if to, _ := os.Readlink(filepath.Join(shim, fd.Name())); strings.HasPrefix(to, "socket:") {
					n++
				}
			}
			return n
		}
		const before = 2 // where it listens, and the node that waits for the end
		w.eventually("the node waits", func() bool { return connections() == before })
		answer, err := w.Attach(w.ctx, &v1.AttachRequest{ContainerId: id, Stdin: stdin, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(answer.GetUrl())
		var leave func()
		u.Host, leave = w.relayConnection(u.Host)
		client, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		typed, typist := io.Pipe()
		o := remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}
		if stdin {
			o.Stdin = typed
		}
		go client.StreamWithContext(w.ctx, o)
		w.eventually("it is attached", func() bool { return connections() > before })
		leave()
		w.eventually(fmt.Sprintf("stdin %t: nothing is left of it", stdin), func() bool { return connections() == before })
		typist.Close()
	}
}

// relayConnection passes one connection on to an address, until somebody cuts it.
func (w *fixture) relayConnection(to string) (address string, cut func()) {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		w.Fatal(err)
	}
	go func() {
		defer listener.Close()
		if client, err := listener.Accept(); err == nil {
			go io.Copy(server, client)
			io.Copy(client, server)
			client.Close()
		}
	}()
	return listener.Addr().String(), func() { server.Close() }
}

func TestPortForward(t *testing.T) {
	for _, network := range []Network{HostNetwork, BridgeNetwork} {
		t.Run(string(network), func(t *testing.T) {
			w := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { setNetwork(t, o, network) })
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			number := free.Addr().(*net.TCPAddr).Port
			free.Close()
			c := sh("")
			c.Image.Image, c.Command = "echo", []string{echoServer, fmt.Sprint("127.0.0.1:", number)}
			w.start(c)
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); { // until it listens
				if conn, err := w.sandbox(w.pod).dial(c.Command[1]); err == nil {
					conn.Close()
					break
				}
			}
			answer, err := w.PortForward(w.ctx, &v1.PortForwardRequest{PodSandboxId: w.pod, Port: []int32{int32(number)}})
			if err != nil {
				t.Fatal(err)
			}
			u, _ := url.Parse(answer.GetUrl())
			transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
			if err != nil {
				t.Fatal(err)
			}
			ready, stop := make(chan struct{}), make(chan struct{})
			dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u)
			forward, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", number)}, stop, ready, io.Discard, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() { ended <- forward.ForwardPorts() }()
			<-ready
			ports, err := forward.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			if got := w.echo(fmt.Sprint("127.0.0.1:", ports[0].Local)); got != "hello" {
				t.Errorf("echo: %q", got)
			}
			close(stop)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// echo sends hello to an echo server that may not listen yet, and returns what comes back.
func (w *fixture) echo(address string) string {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		io.WriteString(conn, "hello")
		conn.(*net.TCPConn).CloseWrite()
		text, err := io.ReadAll(conn)
		conn.Close()
		if err == nil && len(text) > 0 {
			return string(text)
		}
	}
	return ""
}
