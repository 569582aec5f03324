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

// patience bounds what a test waits for. It is none of what is tested.
const patience = 30 * time.Second

// record is a log that tests read.
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

// running is a proxy.
type running struct {
	at  string
	log *record
	// stop ends it, and the test if it does not end.
	stop func()
}

// serve runs a proxy until the end of the test at most.
func serve(t testing.TB, change func(*socks5.Server)) running {
	t.Helper()
	log := &record{}
	s := &socks5.Server{
		MaxConnections: socks5.MaxConnections, HandshakeTimeout: socks5.HandshakeTimeout, DialTimeout: socks5.DialTimeout,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
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
		case <-time.After(patience):
			t.Error("the proxy does not end")
		}
	}
	t.Cleanup(stop)
	return running{l.Addr().String(), log, stop}
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

// echo answers with what it is sent, and says "bye" when there is no more.
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
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// asks sends bytes, and reads as many as are wanted.
func asks(t *testing.T, conn net.Conn, send, want []byte) {
	t.Helper()
	if _, err := conn.Write(send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("after % x: % x, %v, want % x", send, got[:n], err, want)
	}
}

// ends reads to the end of a connection, which the proxy must close.
func ends(t *testing.T, conn net.Conn) {
	t.Helper()
	if rest, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it is open still: %q, %v", rest, err)
	}
}

var greeting, noAuthentication = []byte{5, 1, 0}, []byte{5, 0}

// connect is a request for an address of IPv4 or IPv6.
func connect(to netip.AddrPort) []byte {
	kind := byte(1)
	if to.Addr().Is6() {
		kind = 4
	}
	request := append([]byte{5, 1, 0, kind}, to.Addr().AsSlice()...)
	return append(request, byte(to.Port()>>8), byte(to.Port()))
}

// tunnel is a connection through a proxy, by a client that is none of the library's.
func tunnel(t *testing.T, at, to string) *net.TCPConn {
	t.Helper()
	d, err := proxy.SOCKS5("tcp", at, nil, proxy.Direct)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// SOX-005: connections to IPv4, to IPv6, and to names of both, without authentication. Either side may end what it has to say first.
func TestConnects(t *testing.T) {
	at := serve(t, nil).at
	addresses := []string{"127.0.0.1:0"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		addresses = append(addresses, "[::1]:0")
	} else {
		t.Log("without IPv6, which this machine does not have on its loopback interface")
	}
	for _, address := range addresses {
		to := echo(t, address)
		conn := open(t, at)
		asks(t, conn, greeting, noAuthentication)
		asks(t, conn, connect(to), []byte{5, 0, 0})
		reply := make([]byte, 1)
		if _, err := io.ReadFull(conn, reply); err != nil || reply[0] != connect(to)[3] {
			t.Errorf("a bound address of kind %v, %v", reply, err)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(to.Addr().BitLen()/8+2)); err != nil {
			t.Fatal(err)
		}
		asks(t, conn, []byte("hello"), []byte("hello"))
		_ = conn.CloseWrite()
		if rest, err := io.ReadAll(conn); string(rest) != "bye" || err != nil {
			t.Errorf("after the end of one direction the other says %q, %v", rest, err)
		}
		asks(t, tunnel(t, at, to.String()), []byte("hello"), []byte("hello"))
	}
}

// SOX-004: a name goes to the far end as it is, and is resolved there.
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
	asks(t, tunnel(t, p.at, "far.example:6443"), []byte("hello"), []byte("hello"))
	d, _ := proxy.SOCKS5("tcp", p.at, nil, proxy.Direct)
	if _, err := d.Dial("tcp", "nowhere.invalid:6443"); err == nil || !strings.Contains(err.Error(), "host unreachable") {
		t.Errorf("a name that there is not: %v", err)
	}
	await(t, p.log, "nowhere.invalid")
}

// SOX-005: without a Dial of somebody else's, names are this machine's.
func TestNamesOfThisMachine(t *testing.T) {
	at := serve(t, nil).at
	_, port, _ := net.SplitHostPort(echo(t, "127.0.0.1:0").String())
	asks(t, tunnel(t, at, "localhost:"+port), []byte("hello"), []byte("hello"))
}

func await(t *testing.T, log *record, text string) {
	t.Helper()
	for tick, deadline := time.NewTicker(time.Millisecond), time.After(patience); !strings.Contains(log.String(), text); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the log does not have %q:\n%s", text, log)
		}
	}
}

// SOX-005: what it does not do, it says in the protocol's words, and then hangs up.
func TestRefuses(t *testing.T) {
	closed := listen(t, "127.0.0.1:0")
	nobody := closed.Addr().(*net.TCPAddr).AddrPort()
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
		{"a command that there is not", command(9), []byte{5, 7}},
		{"a kind of address that there is not", []byte{5, 1, 0, 9, 1, 2, 3, 4, 0, 80}, []byte{5, 8}},
		{"where nobody listens", connect(nobody), []byte{5, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := serve(t, nil).at
			conn := open(t, at)
			asks(t, conn, greeting, noAuthentication)
			asks(t, conn, c.request, c.want)
			ends(t, conn)
		})
	}
	t.Run("a client that wants to say who it is", func(t *testing.T) {
		at := serve(t, nil).at
		conn := open(t, at)
		asks(t, conn, []byte{5, 1, 2}, []byte{5, 0xff})
		ends(t, conn)
	})
}

