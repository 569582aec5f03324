package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// LoopbackName is upstream's: by it the administrator's clients ask for the server's own certificate where there are others.
const LoopbackName = "apiserver-loopback-client"

// TLS is what kube-apiserver's flags --tls-* say. Its zero value shows a certificate of the cluster's own CA.
type TLS struct {
	CertFile, KeyFile string // shown instead; PEM, read again when they change
	SNI               []SNICertKey
	MinVersion        uint16   // 0: 1.2
	CipherSuites      []uint16 // up to TLS 1.2; nil: Go's
}

// SNICertKey is shown to clients that ask for one of its names: patterns, or if there are none, those in the certificate.
type SNICertKey struct {
	CertFile, KeyFile string
	Names             []string
}

// IsSet reports whether there are other certificates than the server's own.
func (t TLS) IsSet() bool { return t.CertFile != "" || len(t.SNI) > 0 }

// check refuses what HTTP/2 does not go with (RFC 9113, 9.2.2).
func (t TLS) check() error {
	if t.CipherSuites == nil || t.MinVersion >= tls.VersionTLS13 ||
		slices.Contains(t.CipherSuites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) ||
		slices.Contains(t.CipherSuites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) {
		return nil
	}
	return errors.New("--tls-cipher-suites: HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
}

// Config is for connections. Client certificates are asked for and read, not demanded: who a request is from is for
// the handler to say.
func (t TLS) Config(c *Certificates) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		CipherSuites:   t.CipherSuites,
		GetCertificate: c.get,
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"h2", "http/1.1"},
	}
	if t.MinVersion != 0 {
		config.MinVersion = t.MinVersion
	}
	return config
}

// Certificates are what the server shows its clients. Which of them, is upstream's rule; what has changed, new connections see.
type Certificates struct {
	main *dynamiccertificates.DynamicCertKeyPairContent // nil: the server's own
	sni  []*dynamiccertificates.DynamicFileSNIContent

	changing sync.Mutex
	own      *tls.Certificate
	now      atomic.Pointer[choice]
}

// choice is of certificates as they are at a time.
type choice struct {
	byName map[string]*tls.Certificate // by name or pattern
	all    []*tls.Certificate          // the first is the default
}

// NewCertificates reads the files that t names. There is nothing to be shown before SetOwn.
func NewCertificates(t TLS) (c *Certificates, err error) {
	c = &Certificates{}
	if err := t.check(); err != nil {
		return nil, err
	}
	if t.CertFile != "" || t.KeyFile != "" {
		if c.main, err = dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", t.CertFile, t.KeyFile); err != nil {
			return nil, fmt.Errorf("--tls-cert-file %s, --tls-private-key-file %s: %w", t.CertFile, t.KeyFile, err)
		}
		c.main.AddListener(c)
	}
	for _, s := range t.SNI {
		file, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", s.CertFile, s.KeyFile, s.Names...)
		if err != nil {
			return nil, fmt.Errorf("--tls-sni-cert-key %s,%s: %w", s.CertFile, s.KeyFile, err)
		}
		file.AddListener(c)
		c.sni = append(c.sni, file)
	}
	return c, nil
}

// Run reads files again when they change, until ctx is done.
func (c *Certificates) Run(ctx context.Context) {
	if c.main != nil {
		go c.main.Run(ctx, 1)
	}
	for _, s := range c.sni {
		go s.Run(ctx, 1)
	}
}

// SetOwn shows own in place of the server's own certificate until now.
func (c *Certificates) SetOwn(own *tls.Certificate) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.own = own
	c.update()
}

// Enqueue implements dynamiccertificates.Listener: a file has changed.
func (c *Certificates) Enqueue() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.update()
}

// update chooses anew. Earlier files go before later ones, and names that were typed before those in certificates.
func (c *Certificates) update() {
	next := &choice{byName: map[string]*tls.Certificate{}, all: []*tls.Certificate{c.own}}
	if c.main != nil {
		next.all[0] = pair(c.main)
	}
	sni := make([]*tls.Certificate, len(c.sni))
	for i, s := range slices.Backward(c.sni) {
		sni[i] = pair(s)
		if len(s.SNINames()) == 0 {
			next.add(namesOf(sni[i].Leaf), sni[i])
		}
	}
	for i, s := range slices.Backward(c.sni) {
		next.add(s.SNINames(), sni[i])
	}
	next.all = append(next.all, sni...)
	next.add([]string{LoopbackName}, c.own)
	c.now.Store(next)
}

// pair is what the provider has, which it has checked.
func pair(p dynamiccertificates.CertKeyContentProvider) *tls.Certificate {
	c, err := tls.X509KeyPair(p.CurrentCertKeyContent())
	if err != nil {
		panic(fmt.Sprintf("%s: %v", p.Name(), err))
	}
	return &c
}

func (c *choice) add(names []string, of *tls.Certificate) {
	for _, n := range names {
		c.byName[strings.ToLower(n)] = of
	}
}

// namesOf are those by which clients ask for a certificate that nobody gave other names.
func namesOf(c *x509.Certificate) []string {
	cn := c.Subject.CommonName
	if net.ParseIP(cn) == nil && (cn == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(cn, "*."))) == 0) {
		return append([]string{cn}, c.DNSNames...)
	}
	return c.DNSNames
}

// get implements the GetCertificate of a tls.Config. A client that names no server has called it by its address.
func (c *Certificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := c.now.Load()
	name := strings.ToLower(hello.ServerName)
	if name == "" {
		name, _, _ = net.SplitHostPort(hello.Conn.LocalAddr().String())
	}
	if found := now.byName[name]; found != nil {
		return found, nil
	}
	if found := now.byName[wildcard(hello.ServerName)]; found != nil {
		return found, nil
	}
	for _, one := range now.all {
		if len(now.all) > 1 && hello.SupportsCertificate(one) == nil {
			return one, nil
		}
	}
	return now.all[0], nil
}

// wildcard is the pattern that a name fits.
func wildcard(name string) string {
	if dot := strings.IndexByte(name, '.'); dot >= 0 {
		return "*" + strings.ToLower(name[dot:])
	}
	if name == "" {
		return ""
	}
	return "*"
}
