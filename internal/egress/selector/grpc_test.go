package selector

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	fixture "github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// counted counts the connections that a listener accepts.
type counted struct {
	net.Listener
	n atomic.Int64
}

// Accept implements net.Listener.
func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// echoes writes text to a connection and checks that the same text comes back.
func echoes(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got, ended := make([]byte, len(text)), make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, text)
		ended <- err
	}()
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Errorf("read %.40q, want %.40q: %v", got, text, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestGRPC checks dials with GRPC over a Unix socket, and over TCP with TLS, which upstream does not support. The dials
// share one connection to the tunnel server, and use a new one when it has ended. KON-001 KON-004 KON-007 KON-008
func TestGRPC(t *testing.T) {
	for _, kind := range []string{"uds", "tcp"} {
		f := newFolder(t)
		l, transport, secured := &counted{Listener: f.listen("tcp", "127.0.0.1:0")}, "", f.mutual()
		if transport = overTCP(l); kind == "uds" {
			l, transport, secured = &counted{Listener: f.socket()}, overUDS, nil
		}
		far := f.tunnel(l, server.ModeGRPC, secured)
		dial, address, before := f.cluster("GRPC", transport), f.echo(), dials(t, "grpc", kind, "")
		var all []net.Conn
		for range 3 {
			conn, err := dial(t.Context(), "tcp", address)
			if err != nil {
				t.Fatalf("%s: %v", transport, err)
			}
			all = append(all, conn)
		}
		for _, conn := range all {
			echoes(t, conn, strings.Repeat("0123456789abcdef", 1<<14))
		}
		if requests := far.Requests(); len(requests) != 3 || requests[0] != address || l.n.Load() != 1 {
			t.Errorf("the tunnel server got requests for %q over %d connections", requests, l.n.Load())
		}
		if after := dials(t, "grpc", kind, ""); after != before+3 {
			t.Errorf("counted %d dials, want %d", after, before+3)
		}
		far.Close()
		for _, conn := range all {
			if _, err := io.ReadAll(conn); err == nil {
				t.Error("a broken connection ended without an error")
			}
			_ = conn.Close()
		}
		again := f.tunnel(f.listen(l.Addr().Network(), l.Addr().String()), server.ModeGRPC, secured)
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, timeout, true,
			func(ctx context.Context) (bool, error) {
				conn, err := dial(ctx, "tcp", address)
				if err == nil { // the client has noticed that the previous connection ended
					echoes(t, conn, "hello")
					_ = conn.Close()
				}
				return err == nil, nil
			})
		if err != nil {
			t.Errorf("a new server: %v", err)
		}
		again.Close()
	}
}

// TestGRPCRefused checks that a dial with GRPC fails in time if the tunnel server refuses the dial, does not run
// or does not respond. KON-054
func TestGRPCRefused(t *testing.T) {
	f := newFolder(t)
	dial, address := f.cluster("GRPC", overUDS), f.echo()
	before := dials(t, "grpc", "uds", "connect")
	if _, err := dial(t.Context(), "tcp", address); !errors.Is(err, os.ErrNotExist) ||
		!strings.HasPrefix(err.Error(), "egress selection cluster: connect to the tunnel server at "+f.path("s")) {
		t.Errorf("no server: %v", err)
	}
	if after := dials(t, "grpc", "uds", "connect"); after != before+1 {
		t.Errorf("counted %d failures, want %d", after, before+1)
	}
	far := f.tunnel(f.socket(), server.ModeGRPC, nil)
	no := "No agent available"
	far.DialError.Store(&no)
	before = dials(t, "grpc", "uds", "proxy")
	if _, err := dial(t.Context(), "tcp", address); err == nil || !strings.Contains(err.Error(), no) ||
		!strings.Contains(err.Error(), address) {
		t.Errorf("no agent: %v", err)
	}
	if after := dials(t, "grpc", "uds", "proxy"); after != before+1 {
		t.Errorf("counted %d failures, want %d", after, before+1)
	}
	far.DialError.Store(nil)
	conn, err := dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("with an agent again: %v", err)
	}
	echoes(t, conn, "hello")
	_ = conn.Close()
	far.Close()
	l := f.socket()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = wait.PollUntilContextTimeout(t.Context(), time.Millisecond, timeout, true,
		func(context.Context) (bool, error) {
			_, err := dial(ctx, "tcp", address)
			// the previous server's connection may still have to end
			return errors.Is(err, context.DeadlineExceeded), nil
		})
	if err != nil {
		t.Errorf("a silent server: %v", err)
	}
}

// TestGRPCWithTheWrongCertificate checks that the error contains a hint if the tunnel server rejects this server's
// certificate. KON-054
func TestGRPCWithTheWrongCertificate(t *testing.T) {
	f, other := newFolder(t), newFolder(t)
	// the alert arrives during or after the handshake
	for _, most := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		l, c := f.listen("tcp", "127.0.0.1:0"), f.mutual()
		c.ClientCAs, c.MaxVersion = other.mutual().ClientCAs, most
		far := f.tunnel(l, server.ModeGRPC, c)
		defer far.Close()
		if _, err := f.cluster("GRPC", overTCP(l))(t.Context(), "tcp", "203.0.113.1:1"); err == nil ||
			!strings.Contains(err.Error(), hintCertificate) {
			t.Errorf("TLS %x: %v", most, err)
		}
	}
}

// TestGRPCToConnect checks that the error of a dial with GRPC contains a hint if the tunnel server runs with
// --mode=http-connect. KON-006
func TestGRPCToConnect(t *testing.T) {
	f := newFolder(t)
	tcp := f.listen("tcp", "127.0.0.1:0")
	for transport, far := range map[string]*fixture.Server{overUDS: f.tunnel(f.socket(), server.ModeHTTPConnect, nil),
		overTCP(tcp): f.tunnel(tcp, server.ModeHTTPConnect, f.mutual())} {
		defer far.Close()
		if _, err := f.cluster("GRPC", transport)(t.Context(), "tcp", "203.0.113.1:1"); err == nil ||
			!strings.Contains(err.Error(), hintGRPC) {
			t.Errorf("%s: %v", transport, err)
		}
	}
}