// SOX-005: who speaks another protocol is turned away at once, however little that is, and the log says what it was and what is wanted.
func TestOtherProtocols(t *testing.T) {
	for what, begins := range map[string]string{
		"SOCKS4": "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "HTTP": "CONNECT a:1 HTTP/1.1\r\n\r\n", "TLS": "\x16\x03\x01", "what begins with the byte 7": "\x07",
	} {
		p := serve(t, nil)
		conn := open(t, p.at)
		if _, err := io.WriteString(conn, begins); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v, want an end", what, n, err)
		}
		p.stop() // it has said all that it says
		if want := "the client speaks " + what + ", and this is a SOCKS5 proxy"; !strings.Contains(p.log.String(), want) {
			t.Errorf("%s: %s, want %s", what, p.log, want)
		}
	}
}

// SOX-005: a client that does not say where it wants to go is cut off; one that has said it may be silent for longer than that.
func TestHandshakeTimeout(t *testing.T) {
	p := serve(t, func(s *socks5.Server) { s.HandshakeTimeout = 200 * time.Millisecond })
	said := tunnel(t, p.at, echo(t, "127.0.0.1:0").String())
	silent := open(t, p.at)
	asks(t, silent, greeting, noAuthentication)
	ends(t, silent)
	asks(t, said, []byte("hello"), []byte("hello"))
}

// SOX-005: where a connection is not made in time, the client hears of it.
func TestDialTimeout(t *testing.T) {
	p := serve(t, func(s *socks5.Server) {
		s.DialTimeout = time.Millisecond
		s.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	conn := open(t, p.at)
	asks(t, conn, greeting, noAuthentication)
	asks(t, conn, connect(netip.MustParseAddrPort("192.0.2.1:1")), []byte{5, 4})
	ends(t, conn)
}

// SOX-005: one more than there may be is cut off at once, and there is room again when another has ended.
func TestMaxConnections(t *testing.T) {
	p := serve(t, func(s *socks5.Server) { s.MaxConnections = 1 })
	to := echo(t, "127.0.0.1:0").String()
	first := tunnel(t, p.at, to)
	ends(t, open(t, p.at))
	await(t, p.log, "there are as many as there may be")
	asks(t, first, []byte("hello"), []byte("hello"))
	_ = first.Close()
	d, _ := proxy.SOCKS5("tcp", p.at, nil, proxy.Direct)
	for deadline := time.Now().Add(patience); ; {
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

// deaf is a destination that takes connections and leaves them alone.
func deaf(t *testing.T) (address string, accepted chan net.Conn) {
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
			_ = conn.SetDeadline(time.Now().Add(patience))
			t.Cleanup(func() { _ = conn.Close() })
			accepted <- conn
		}
	}()
	return l.Addr().String(), accepted
}

// SOX-011: the end of the proxy is the end of what goes through it, and nothing of it is left.
func TestEndsAll(t *testing.T) {
	p := serve(t, nil)
	through, half := tunnel(t, p.at, echo(t, "127.0.0.1:0").String()), open(t, p.at)
	asks(t, half, greeting, noAuthentication)
	to, accepted := deaf(t)
	silent := tunnel(t, p.at, to)
	if err := silent.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	ends(t, far) // it is told of the end, and says nothing
	p.stop()
	ends(t, silent)
	ends(t, through)
	ends(t, half)
	if conn, err := net.Dial("tcp", p.at); err == nil {
		_ = conn.Close()
		t.Error("it listens still")
	}
}

// SOX-005: nobody is warned of clients that just go, wherever they are in what they have to say.
func TestLeaving(t *testing.T) {
	p := serve(t, nil)
	to := echo(t, "127.0.0.1:0")
	for _, linger := range []int{-1, 0} { // with an end, and with a reset
		through := tunnel(t, p.at, to.String())
		asks(t, through, []byte("hello"), []byte("hello"))
		_ = through.SetLinger(linger)
		_ = through.Close()
		for _, said := range [][]byte{nil, {5}, {5, 1, 0}, {5, 1, 0, 5}, {5, 1, 0, 5, 1, 0, 1, 127}, {5, 1, 0, 5, 1, 0, 3, 9, 'a'}} {
			conn := open(t, p.at)
			asks(t, conn, said, nil)
			_ = conn.SetLinger(linger)
			_ = conn.Close()
		}
	}
	if p.stop(); p.log.String() != "" {
		t.Errorf("the log has:\n%s", p.log)
	}
}

// SOX-005: whatever a client sends, the proxy goes on, and its connection ends with it.
func FuzzServe(f *testing.F) {
	f.Add([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 80})
	f.Add([]byte{5, 1, 0, 5, 1, 0, 3, 0, 0, 80})
	f.Add([]byte{5, 0, 5, 3, 0, 4})
	f.Add([]byte{4, 1, 0, 80})
	f.Add([]byte{5, 255, 0})
	p := serve(f, func(s *socks5.Server) {
		s.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	})
	f.Fuzz(func(t *testing.T, said []byte) {
		conn, err := net.Dial("tcp", p.at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write(said)
		_ = conn.(*net.TCPConn).CloseWrite()
		ends(t, conn)
	})
}
