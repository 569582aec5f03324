package konnectivity_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

// testTimeout is the maximum time that a test waits for anything.
const testTimeout = time.Minute

// pki holds a CA certificate, as values and as files. All servers and clients use it as their own certificate.
type pki struct {
	cert          tls.Certificate
	pool          *x509.CertPool
	ca, crt, key  string
	server, agent *tls.Config
}

func newPKI(t testing.TB) *pki {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	p := &pki{pool: x509.NewCertPool(), cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
	p.pool.AddCert(parsed)
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	p.crt, p.key = filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	p.ca = p.crt
	must(t, os.WriteFile(p.crt, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(p.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs}), 0o600))
	certs := []tls.Certificate{p.cert}
	p.server = &tls.Config{Certificates: certs, ClientCAs: p.pool, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2", "http/1.1"}}
	p.agent = &tls.Config{Certificates: certs, RootCAs: p.pool, NextProtos: []string{"h2"}, ServerName: "localhost"}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor blocks until a condition holds, and fails the test after testTimeout.
func waitFor(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	limit := time.After(testTimeout)
	for !holds() {
		select {
		case <-limit:
			t.Fatalf("condition not met within %v: %s", testTimeout, condition)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func listen(t testing.TB, network, address string) net.Listener {
	l, err := net.Listen(network, address)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serve accepts TCP connections and calls handle for each.
func serve(t testing.TB, handle func(net.Conn)) (address string) {
	l := listen(t, "tcp", "127.0.0.1:0")
	go serveOn(l, handle)
	return l.Addr().String()
}

func serveOn(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go handle(c)
	}
}

// freePort returns a free port below 32768. The reference programs reject ephemeral ports.
func freePort(t testing.TB) string {
	for port := 20000 + os.Getpid()%5000; port < 32000; port++ {
		if taken[port] { // another caller may be about to listen
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			_ = l.Close()
			taken[port] = true
			return strconv.Itoa(port)
		}
	}
	t.Fatal("no free port")
	return ""
}

var taken = map[int]bool{}

// reference returns the path of a program of the reference implementation. It skips the test if there is none.
func reference(t testing.TB, name string) string {
	dir := os.Getenv("REFERENCE_KONNECTIVITY")
	if dir == "" {
		t.Skip("REFERENCE_KONNECTIVITY is not set: build cmd/server and cmd/agent of " +
			"kubernetes-sigs/apiserver-network-proxy as proxy-server and proxy-agent, and set it to their directory")
	}
	return filepath.Join(dir, name)
}

// start runs a program until the test ends.
func start(t testing.TB, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(path)+".log"))
	must(t, err)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if log, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%s: %s", filepath.Base(path), log[max(0, len(log)-4000):])
		}
	})
	return cmd
}

// transport defines how API servers connect to the tunnel server.
type transport struct {
	mode server.Mode
	uds  bool
}

func (tr transport) String() string {
	if tr.uds {
		return string(tr.mode) + " over a Unix socket"
	}
	return string(tr.mode) + " over mTLS"
}

var transports = []transport{{server.ModeGRPC, true}, {server.ModeGRPC, false}, {server.ModeHTTPConnect, true},
	{server.ModeHTTPConnect, false}}

// tunnelServer is a running tunnel server: a Trellis server in this process, or a reference program.
type tunnelServer struct {
	frontend string // socket or address
	agents   string // address
	ready    func() bool
	trellis  *server.Server // nil for a reference server
}

func startTrellisServer(t testing.TB, p *pki, tr transport) *tunnelServer {
	s := server.New(server.Options{ID: "trellis", Count: 1, KeepaliveTime: time.Minute,
		FrontendKeepaliveTime: time.Minute, Strategies: []server.Strategy{server.Default},
		Logger: slog.New(slog.DiscardHandler)})
	agents := tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server)
	go func() { _ = s.ServeAgents(agents) }()
	var frontends net.Listener
	if tr.uds {
		frontends = listen(t, "unix", filepath.Join(t.TempDir(), "sock"))
	} else {
		frontends = tls.NewListener(tlsbatch.Listener{Listener: listen(t, "tcp", "127.0.0.1:0")}, p.server)
	}
	go func() { _ = s.ServeFrontends(frontends, tr.mode) }()
	t.Cleanup(func() {
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(canceled)
	})
	return &tunnelServer{frontend: frontends.Addr().String(), agents: agents.Addr().String(), ready: s.Ready,
		trellis: s}
}

