package socks5_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"github.com/trellis-k8s/trellis/internal/socks5"
)

// timeout limits how long a test waits. The tests do not depend on its value.
const timeout = 30 * time.Second

// record collects a log.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// server is a running proxy.
type server struct {
	address string
	log     *record
	// stop stops the proxy. The test fails if it does not stop.
	stop func()
}

// serve starts a proxy, which stops at the end of the test.
func serve(t testing.TB, change func(*socks5.Server)) server {
	t.Helper()
	log := &record{}
	s := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout,
		DialTimeout: socks5.DialTimeout,
		Logger:      slog.New(slog.NewTextHandler(log, nil)),
	}
	if change != nil {
		change(s)
	}
	l := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		s.Serve(ctx, l)
		close(ended)
	}()
	stop := func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(timeout):
			t.Error("the proxy does not stop")
		}
	}
	t.Cleanup(stop)
	return server{l.Addr().String(), log, stop}
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// echo starts a server that sends all received data back, and "bye" at the end.
func echo(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	l := listen(t, address)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_, _ = io.WriteString(conn, "bye")
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func open(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(timeout))
	return conn.(*net.TCPConn)
}

// exchange sends bytes and checks that the proxy responds with the bytes in want.
func exchange(t *testing.T, conn net.Conn, send, want []byte) {
	t.Helper()
	if _, err := conn.Write(send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("after sending % x: got % x, %v, want % x", send, got[:n], err, want)
	}
}

// wantClosed reads to the end of a connection. It fails the test unless the proxy closes the connection.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if rest, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the connection is still open: %q, %v", rest, err)
	}
}

var greeting, noAuthentication = []byte{5, 1, 0}, []byte{5, 0}

// connect returns a CONNECT request for an IPv4 or IPv6 address.
func connect(to netip.AddrPort) []byte {
	kind := byte(1)
	if to.Addr().Is6() {
		kind = 4
	}
	request := append([]byte{5, 1, 0, kind}, to.Addr().AsSlice()...)
	return append(request, byte(to.Port()>>8), byte(to.Port()))
}

// tunnel opens a connection through a proxy with the SOCKS5 client of golang.org/x/net.
func tunnel(t *testing.T, server, to string) *net.TCPConn {
	t.Helper()
	d, err := proxy.SOCKS5("tcp", server, nil, proxy.Direct)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(timeout))
	return conn.(*net.TCPConn)
}

// TestConnects checks connections to IPv4 and IPv6 addresses and to host names, without authentication. Either side may
// close its direction first. SOX-005
func TestConnects(t *testing.T) {
	proxyAddress := serve(t, nil).address
	addresses := []string{"127.0.0.1:0"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		addresses = append(addresses, "[::1]:0")
	} else {
		t.Log("IPv6 is not tested: the loopback interface has no IPv6 address")
	}
	for _, address := range addresses {
		to := echo(t, address)
		conn := open(t, proxyAddress)
		exchange(t, conn, greeting, noAuthentication)
		exchange(t, conn, connect(to), []byte{5, 0, 0})
		reply := make([]byte, 1)
		if _, err := io.ReadFull(conn, reply); err != nil || reply[0] != connect(to)[3] {
			t.Errorf("got a bound address of type %v, %v", reply, err)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(to.Addr().BitLen()/8+2)); err != nil {
			t.Fatal(err)
		}
		exchange(t, conn, []byte("hello"), []byte("hello"))
		_ = conn.CloseWrite()
		if rest, err := io.ReadAll(conn); string(rest) != "bye" || err != nil {
			t.Errorf("after closing one direction, read %q, %v from the other", rest, err)
		}
		exchange(t, tunnel(t, proxyAddress, to.String()), []byte("hello"), []byte("hello"))
	}
}

