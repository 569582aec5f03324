package nodes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
	apiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/cluster/ports"
	"k8s.io/kubernetes/pkg/kubelet/client"
)

// Kubelet is how the kubelets of nodes are reached, and known.
type Kubelet struct {
	CAs          *x509.CertPool                   // who signs their certificates
	Certificate  func() (*tls.Certificate, error) // who this server is to them
	AddressTypes []string                         // of a node, the preferred first
	Timeout      time.Duration                    // of connecting to one
}

// tls is how a connection to a kubelet is secured; anybody says that it may have any certificate.
func (k *Kubelet) tls(anybody bool) *tls.Config {
	c := strangers()
	c.RootCAs, c.InsecureSkipVerify = k.CAs, anybody
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return k.Certificate() }
	return c
}

// strangers may have any certificate, as upstream has it: nobody says which one a Pod should have.
func strangers() *tls.Config {
	// what it speaks is said here, for what http.Transport adds it would add while upgrades read it
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// dial bounds how long it takes.
func (k *Kubelet) dial(by dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, k.Timeout)
		defer cancel()
		return by(ctx, network, address)
	}
}

// way is how others of one sort are reached: by requests, whose connections are kept, and by upgrades, each on a connection of its own
// that ends with the request, however far it has come.
type way struct{ requests, upgrades *http.Transport }

const (
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
	pingTimeout      = 15 * time.Second
	maxHeaderBytes   = 1 << 20 // of an answer
)

func newWay(by dial, secured *tls.Config) way {
	return way{
		requests: &http.Transport{
			DialContext: by, TLSClientConfig: secured, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: handshakeTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 25, MaxResponseHeaderBytes: maxHeaderBytes,
			HTTP2: &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout},
		},
		upgrades: &http.Transport{TLSClientConfig: secured.Clone(), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := by(ctx, network, address)
			if err == nil {
				context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		}},
	}
}

// kubelets finds the kubelets of nodes by upstream's rules, and reaches them its own way.
type kubelets struct {
	client.ConnectionInfoGetter
	by, anybody http.RoundTripper
}

// kubelets are reached by a RoundTripper.
func (p *Proxy) kubelets(by http.RoundTripper) client.ConnectionInfoGetter {
	nodes := func(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
		obj, err := p.config.Get(ctx, "nodes", "", name)
		if err != nil {
			return nil, err
		}
		out := &corev1.Node{}
		return out, apiv1.Convert_core_Node_To_v1_Node(obj.(*core.Node), out, nil)
	}
	found, err := client.NewNodeConnectionInfoGetter(client.NodeGetterFunc(nodes), client.KubeletClientConfig{Port: ports.KubeletPort, PreferredAddressTypes: p.config.Kubelet.AddressTypes})
	if err != nil {
		panic(err) // it reads no file
	}
	return kubelets{found, by, p.anybody.requests}
}

// GetConnectionInfo implements upstream's ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(ctx context.Context, name types.NodeName) (*client.ConnectionInfo, error) {
	info, err := k.ConnectionInfoGetter.GetConnectionInfo(ctx, name)
	if err == nil {
		info.Transport, info.InsecureSkipTLSVerifyTransport = k.by, k.anybody
	}
	return info, err
}