func startReferenceServer(t testing.TB, p *pki, tr transport) *tunnelServer {
	agents, health, frontend := freePort(t), freePort(t), freePort(t)
	args := []string{"--mode=" + string(tr.mode),
		"--agent-port=" + agents, "--health-port=" + health, "--admin-port=" + freePort(t),
		"--cluster-cert=" + p.crt, "--cluster-key=" + p.key, "--cluster-ca-cert=" + p.ca, "--server-id=reference"}
	address := "127.0.0.1:" + frontend
	if tr.uds {
		address = filepath.Join(t.TempDir(), "sock")
		args = append(args, "--uds-name="+address, "--server-port=0")
	} else {
		args = append(args, "--server-port="+frontend, "--server-cert="+p.crt, "--server-key="+p.key,
			"--server-ca-cert="+p.ca)
	}
	start(t, reference(t, "proxy-server"), args...)
	return &tunnelServer{frontend: address, agents: "127.0.0.1:" + agents,
		ready: func() bool { return answersOK("http://127.0.0.1:" + health + "/readyz") }}
}

func answersOK(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func connectTrellisAgent(t testing.TB, p *pki, address string) *agent.Session {
	var s *agent.Session
	var err error
	waitFor(t, "an agent connects to "+address, func() bool {
		s, err = agent.Connect(t.Context(), address, agent.Options{ID: "trellis", TLS: p.agent,
			KeepaliveTime: time.Minute, Dial: (&net.Dialer{}).DialContext, Metrics: agent.NewMetrics()})
		return err == nil
	})
	t.Cleanup(s.Close)
	return s
}

func startReferenceAgent(t testing.TB, p *pki, address string) {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	start(t, reference(t, "proxy-agent"), "--proxy-server-host=127.0.0.1", "--proxy-server-port="+port,
		"--ca-cert="+p.ca, "--agent-cert="+p.crt, "--agent-key="+p.key,
		"--health-server-port="+freePort(t), "--admin-server-port="+freePort(t))
}

// dialer opens a tunnelled connection.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// connect returns a function that connects to the frontend of a tunnel server.
func (tr transport) connect(p *pki, frontend string) func(context.Context) (net.Conn, error) {
	if tr.uds {
		return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", frontend) }
	}
	config := p.agent.Clone()
	if tr.mode == server.ModeHTTPConnect {
		config.NextProtos = nil
	}
	return func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", frontend)
	}
}

// trellisClient returns a dialer that uses the Trellis client for a transport.
func trellisClient(t testing.TB, p *pki, tr transport, frontend string) dialer {
	connect := tr.connect(p, frontend)
	if tr.mode == server.ModeHTTPConnect {
		return func(ctx context.Context, address string) (net.Conn, error) { return dialConnect(ctx, connect, address) }
	}
	c := client.New(connect)
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// referenceClient returns the dialer of kube-apiserver for gRPC.
func referenceClient(t testing.TB, p *pki, tr transport, frontend string) dialer {
	if tr.mode == server.ModeHTTPConnect {
		t.Skip("the reference implementation has no client for HTTP CONNECT")
	}
	creds, target := insecure.NewCredentials(), frontend
	if tr.uds {
		target = "unix://" + frontend
	} else {
		creds = credentials.NewTLS(p.agent)
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, context.WithoutCancel(ctx), target,
			grpc.WithTransportCredentials(creds))
		if err != nil {
			return nil, err
		}
		return tunnel.DialContext(ctx, "tcp", address)
	}
}

// dialConnect opens a tunnelled connection with HTTP CONNECT.
func dialConnect(
	ctx context.Context, connect func(context.Context) (net.Conn, error), address string,
) (net.Conn, error) {
	conn, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return nil, err
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return &bufferedConn{conn, in}, nil
}

// bufferedConn is a connection that reads from a buffer.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (b *bufferedConn) Read(p []byte) (int, error) { return b.in.Read(p) }

func (b *bufferedConn) CloseWrite() error {
	return b.Conn.(interface{ CloseWrite() error }).CloseWrite()
}