// TestNamesAreResolvedAtTheFarEnd checks that a host name is passed to Dial unresolved. SOX-004
func TestNamesAreResolvedAtTheFarEnd(t *testing.T) {
	to := echo(t, "127.0.0.1:0")
	p := serve(t, func(s *socks5.Server) {
		s.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "far.example:6443" {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			return (&net.Dialer{}).DialContext(ctx, network, to.String())
		}
	})
	exchange(t, tunnel(t, p.address, "far.example:6443"), []byte("hello"), []byte("hello"))
	d, _ := proxy.SOCKS5("tcp", p.address, nil, proxy.Direct)
	if _, err := d.Dial("tcp", "nowhere.invalid:6443"); err == nil ||
		!strings.Contains(err.Error(), "host unreachable") {
		t.Errorf("unknown host name: %v", err)
	}
	await(t, p.log, "nowhere.invalid")
}

// TestNamesOfThisMachine checks that host names are resolved by this machine if Dial is nil. SOX-005
func TestNamesOfThisMachine(t *testing.T) {
	proxyAddress := serve(t, nil).address
	_, port, _ := net.SplitHostPort(echo(t, "127.0.0.1:0").String())
	exchange(t, tunnel(t, proxyAddress, "localhost:"+port), []byte("hello"), []byte("hello"))
}

func await(t *testing.T, log *record, text string) {
	t.Helper()
	for tick, deadline := time.NewTicker(time.Millisecond), time.After(timeout); !strings.Contains(log.String(),
		text); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the log does not contain %q:\n%s", text, log)
		}
	}
}

// TestRefuses checks that unsupported and failed requests get the protocol's reply and that the connection is then
// closed. SOX-005
func TestRefuses(t *testing.T) {
	closed := listen(t, "127.0.0.1:0")
	unused := closed.Addr().(*net.TCPAddr).AddrPort()
	_ = closed.Close()
	to := echo(t, "127.0.0.1:0")
	command := func(c byte) []byte {
		r := connect(to)
		r[1] = c
		return r
	}
	for _, c := range []struct {
		name          string
		request, want []byte
	}{
		{"BIND", command(2), []byte{5, 7}},
		{"UDP ASSOCIATE", command(3), []byte{5, 7}},
		{"unknown command", command(9), []byte{5, 7}},
		{"unknown address type", []byte{5, 1, 0, 9, 1, 2, 3, 4, 0, 80}, []byte{5, 8}},
		{"closed port", connect(unused), []byte{5, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxyAddress := serve(t, nil).address
			conn := open(t, proxyAddress)
			exchange(t, conn, greeting, noAuthentication)
			exchange(t, conn, c.request, c.want)
			wantClosed(t, conn)
		})
	}
	t.Run("client that requires authentication", func(t *testing.T) {
		proxyAddress := serve(t, nil).address
		conn := open(t, proxyAddress)
		exchange(t, conn, []byte{5, 1, 2}, []byte{5, 0xff})
		wantClosed(t, conn)
	})
}

// TestOtherProtocols checks that a client of another protocol is rejected at its first byte, and that the log contains
// the protocol. SOX-005
func TestOtherProtocols(t *testing.T) {
	for protocol, begins := range map[string]string{
		"SOCKS4": "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "HTTP": "CONNECT a:1 HTTP/1.1\r\n\r\n", "TLS": "\x16\x03\x01",
		"an unknown protocol that begins with the byte 7": "\x07",
	} {
		p := serve(t, nil)
		conn := open(t, p.address)
		if _, err := io.WriteString(conn, begins); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read %d bytes, %v, want a closed connection", protocol, n, err)
		}
		p.stop() // so that the log is complete
		if want := "the client uses " + protocol + ", but this is a SOCKS5 proxy"; !strings.Contains(p.log.String(),
			want) {
			t.Errorf("%s: got log %s, want %s", protocol, p.log, want)
		}
	}
}

// TestHandshakeTimeout checks that a client that sends no request is disconnected, and that an established connection
// may be idle for longer than the timeout. SOX-005
func TestHandshakeTimeout(t *testing.T) {
	p := serve(t, func(s *socks5.Server) { s.HandshakeTimeout = 200 * time.Millisecond })
	established := tunnel(t, p.address, echo(t, "127.0.0.1:0").String())
	silent := open(t, p.address)
	exchange(t, silent, greeting, noAuthentication)
	wantClosed(t, silent)
	exchange(t, established, []byte("hello"), []byte("hello"))
}

