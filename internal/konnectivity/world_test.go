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

// patience is how long anything may take before a test gives up.
const patience = time.Minute

// pki is a CA and a certificate by it, which serves for all ends, as values and as files.
type pki struct {
	cert          tls.Certificate
	pool          *x509.CertPool
	ca, crt, key  string
	server, agent *tls.Config
}

func newPKI(t testing.TB) *pki {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
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
	p.server = &tls.Config{Certificates: certs, ClientCAs: p.pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2", "http/1.1"}}
	p.agent = &tls.Config{Certificates: certs, RootCAs: p.pool, NextProtos: []string{"h2"}, ServerName: "localhost"}
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for something to become true.
func until(t testing.TB, what string, true func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !true() {
		select {
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
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

// serve accepts connections for a test.
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

// freePort is one that the reference's programs take, which refuse those that systems give out.
func freePort(t testing.TB) string {
	for port := 20000 + os.Getpid()%5000; port < 32000; port++ {
		if taken[port] { // not to be tried: who has been given it may be about to listen
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

// reference is the path of a program of the reference implementation.
func reference(t testing.TB, name string) string {
	dir := os.Getenv("REFERENCE_KONNECTIVITY")
	if dir == "" {
		t.Skip("REFERENCE_KONNECTIVITY is not set: a folder with proxy-server and proxy-agent of sigs.k8s.io/apiserver-network-proxy, built by `go build ./cmd/server ./cmd/agent`")
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
		if said, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%s: %s", filepath.Base(path), said[max(0, len(said)-4000):])
		}
	})
	return cmd
}

// transport is how API servers reach the tunnel server.
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

var transports = []transport{{server.ModeGRPC, true}, {server.ModeGRPC, false}, {server.ModeHTTPConnect, true}, {server.ModeHTTPConnect, false}}

// tunnelServer is one that runs: ours in this process, or the reference's.
type tunnelServer struct {
	front  string // its socket, or address
	agents string // address
	ready  func() bool
	ours   *server.Server
}

func ourServer(t testing.TB, p *pki, tr transport) *tunnelServer {
	s := server.New(server.Options{ID: "ours", Count: 1, KeepaliveTime: time.Minute, FrontendKeepaliveTime: time.Minute, Strategies: []server.Strategy{server.Default}, Logger: slog.New(slog.DiscardHandler)})
	agents := tls.NewListener(listen(t, "tcp", "127.0.0.1:0"), p.server)
	go func() { _ = s.ServeAgents(agents) }()
	var fronts net.Listener
	if tr.uds {
		fronts = listen(t, "unix", filepath.Join(t.TempDir(), "front"))
	} else {
		fronts = tls.NewListener(tlsbatch.Listener{Listener: listen(t, "tcp", "127.0.0.1:0")}, p.server)
	}
	go func() { _ = s.ServeFrontends(fronts, tr.mode) }()
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(over)
	})
	return &tunnelServer{front: fronts.Addr().String(), agents: agents.Addr().String(), ready: s.Ready, ours: s}
}

func referenceServer(t testing.TB, p *pki, tr transport) *tunnelServer {
	agents, health, front := freePort(t), freePort(t), freePort(t)
	args := []string{"--mode=" + string(tr.mode), "--agent-port=" + agents, "--health-port=" + health, "--admin-port=" + freePort(t),
		"--cluster-cert=" + p.crt, "--cluster-key=" + p.key, "--cluster-ca-cert=" + p.ca, "--server-id=reference"}
	at := "127.0.0.1:" + front
	if tr.uds {
		at = filepath.Join(t.TempDir(), "front")
		args = append(args, "--uds-name="+at, "--server-port=0")
	} else {
		args = append(args, "--server-port="+front, "--server-cert="+p.crt, "--server-key="+p.key, "--server-ca-cert="+p.ca)
	}
	start(t, reference(t, "proxy-server"), args...)
	return &tunnelServer{front: at, agents: "127.0.0.1:" + agents, ready: func() bool { return answersOK("http://127.0.0.1:" + health + "/readyz") }}
}

func answersOK(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func ourAgent(t testing.TB, p *pki, address string) *agent.Session {
	var s *agent.Session
	var err error
	until(t, "an agent connects to "+address, func() bool {
		s, err = agent.Connect(t.Context(), address, agent.Options{ID: "ours", TLS: p.agent, KeepaliveTime: time.Minute, Dial: (&net.Dialer{}).DialContext, Metrics: agent.NewMetrics()})
		return err == nil
	})
	t.Cleanup(s.Close)
	return s
}

func referenceAgent(t testing.TB, p *pki, address string) {
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	start(t, reference(t, "proxy-agent"), "--proxy-server-host=127.0.0.1", "--proxy-server-port="+port, "--ca-cert="+p.ca, "--agent-cert="+p.crt, "--agent-key="+p.key,
		"--health-server-port="+freePort(t), "--admin-server-port="+freePort(t))
}

// dialer is how a test has a connection opened.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// connect connects to the front of a tunnel server.
func (tr transport) connect(p *pki, front string) func(context.Context) (net.Conn, error) {
	if tr.uds {
		return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", front) }
	}
	config := p.agent.Clone()
	if tr.mode == server.ModeHTTPConnect {
		config.NextProtos = nil
	}
	return func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", front)
	}
}

// ourFront is the client that Trellis has for a transport.
func ourFront(t testing.TB, p *pki, tr transport, front string) dialer {
	connect := tr.connect(p, front)
	if tr.mode == server.ModeHTTPConnect {
		return func(ctx context.Context, address string) (net.Conn, error) { return byConnect(ctx, connect, address) }
	}
	c := client.New(connect)
	t.Cleanup(c.Close)
	return func(ctx context.Context, address string) (net.Conn, error) { return c.DialContext(ctx, "tcp", address) }
}

// referenceFront is kube-apiserver's client of GRPC.
func referenceFront(t testing.TB, p *pki, tr transport, front string) dialer {
	if tr.mode == server.ModeHTTPConnect {
		t.Skip("the reference has no client for HTTP CONNECT")
	}
	creds, target := insecure.NewCredentials(), front
	if tr.uds {
		target = "unix://" + front
	} else {
		creds = credentials.NewTLS(p.agent)
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		tunnel, err := konnectivity.CreateSingleUseGrpcTunnelWithContext(ctx, context.WithoutCancel(ctx), target, grpc.WithTransportCredentials(creds))
		if err != nil {
			return nil, err
		}
		return tunnel.DialContext(ctx, "tcp", address)
	}
}

// byConnect asks for a connection by HTTP CONNECT.
func byConnect(ctx context.Context, connect func(context.Context) (net.Conn, error), address string) (net.Conn, error) {
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
		why, _ := io.ReadAll(resp.Body)
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %s", resp.Status, why)
	}
	return &buffered{conn, in}, nil
}

// buffered is a connection of which some has been read.
type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

func (b *buffered) CloseWrite() error { return b.Conn.(interface{ CloseWrite() error }).CloseWrite() }
