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

// streams is the server of exec, attach and port-forward for the kubelet of this machine. Each of its URLs can be used
// once.
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
	server, err := streaming.NewServer(config, (*streamingRuntime)(r))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &streams{server, &http.Server{Handler: server, ReadHeaderTimeout: 30 * time.Second, ConnContext: connContext}}
	go s.http.Serve(cancelListener{listener})
	return s, nil
}

// cancelListener accepts connections whose context ends when the client disconnects. The streaming server reads the
// connections continuously, but does not report a disconnect.
type cancelListener struct{ net.Listener }

func (l cancelListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &cancelConn{Conn: conn}, err
}

// cancelConn is a connection that calls cancel on its first read error.
type cancelConn struct {
	net.Conn
	cancel context.CancelFunc
}

func (c *cancelConn) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // net/http aborts reads with a deadline
		c.cancel()
	}
	return n, err
}

// connContext returns the context for the requests of a connection.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	ctx, conn.(*cancelConn).cancel = context.WithCancel(ctx)
	return ctx
}

func (s *streams) close() error { return s.http.Close() }

// Exec returns the URL of a stream that runs a command in a container.
func (r *Runtime) Exec(_ context.Context, request *v1.ExecRequest) (*v1.ExecResponse, error) {
	if _, _, err := r.runningContainer(request.GetContainerId()); err != nil {
		return nil, err
	}
	return r.streams.server.GetExec(request)
}

// Attach returns the URL of a stream that attaches to a container.
func (r *Runtime) Attach(_ context.Context, request *v1.AttachRequest) (*v1.AttachResponse, error) {
	c, _, err := r.runningContainer(request.GetContainerId())
	if err != nil {
		return nil, err
	}
	if request.Tty = c.Spec.TTY; request.Tty {
		request.Stderr = false
	}
	return r.streams.server.GetAttach(request)
}

// PortForward returns the URL of a stream to ports of a Pod.
func (r *Runtime) PortForward(_ context.Context, request *v1.PortForwardRequest) (*v1.PortForwardResponse, error) {
	if s := r.sandbox(request.GetPodSandboxId()); s == nil || !s.ready() {
		return nil, fmt.Errorf("sandbox %s is not running", request.GetPodSandboxId())
	}
	return r.streams.server.GetPortForward(request)
}

// ExecSync runs a command in a container and returns its output after it has ended. If timeout is 0, the command may
// run forever.
func (r *Runtime) ExecSync(
	ctx context.Context, id string, command []string, timeout time.Duration,
) (stdout, stderr []byte, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var out, errs limitedBuffer
	err = (*streamingRuntime)(r).run(ctx, id, command, false, process.Streams{Out: &out, Err: &errs})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, strings.Join(command, " "),
			timeout)
	}
	return out.Bytes(), errs.Bytes(), err
}

// limitedBuffer stores the first 16 MiB of a command's output, the limit of other runtimes, and discards the rest.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(data []byte) (int, error) {
	const limit = 16 << 20
	b.Buffer.Write(data[:min(len(data), limit-b.Buffer.Len())])
	return len(data), nil
}

// streamingRuntime implements the runtime interface of the streaming server.
type streamingRuntime Runtime

// run runs a command in a container. If the command fails, run returns a CodeExitError.
func (c *streamingRuntime) run(
	ctx context.Context, id string, command []string, tty bool, streams process.Streams,
) error {
	r := (*Runtime)(c)
	running, started, err := r.runningContainer(id)
	if err != nil {
		return err
	}
	enter := process.Enter{Spec: running.Spec, Init: started.Init, Command: command, TTY: tty}
	code, err := enter.Run(ctx, streams)
	if err != nil {
		name := running.Config.GetMetadata().GetName()
		return fmt.Errorf("running %q in container %q: %w", strings.Join(command, " "), name, err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// Exec runs a command in a container.
func (c *streamingRuntime) Exec(
	ctx context.Context, id string, command []string, in io.Reader, out, errs io.WriteCloser,
	tty bool, resize <-chan remotecommand.TerminalSize,
) error {
	streams := process.Streams{In: in, Terminal: func(terminal *os.File) {
		for size := range resize {
			process.Resize(terminal, size.Width, size.Height)
		}
	}}
	if out != nil { // a nil WriteCloser is not a nil Writer
		streams.Out = out
	}
	if errs != nil {
		streams.Err = errs
	}
	// As in other runtimes, the command continues when its client disconnects.
	return c.run(context.WithoutCancel(ctx), id, command, tty, streams)
}

// Attach attaches streams to a container until the container or ctx ends.
func (c *streamingRuntime) Attach(
	ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser,
	_ bool, resize <-chan remotecommand.TerminalSize,
) error {
	running, _, err := (*Runtime)(c).runningContainer(id)
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

// dial connects to an address in the network of a Pod.
func (s *sandbox) dial(address string) (net.Conn, error) {
	if s.Namespaces&unix.CLONE_NEWNET == 0 {
		return net.Dial("tcp", address)
	}
	return s.PauseProcess.Dial("tcp", address)
}

// PortForward connects a stream to a port of a Pod.
func (c *streamingRuntime) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	s := (*Runtime)(c).sandbox(id)
	if s == nil {
		return notFound("sandbox", id)
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
