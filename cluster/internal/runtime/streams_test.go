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

// TestExecSync checks the environment, output, exit code, timeout and errors of commands in a container.
func TestExecSync(t *testing.T) {
	f := newFixture(t, nil)
	c := sh("exec sleep 1000")
	c.Envs, c.WorkingDir = []*v1.KeyValue{{Key: "A", Value: []byte("b")}}, "/usr"
	id := f.start(c)
	// The command is in the container's namespaces, so process 1 is that of the container.
	if out := f.exec(id, `echo "$A $(pwd) $(hostname) $(cat /proc/1/comm) $(cat /proc/$$/comm)"`); out !=
		"b /usr web-host sleep sh\n" {
		t.Errorf("out: %s", out)
	}
	out, errs, err := f.ExecSync(f.ctx, id, []string{"sh", "-c", "echo o; echo e >&2; exit 5"}, time.Minute)
	var code utilexec.ExitError
	if !errors.As(err, &code) || code.ExitStatus() != 5 || string(out) != "o\n" || string(errs) != "e\n" {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	if _, _, err = f.ExecSync(f.ctx, id, []string{"nothing"}, 0); errors.As(err, &code) || err == nil ||
		!strings.Contains(err.Error(), "executable file not found in $PATH") {
		t.Errorf("an unknown command: %v", err)
	}
	ready, receive := fifo(t)
	go func() { receive() }()
	if _, _, err = f.ExecSync(f.ctx, id, []string{"sh", "-c", "echo >" + ready + "; sleep 1000"},
		300*time.Millisecond); !errors.Is(err, remote.ErrCommandTimedOut) {
		t.Errorf("a command that takes too long: %v", err)
	}
	if _, _, err = f.ExecSync(f.ctx, f.start(sh("")), []string{"true"}, 0); err == nil {
		// This is no error, because the container may still have been running when the command started.
		t.Log("the command ran before the container ended")
	}
	if err := f.StopContainer(f.ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err = f.ExecSync(f.ctx, id, []string{"true"}, 0); err == nil ||
		!strings.Contains(err.Error(), "is not running") {
		t.Errorf("in a container that has ended: %v", err)
	}
}

// stream connects to the URL of a stream and copies its data until it ends.
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

// TestExecStreams checks the streams of a command with and without a terminal.
func TestExecStreams(t *testing.T) {
	f := newFixture(t, nil)
	id := f.start(sh("exec sleep 1000"))
	exec := func(tty bool, script string, o remotecommand.StreamOptions) error {
		t.Helper()
		response, err := f.Exec(f.ctx, &v1.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Tty: tty,
			Stdin: o.Stdin != nil, Stdout: true, Stderr: !tty})
		if err != nil {
			t.Fatal(err)
		}
		o.Tty = tty
		return stream(t, response.GetUrl(), o)
	}
	var out, errs bytes.Buffer
	large := strings.Repeat("0123456789abcdef", 1<<16)
	err := exec(false, "cat; echo e >&2; exit 4", remotecommand.StreamOptions{Stdin: strings.NewReader(large),
		Stdout: &out, Stderr: &errs})
	var code utilexec.ExitError
	if !errors.As(err, &code) || code.ExitStatus() != 4 || out.String() != large || errs.String() != "e\n" {
		t.Errorf("%v; %d bytes of %d; %q", err, out.Len(), len(large), errs.String())
	}
	out.Reset()
	sizes := queue{make(chan remotecommand.TerminalSize, 1)}
	sizes.c <- remotecommand.TerminalSize{Width: 123, Height: 45}
	input, typing := io.Pipe()
	go fmt.Fprint(typing, "hello\n")
	err = exec(true, `tty >/dev/null || exit 1
		while [ "$(stty size)" != "45 123" ]; do sleep 0.02; done; read line; echo "got $line"`,
		remotecommand.StreamOptions{Stdin: input, Stdout: &out, TerminalSizeQueue: sizes})
	if err != nil || !strings.HasSuffix(out.String(), "got hello\r\n") {
		t.Errorf("on a terminal: %v, %q", err, out.String())
	}
}

// TestTerm checks that a command with a terminal has the variable TERM, as in other runtimes.
func TestTerm(t *testing.T) {
	f := newFixture(t, nil)
	for name, want := range map[string]string{"": "xterm", "TERM": "dumb"} {
		c := sh("exec sleep 1000")
		c.Envs = []*v1.KeyValue{{Key: name, Value: []byte("dumb")}}
		id := f.start(c)
		var out bytes.Buffer
		command := []string{"sh", "-c", "echo $TERM"}
		response, err := f.Exec(f.ctx, &v1.ExecRequest{ContainerId: id, Cmd: command, Tty: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := stream(t, response.GetUrl(), remotecommand.StreamOptions{Stdout: &out, Tty: true}); err != nil ||
			out.String() != want+"\r\n" {
			t.Errorf("with the variable %q: %q, %v", name, out.String(), err)
		}
		if got := f.exec(id, "echo $TERM"); name == "" && got != "\n" {
			t.Errorf("without a terminal: %q", got)
		}
	}
}

// queue is a TerminalSizeQueue that reads the sizes from a channel.
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

// TestAttach checks that an attached client writes to a container and reads its output until the container ends.
func TestAttach(t *testing.T) {
	f := newFixture(t, nil)
	for _, tty := range []bool{false, true} {
		c := sh(`read line; echo "first $line"; read line; echo "second $line"; cat >/dev/null; echo end`)
		c.Stdin, c.StdinOnce, c.Tty = true, true, tty
		id := f.start(c)
		response, err := f.Attach(f.ctx, &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		in, out := "a\nb\n", bytes.Buffer{}
		if tty {
			in += "\x04" // end of file on a terminal
		}
		if err := stream(t, response.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(in), Stdout: &out,
			Tty: tty}); err != nil {
			t.Error(err)
		}
		want := "first a\nsecond b\nend\n"
		if got := strings.ReplaceAll(out.String(), "\r", ""); !tty && got != want || !strings.HasSuffix(got, "end\n") ||
			!strings.Contains(got, "first a\n") {
			t.Errorf("tty %t: attached: %q", tty, got)
		}
		if s := f.waitForExit(id); s.GetExitCode() != 0 || !tty &&
			strings.ReplaceAll(f.logText(id), "stdout F ", "") != want {
			t.Errorf("tty %t: %v\n%s", tty, s, f.logText(id))
		}
	}
}

// TestAttachDisconnect checks that the shim closes the connections of a client that has disconnected, also if the
// container writes nothing.
func TestAttachDisconnect(t *testing.T) {
	f := newFixture(t, nil)
	for _, stdin := range []bool{false, true} {
		c := sh("exec sleep 1000")
		c.Stdin = true
		id := f.start(c)
		shim := fmt.Sprintf("/proc/%d/fd", f.shimPID(id))
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
		const before = 2 // the listener, and the connection on which the node waits for the exit status
		f.eventually("the node waits", func() bool { return connections() == before })
		response, err := f.Attach(f.ctx, &v1.AttachRequest{ContainerId: id, Stdin: stdin, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(response.GetUrl())
		var disconnect func()
		u.Host, disconnect = f.relayConnection(u.Host)
		client, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		input, typing := io.Pipe()
		o := remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}
		if stdin {
			o.Stdin = input
		}
		go client.StreamWithContext(f.ctx, o)
		f.eventually("the client is attached", func() bool { return connections() > before })
		disconnect()
		f.eventually(fmt.Sprintf("stdin %t: all connections of the client are closed", stdin),
			func() bool { return connections() == before })
		typing.Close()
	}
}

// relayConnection listens on a new address and forwards one connection to the address in the parameter to. The
// function cut closes this connection.
func (f *fixture) relayConnection(to string) (address string, cut func()) {
	f.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		f.Fatal(err)
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

// TestPortForward checks that a forwarded port reaches a server on the loopback address of a Pod.
func TestPortForward(t *testing.T) {
	for _, network := range []Network{HostNetwork, BridgeNetwork} {
		t.Run(string(network), func(t *testing.T) {
			f := newFixture(t, func(o *Options, _ *v1.PodSandboxConfig) { setNetwork(t, o, network) })
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			number := free.Addr().(*net.TCPAddr).Port
			free.Close()
			c := sh("")
			c.Image.Image, c.Command = "echo", []string{echoServer, fmt.Sprint("127.0.0.1:", number)}
			f.start(c)
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); { // until the server listens
				if conn, err := f.sandbox(f.pod).dial(c.Command[1]); err == nil {
					conn.Close()
					break
				}
			}
			response, err := f.PortForward(f.ctx, &v1.PortForwardRequest{PodSandboxId: f.pod,
				Port: []int32{int32(number)}})
			if err != nil {
				t.Fatal(err)
			}
			u, _ := url.Parse(response.GetUrl())
			transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
			if err != nil {
				t.Fatal(err)
			}
			ready, stop := make(chan struct{}), make(chan struct{})
			dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u)
			forward, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", number)}, stop, ready, io.Discard,
				os.Stderr)
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
			if got := f.echo(fmt.Sprint("127.0.0.1:", ports[0].Local)); got != "hello" {
				t.Errorf("echo: %q", got)
			}
			close(stop)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// echo sends hello to an echo server and returns the response. It retries until the server listens.
func (f *fixture) echo(address string) string {
	f.Helper()
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
