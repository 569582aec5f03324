package selector

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	rpc "google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/component-base/metrics/legacyregistry"

	fixture "github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// timeout limits how long a test waits. The tests do not depend on its value.
const timeout = 20 * time.Second

// echo starts a server that sends all received data back. It returns an address of the server that only a tunnel
// can reach.
func (f *folder) echo() string {
	l := f.listen("tcp", "127.0.0.1:0")
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort("203.0.113.1", port)
}

// respond serves one connection at a time on the socket. It reads a request and writes text, or closes the connection
// if text is "".
func (f *folder) respond(text string) (requests chan *http.Request) {
	requests = make(chan *http.Request, 10)
	l := f.socket()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(conn)
			r, err := http.ReadRequest(in)
			if err != nil || text == "" {
				_ = conn.Close()
				continue
			}
			requests <- r
			_, _ = io.WriteString(conn, text)
			go func() {
				_, _ = io.Copy(conn, in)
				_ = conn.Close()
				close(requests)
			}()
		}
	}()
	return requests
}

// exchange writes text, closes the write side, and compares all that it reads with want.
func exchange(t *testing.T, conn net.Conn, text, want string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	if err == nil {
		err = conn.(interface{ CloseWrite() error }).CloseWrite()
	}
	got, readErr := io.ReadAll(conn)
	if err = errors.Join(err, readErr, conn.Close()); err != nil || string(got) != want {
		t.Errorf("read %q, want %q: %v", got, want, err)
	}
}

// TestHTTPConnect checks dials with HTTPConnect over a Unix socket and over TCP with mutual TLS. The tunnel server
// receives the address unresolved. Each direction of a connection can be closed separately. KON-001 KON-004 KON-007
// KON-008 KON-051
func TestHTTPConnect(t *testing.T) {
	f := newFolder(t)
	tcp := f.listen("tcp", "127.0.0.1:0")
	for transport, far := range map[string]*fixture.Server{overUDS: f.tunnel(f.socket(), server.ModeHTTPConnect, nil),
		overTCP(tcp): f.tunnel(tcp, server.ModeHTTPConnect, f.mutual())} {
		defer far.Close()
		dial, address := f.cluster("HTTPConnect", transport), f.echo()
		kind := "uds"
		if strings.HasPrefix(transport, "tcp") {
			kind = "tcp"
		}
		before := dials(t, "http_connect", kind, "")
		conn, err := dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatalf("%s: %v", transport, err)
		}
		long := strings.Repeat("0123456789abcdef", 1<<14)
		exchange(t, conn, long, long)
		if requests := far.Requests(); len(requests) != 1 || requests[0] != address {
			t.Errorf("the tunnel server got requests for %q, want %q", requests, address)
		}
		if after := dials(t, "http_connect", kind, ""); after != before+1 {
			t.Errorf("counted %d dials, want %d", after, before+1)
		}
		if conn, err := dial(t.Context(), "udp", address); err == nil ||
			!strings.Contains(err.Error(), "network udp is not supported") {
			t.Errorf("%v, %v", conn, err)
		}
	}
}

// TestConnectRequest checks that the request is an HTTP/1.1 CONNECT with the host and port, and that an address
// cannot add text to the request. Data that arrives with the 200 response is not lost. The response may be
// HTTP/1.0. KON-051
func TestConnectRequest(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.0 200 Connection established\r\nContent-Length: 3\r\n\r\n"} {
		f := newFolder(t)
		requests := f.respond(answer + "early")
		dial := f.cluster("HTTPConnect", overUDS)
		conn, err := dial(t.Context(), "tcp", "[2001:db8::1]:8443")
		if err != nil {
			t.Fatal(err)
		}
		if r := <-requests; r.Method != "CONNECT" || r.RequestURI != "[2001:db8::1]:8443" || r.Proto != "HTTP/1.1" ||
			r.Host != r.RequestURI || r.ContentLength > 0 {
			t.Errorf("%+v", r)
		}
		exchange(t, conn, "late", "earlylate")
		<-requests // closed with the connection
		for _, address := range []string{"a b:1", "a:1\r\nX: y", "a:1/"} {
			if _, err := dial(t.Context(), "tcp", address); err == nil {
				t.Errorf("dial %q succeeded", address)
			}
		}
	}
}

// TestRefused checks that the error of a refused dial contains the tunnel server's address, the status and the reason,
// and that the connection is closed. KON-051 KON-054
func TestRefused(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\ncurrently no tunnels available: No " +
			"agent available\nx": `code 500: 500 Internal Server Error: currently no tunnels available: No agent available`,
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n": "code 503: 503 Service Unavailable",
		"HTTP/1.1 403 Forbidden\r\n\r\n" + strings.Repeat("x", 1<<20):   "code 403: 403 Forbidden: xxx",
		"HTTP/1.1 204 No Content\r\n\r\n":                               "code 204: 204 No Content",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<16):           "read the response: ",
		"HTTP/1.1 x\r\n\r\n": "read the response: ",
	} {
		f := newFolder(t)
		requests := f.respond(answer)
		before := dials(t, "http_connect", "uds", "proxy")
		_, err := f.cluster("HTTPConnect", overUDS)(t.Context(), "tcp", "203.0.113.1:10250")
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "egress selection cluster: ") ||
			!strings.Contains(err.Error(), f.path("s")) || !strings.Contains(err.Error(), "203.0.113.1:10250") ||
			strings.ContainsAny(err.Error(), "\r\n") || len(err.Error()) > 2048 {
			t.Errorf("%.40q: %.400v, want %s", answer, err, want)
		}
		<-requests
		<-requests // closed with the connection
		if after := dials(t, "http_connect", "uds", "proxy"); after != before+1 {
			t.Errorf("counted %d failures, want %d", after, before+1)
		}
	}
}

