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

// Kubelet configures the connections to kubelets.
type Kubelet struct {
	CAs          *x509.CertPool                   // issuers of the kubelets' certificates
	Certificate  func() (*tls.Certificate, error) // returns this server's client certificate
	AddressTypes []string                         // types of node addresses in order of preference
	Timeout      time.Duration                    // timeout for connecting to a kubelet
}

// tls returns the TLS configuration for kubelets. If insecure is set, it accepts any certificate.
func (k *Kubelet) tls(insecure bool) *tls.Config {
	c := insecureTLS()
	c.RootCAs, c.InsecureSkipVerify = k.CAs, insecure
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return k.Certificate() }
	return c
}

// insecureTLS returns a TLS configuration that accepts any certificate, as upstream does for Pods.
func insecureTLS() *tls.Config {
	// NextProtos is set because http.Transport would otherwise set it while upgrades read it.
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}
}

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// dial returns a function that calls dialFunc with the timeout.
func (k *Kubelet) dial(dialFunc dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, k.Timeout)
		defer cancel()
		return dialFunc(ctx, network, address)
	}
}

// transports connects to one kind of destination. requests keeps idle connections. upgrades uses a separate connection
// for each request. It closes the connection when the request's context ends, even before the upgrade.
type transports struct{ requests, upgrades *http.Transport }

const (
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 90 * time.Second
	pingTimeout      = 15 * time.Second
	maxHeaderBytes   = 1 << 20 // of a response
)

func newTransports(dialFunc dial, config *tls.Config) transports {
	return transports{
		requests: &http.Transport{
			DialContext: dialFunc, TLSClientConfig: config, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: handshakeTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 25,
			MaxResponseHeaderBytes: maxHeaderBytes,
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingTimeout, PingTimeout: pingTimeout},
		},
		upgrades: &http.Transport{TLSClientConfig: config.Clone(),
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialFunc(ctx, network, address)
				if err == nil {
					context.AfterFunc(ctx, func() { _ = conn.Close() })
				}
				return conn, err
			}},
	}
}

// kubelets finds the kubelets of nodes with upstream's rules, and returns this package's transports for them.
type kubelets struct {
	client.ConnectionInfoGetter
	transport, insecure http.RoundTripper
}

// kubelets returns upstream's getter of kubelets. Requests to them use transport.
func (p *Proxy) kubelets(transport http.RoundTripper) client.ConnectionInfoGetter {
	nodes := func(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
		obj, err := p.config.Get(ctx, "nodes", "", name)
		if err != nil {
			return nil, err
		}
		out := &corev1.Node{}
		return out, apiv1.Convert_core_Node_To_v1_Node(obj.(*core.Node), out, nil)
	}
	config := client.KubeletClientConfig{Port: ports.KubeletPort, PreferredAddressTypes: p.config.Kubelet.AddressTypes}
	found, err := client.NewNodeConnectionInfoGetter(client.NodeGetterFunc(nodes), config)
	if err != nil {
		panic(err) // impossible: the config refers to no file
	}
	return kubelets{found, transport, p.insecureKubelet.requests}
}

// GetConnectionInfo implements upstream's ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(ctx context.Context, name types.NodeName) (*client.ConnectionInfo, error) {
	info, err := k.ConnectionInfoGetter.GetConnectionInfo(ctx, name)
	if err == nil {
		info.Transport, info.InsecureSkipTLSVerifyTransport = k.transport, k.insecure
	}
	return info, err
}
