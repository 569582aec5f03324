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
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// streams serve exec, attach and port-forward to the kubelet of this machine, at addresses that are good for once.
type streams struct {
	server streaming.Server
	http   *http.Server
}

func newStreams(r *Runtime) (*streams, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for streams of containers: %w", err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	server, err := streaming.NewServer(config, (*commands)(r))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &streams{server, &http.Server{Handler: server, ReadHeaderTimeout: 30 * time.Second, ConnContext: untilGone}}
	go s.http.Serve(noticing{listener})
	return s, nil
}

// noticing accepts connections that notice when the other side has gone. The streaming server, which reads all the time,
// tells nobody.
type noticing struct{ net.Listener }

func (l noticing) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &client{Conn: conn}, err
}

type client struct {
	net.Conn
	gone context.CancelFunc
}

func (c *client) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // by which net/http takes back a read
		c.gone()
	}
	return n, err
}

// untilGone is the context of what a connection asks for.
func untilGone(ctx context.Context, conn net.Conn) context.Context {
	ctx, conn.(*client).gone = context.WithCancel(ctx)
	return ctx
}

func (s *streams) close() error { return s.http.Close() }

// Exec prepares a command in a container.
func (r *Runtime) Exec(_ context.Context, request *v1.ExecRequest) (*v1.ExecResponse, error) {
	if _, _, err := r.running(request.GetContainerId()); err != nil {
		return nil, err
	}
	return r.streams.server.GetExec(request)
}

// Attach prepares the streams of a container.
func (r *Runtime) Attach(_ context.Context, request *v1.AttachRequest) (*v1.AttachResponse, error) {
	c, _, err := r.running(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if request.Tty = c.Spec.TTY; request.Tty {
		request.Stderr = false
	}
	return r.streams.server.GetAttach(request)
}

// PortForward prepares a way to ports of a pod.
func (r *Runtime) PortForward(_ context.Context, request *v1.PortForwardRequest) (*v1.PortForwardResponse, error) {
	if s := r.sandbox(request.GetPodSandboxId()); s == nil || !s.ready() {
		return nil, fmt.Errorf("sandbox %s does not run", request.GetPodSandboxId())
	}
	return r.streams.server.GetPortForward(request)
}

// ExecSync runs a command in a container to its end.
func (r *Runtime) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var out, errs bounded
	err = (*commands)(r).run(ctx, id, command, false, process.Streams{Out: &out, Err: &errs})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(command, " "), timeout)
	}
	return out.Bytes(), errs.Bytes(), err
}

// bounded keeps as much of what a command writes as other runtimes do.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(data []byte) (int, error) {
	const most = 16 << 20
	b.Buffer.Write(data[:min(len(data), most-b.Buffer.Len())])
	return len(data), nil
}

// commands are what the streaming server calls.
type commands Runtime

func (c *commands) run(ctx context.Context, id string, command []string, tty bool, streams process.Streams) error {
	r := (*Runtime)(c)
	running, started, err := r.running(id)
	if err != nil {
		return err
	}
	enter := process.Enter{Spec: running.Spec, Init: started.Init, Command: command, TTY: tty}
	code, err := enter.Run(ctx, streams)
	if err != nil {
		return fmt.Errorf("running %q in container %q: %w", strings.Join(command, " "), running.Config.GetMetadata().GetName(), err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// Exec runs a command in a container.
func (c *commands) Exec(ctx context.Context, id string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	streams := process.Streams{In: in, Terminal: func(terminal *os.File) {
		for size := range resize {
			process.Resize(terminal, size.Width, size.Height)
		}
	}}
	if out != nil { // a nil of this type is not the other's
		streams.Out = out
	}
	if errs != nil {
		streams.Err = errs
	}
	return c.run(context.WithoutCancel(ctx), id, command, tty, streams) // goes on without its client, as elsewhere
}

// Attach joins the streams of a container.
func (c *commands) Attach(ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	running, _, err := (*Runtime)(c).running(id)
	if err != nil {
		return err
	}
	go func() {
		if resize == nil {
			return
		}
		for size := range resize { // closed with the connection
			running.shim().Resize(size.Width, size.Height)
		}
	}()
	var stdout, stderr io.Writer
	if out != nil {
		stdout = out
	}
	if errs != nil {
		stderr = errs
	}
	return running.shim().Attach(ctx, in, stdout, stderr)
}

// dial connects to an address as a pod sees it.
func (s *sandbox) dial(address string) (net.Conn, error) {
	if s.Spaces&unix.CLONE_NEWNET == 0 {
		return net.Dial("tcp", address)
	}
	return s.Holder.Dial("tcp", address)
}

// PortForward connects a stream to a port of a pod.
func (c *commands) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	s := (*Runtime)(c).sandbox(id)
	if s == nil {
		return missing("sandbox", id)
	}
	conn, err := s.dial(fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		if conn, _ = s.dial(fmt.Sprintf("[::1]:%d", port)); conn == nil {
			return fmt.Errorf("connecting to port %d of pod %s: %w", port, s.name(), err)
		}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	go func() {
		io.Copy(conn, stream)
		conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}