// TestDialTimeout checks the reply to a client if the dial takes too long. SOX-005
func TestDialTimeout(t *testing.T) {
	p := serve(t, func(s *socks5.Server) {
		s.DialTimeout = time.Millisecond
		s.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	conn := open(t, p.address)
	exchange(t, conn, greeting, noAuthentication)
	exchange(t, conn, connect(netip.MustParseAddrPort("192.0.2.1:1")), []byte{5, 4})
	wantClosed(t, conn)
}

// TestMaxConnections checks that a connection above the limit is closed at once. When an earlier connection has
// ended, another connection is accepted. SOX-005
func TestMaxConnections(t *testing.T) {
	p := serve(t, func(s *socks5.Server) { s.MaxConnections = 1 })
	to := echo(t, "127.0.0.1:0").String()
	first := tunnel(t, p.address, to)
	wantClosed(t, open(t, p.address))
	await(t, p.log, "the maximum number of connections is reached")
	exchange(t, first, []byte("hello"), []byte("hello"))
	_ = first.Close()
	d, _ := proxy.SOCKS5("tcp", p.address, nil, proxy.Direct)
	for deadline := time.Now().Add(timeout); ; {
		conn, err := d.Dial("tcp", to)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// silentServer starts a server that accepts one connection and does nothing with it.
func silentServer(t *testing.T) (address string, accepted chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	accepted = make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(timeout))
			t.Cleanup(func() { _ = conn.Close() })
			accepted <- conn
		}
	}()
	return l.Addr().String(), accepted
}

// TestEndsAll checks that all connections end when the proxy stops. SOX-011
func TestEndsAll(t *testing.T) {
	p := serve(t, nil)
	through, half := tunnel(t, p.address, echo(t, "127.0.0.1:0").String()), open(t, p.address)
	exchange(t, half, greeting, noAuthentication)
	to, accepted := silentServer(t)
	silent := tunnel(t, p.address, to)
	if err := silent.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	wantClosed(t, far) // the destination sees the end of one direction and sends nothing
	p.stop()
	wantClosed(t, silent)
	wantClosed(t, through)
	wantClosed(t, half)
	if conn, err := net.Dial("tcp", p.address); err == nil {
		_ = conn.Close()
		t.Error("the proxy still listens")
	}
}

// TestLeaving checks that nothing is logged about clients that disconnect, at any stage of the protocol. SOX-005
func TestLeaving(t *testing.T) {
	p := serve(t, nil)
	to := echo(t, "127.0.0.1:0")
	for _, linger := range []int{-1, 0} { // an ordinary close, and a reset
		through := tunnel(t, p.address, to.String())
		exchange(t, through, []byte("hello"), []byte("hello"))
		_ = through.SetLinger(linger)
		_ = through.Close()
		for _, sent := range [][]byte{nil, {5}, {5, 1, 0}, {5, 1, 0, 5}, {5, 1, 0, 5, 1, 0, 1, 127},
			{5, 1, 0, 5, 1, 0, 3, 9, 'a'}} {
			conn := open(t, p.address)
			exchange(t, conn, sent, nil)
			_ = conn.SetLinger(linger)
			_ = conn.Close()
		}
	}
	if p.stop(); p.log.String() != "" {
		t.Errorf("the log is not empty:\n%s", p.log)
	}
}

// FuzzServe checks that no input stops the proxy, and that the connection ends. SOX-005
func FuzzServe(f *testing.F) {
	f.Add([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 80})
	f.Add([]byte{5, 1, 0, 5, 1, 0, 3, 0, 0, 80})
	f.Add([]byte{5, 0, 5, 3, 0, 4})
	f.Add([]byte{4, 1, 0, 80})
	f.Add([]byte{5, 255, 0})
	p := serve(f, func(s *socks5.Server) {
		s.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	})
	f.Fuzz(func(t *testing.T, input []byte) {
		conn, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(timeout))
		_, _ = conn.Write(input)
		_ = conn.(*net.TCPConn).CloseWrite()
		wantClosed(t, conn)
	})
}