// TestNobodyThere checks that a dial fails within its timeout if no tunnel server runs or the tunnel server does
// not respond. KON-054
func TestNobodyThere(t *testing.T) {
	f := newFolder(t)
	dial := f.cluster("HTTPConnect", overUDS)
	before := dials(t, "http_connect", "uds", "connect")
	if _, err := dial(t.Context(), "tcp", "203.0.113.1:1"); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "connect to the tunnel server at "+f.path("s")) {
		t.Errorf("no server: %v", err)
	}
	if after := dials(t, "http_connect", "uds", "connect"); after != before+1 {
		t.Errorf("counted %d failures, want %d", after, before+1)
	}
	l := f.socket()
	ends := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, conn)
		}
		ends <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dial(ctx, "tcp", "203.0.113.1:1"); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "203.0.113.1:1") {
		t.Errorf("a silent server: %v", err)
	}
	if err := <-ends; err != nil {
		t.Error(err)
	}
	for _, listens := range []bool{true, false} { // the timeout includes the TLS handshake
		tcp := f.listen("tcp", "127.0.0.1:0")
		dial := f.cluster("HTTPConnect", overTCP(tcp))
		if !listens {
			_ = tcp.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		before := dials(t, "http_connect", "tcp", "connect")
		if _, err := dial(ctx, "tcp", "203.0.113.1:1"); listens && !errors.Is(err, context.DeadlineExceeded) ||
			err == nil || dials(t, "http_connect", "tcp", "connect") != before+1 {
			t.Errorf("%v", err)
		}
	}
}

// TestConnectToGRPC checks that the error of a dial with HTTPConnect contains a hint if the tunnel server runs
// with --mode=grpc. KON-006
func TestConnectToGRPC(t *testing.T) {
	f := newFolder(t)
	server := rpc.NewServer()
	l := f.socket()
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	dial := f.cluster("HTTPConnect", overUDS)
	_, err := dial(t.Context(), "tcp", "203.0.113.1:1")
	if err == nil || !strings.Contains(err.Error(), hintConnect) {
		t.Errorf("a gRPC server: %v", err)
	}
	other := newFolder(t)
	other.respond("")
	if _, err := other.cluster("HTTPConnect", overUDS)(t.Context(), "tcp", "203.0.113.1:1"); err == nil ||
		!strings.Contains(err.Error(), "the proxy closed the connection; this server has proxyProtocol HTTPConnect") {
		t.Errorf("a server that closes the connection: %v", err)
	}
}

// TestCertificates checks that each side rejects a certificate that another CA issued, and that certificates are
// reloaded when their files change. KON-008
func TestCertificates(t *testing.T) {
	f := newFolder(t)
	tcp := f.listen("tcp", "127.0.0.1:0")
	other := newFolder(t)
	far := f.tunnel(tcp, server.ModeHTTPConnect, other.mutual())
	defer far.Close()
	address := f.echo()
	for files, want := range map[string]string{
		"caBundle: DIR/ca.crt, clientCert: DIR/admin.crt, clientKey: DIR/admin.key":                                  "certificate signed by unknown authority",
		"caBundle: OTHER/ca.crt, clientCert: DIR/admin.crt, clientKey: DIR/admin.key":                                "tls: ",
		"clientCert: DIR/admin.crt, clientKey: DIR/admin.key":                                                        "certificate signed by unknown authority",
		"caBundle: OTHER/ca.crt, clientCert: OTHER/admin.crt, clientKey: OTHER/admin.key, tlsServerName: other.name": "other.name",
	} {
		transport := strings.ReplaceAll("tcp: {url: 'https://"+tcp.Addr().String()+"', tlsConfig: {"+files+"}}",
			"OTHER", other.dir)
		if _, err := f.cluster("HTTPConnect", transport)(t.Context(), "tcp", address); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", files, err)
		}
	}
	s, err := f.open("{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {" + overTCP(tcp) + "}}}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(ended)
	}()
	for _, name := range []string{"ca.crt", "admin.crt", "admin.key"} {
		text, err := os.ReadFile(other.path(name))
		if err != nil {
			t.Fatal(err)
		}
		f.file("new", string(text))
		if err := os.Rename(f.path("new"), f.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*timeout, true,
		func(ctx context.Context) (bool, error) {
			conn, err := s.Dialer(egressselector.Etcd)(ctx, "tcp", address)
			if err == nil {
				exchange(t, conn, "hello", "hello")
			}
			return err == nil, nil
		})
	if err != nil {
		t.Errorf("the new certificates are not used: %v", err)
	}
	cancel()
	<-ended
}

// dials returns the number of dials through a tunnel, from upstream's metrics. If stage is not "", it returns the
// number of dials that failed in that stage.
func dials(t *testing.T, protocol, transport, stage string) int {
	t.Helper()
	name := "apiserver_egress_dialer_dial_start_total"
	if stage != "" {
		name = "apiserver_egress_dialer_dial_failure_count"
	}
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, family := range all {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["protocol"] == protocol && labels["transport"] == transport && labels["stage"] == stage {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return int(n)
}
