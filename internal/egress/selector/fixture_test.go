package selector

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	fixture "github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// folder is a directory with the files of a test: a CA, certificates, and the socket of a tunnel server.
type folder struct {
	testing.TB
	dir string
}

func newFolder(t testing.TB) *folder {
	t.Helper()
	dir, err := os.MkdirTemp("", "egress") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &folder{t, dir}
	f.certificates()
	return f
}

// certificates creates a CA and certificates issued by it.
func (f *folder) certificates() {
	f.Helper()
	if _, err := pki.Ensure(f.dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// file writes a file and returns its path. It replaces DIR in the text by the path of the directory.
func (f *folder) file(name, text string) string {
	f.Helper()
	if err := os.WriteFile(f.path(name), []byte(strings.ReplaceAll(text, "DIR", f.dir)), 0o600); err != nil {
		f.Fatal(err)
	}
	return f.path(name)
}

// open returns the Selector for a configuration with the given egressSelections.
func (f *folder) open(selections string) (*Selector, error) {
	f.Helper()
	return Open(f.file("egress.yaml", "apiVersion: apiserver.k8s.io/v1beta1\nkind: "+
		"EgressSelectorConfiguration\negressSelections: ["+selections+"]\n"))
}

// cluster returns the dialer for the destination "cluster", which is configured with the given protocol and
// transport.
func (f *folder) cluster(protocol, transport string) Dial {
	f.Helper()
	s, err := f.open(fmt.Sprintf("{name: cluster, connection: {proxyProtocol: %s, transport: {%s}}}", protocol,
		transport))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	return s.Dialer(egressselector.Cluster)
}

const overUDS = "uds: {udsName: DIR/s}"

// overTCP returns the transport configuration for a listener.
func overTCP(l net.Listener) string {
	return fmt.Sprintf("tcp: {url: 'https://%s', tlsConfig: {caBundle: DIR/ca.crt, clientCert: DIR/admin.crt, "+
		"clientKey: DIR/admin.key}}", l.Addr())
}

// socket listens at the path in overUDS.
func (f *folder) socket() net.Listener { return f.listen("unix", f.path("s")) }

func (f *folder) listen(network, address string) net.Listener {
	f.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	return l
}

// mutual returns the TLS configuration of a tunnel server that requires a client certificate of the CA.
func (f *folder) mutual() *tls.Config {
	f.Helper()
	own, err := tls.LoadX509KeyPair(f.path("apiserver.crt"), f.path("apiserver.key"))
	if err != nil {
		f.Fatal(err)
	}
	ca, err := os.ReadFile(f.path("ca.crt"))
	if err != nil {
		f.Fatal(err)
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cas}
}

// tunnel starts a tunnel server on a listener. A nil TLS configuration means that the tunnel server does not use
// TLS.
func (f *folder) tunnel(l net.Listener, mode server.Mode, c *tls.Config) *fixture.Server {
	f.Helper()
	s, err := fixture.Start(l, mode, c)
	if err != nil {
		f.Fatal(err)
	}
	return s
}
