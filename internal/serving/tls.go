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
	cliflag "k8s.io/component-base/cli/flag"
)

// LoopbackName is the server name with which clients request the server's own certificate. It equals upstream's. The
// administrator's clients use this name if the server has other certificates.
const LoopbackName = "apiserver-loopback-client"

// TLS holds the values of kube-apiserver's --tls-* flags. The zero value uses a certificate of the cluster's own CA.
type TLS struct {
	CertFile, KeyFile string // PEM files of a certificate to use instead, reloaded when they change
	// SNI lists certificates for clients that request one of their names. Names may be patterns. If there are none,
	// the names in the certificate are used.
	SNI          []cliflag.NamedCertKey
	MinVersion   string   // "" means VersionTLS12
	CipherSuites []string // for TLS 1.2; nil means Go's default
}

// IsSet reports whether there are certificates other than the server's own.
func (t TLS) IsSet() bool { return t.CertFile != "" || len(t.SNI) > 0 }

// Validate returns an error if a flag has an invalid value.
func (t TLS) Validate() error {
	_, err := t.config()
	return err
}

// config returns the TLS configuration for connections without certificates. It returns an error for cipher suites
// that HTTP/2 does not permit (RFC 9113, section 9.2.2). Client certificates are requested but neither required nor
// verified, because the handler authenticates requests.
func (t TLS) config() (*tls.Config, error) {
	version, err := cliflag.TLSVersion(t.MinVersion)
	if err != nil {
		return nil, fmt.Errorf("--tls-min-version: %w", err)
	}
	suites, err := cliflag.TLSCipherSuites(t.CipherSuites)
	if err != nil {
		return nil, fmt.Errorf("--tls-cipher-suites: %w", err)
	}
	if len(suites) > 0 && version < tls.VersionTLS13 &&
		!slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) &&
		!slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) {
		return nil, errors.New("--tls-cipher-suites: HTTP/2 requires TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or " +
			"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
	}
	return &tls.Config{MinVersion: version, CipherSuites: suites, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"}}, nil
}

// Certificates selects the certificate for each connection by upstream's rules. After a change, new connections use
// the new certificates.
type Certificates struct {
	main *dynamiccertificates.DynamicCertKeyPairContent // nil means the server's own
	sni  []*dynamiccertificates.DynamicFileSNIContent
	// Config is the TLS configuration for connections with these certificates.
	Config *tls.Config

	changing sync.Mutex
	own      *tls.Certificate
	current  atomic.Pointer[choice]
}

// choice holds the certificates to choose from.
type choice struct {
	byName map[string]*tls.Certificate // by name or pattern
	all    []*tls.Certificate          // the first is the default
}

// NewCertificates reads the files of t. The caller must call SetOwn to add the server's own certificate.
func NewCertificates(t TLS) (c *Certificates, err error) {
	c = &Certificates{}
	if c.Config, err = t.config(); err != nil {
		return nil, err
	}
	c.Config.GetCertificate = c.get
	if t.CertFile != "" || t.KeyFile != "" {
		if c.main, err = dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", t.CertFile,
			t.KeyFile); err != nil {
			return nil, fmt.Errorf("--tls-cert-file %s, --tls-private-key-file %s: %w", t.CertFile, t.KeyFile, err)
		}
		c.main.AddListener(c)
	}
	for _, s := range t.SNI {
		file, err := dynamiccertificates.NewDynamicSNIContentFromFiles("sni-serving-cert", s.CertFile, s.KeyFile,
			s.Names...)
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

// SetOwn replaces the server's own certificate.
func (c *Certificates) SetOwn(own *tls.Certificate) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.own = own
	c.update()
}

// Enqueue implements dynamiccertificates.Listener. It is called when a file has changed.
func (c *Certificates) Enqueue() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.update()
}

// update rebuilds the choice. Files that are listed earlier take precedence over later files. Configured names take
// precedence over names in certificates.
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
	c.current.Store(next)
}

// pair returns the provider's certificate and key. The provider has validated them.
func pair(p dynamiccertificates.CertKeyContentProvider) *tls.Certificate {
	c, err := tls.X509KeyPair(p.CurrentCertKeyContent())
	if err != nil {
		panic(fmt.Sprintf("%s: %v", p.Name(), err))
	}
	return &c
}

func (c *choice) add(names []string, certificate *tls.Certificate) {
	for _, n := range names {
		c.byName[strings.ToLower(n)] = certificate
	}
}

// namesOf returns the names in a certificate.
func namesOf(c *x509.Certificate) []string {
	cn := c.Subject.CommonName
	if net.ParseIP(cn) == nil && (cn == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(cn, "*."))) == 0) {
		return append([]string{cn}, c.DNSNames...)
	}
	return c.DNSNames
}

// get implements tls.Config.GetCertificate. A client that sends no server name has connected to an IP address.
func (c *Certificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := c.current.Load()
	name := strings.ToLower(hello.ServerName)
	if name == "" {
		name, _, _ = net.SplitHostPort(hello.Conn.LocalAddr().String())
	}
	if found := current.byName[name]; found != nil {
		return found, nil
	}
	if found := current.byName[wildcard(hello.ServerName)]; found != nil {
		return found, nil
	}
	for _, certificate := range current.all {
		if len(current.all) > 1 && hello.SupportsCertificate(certificate) == nil {
			return certificate, nil
		}
	}
	return current.all[0], nil
}

// wildcard returns the pattern that matches a name.
func wildcard(name string) string {
	if dot := strings.IndexByte(name, '.'); dot >= 0 {
		return "*" + strings.ToLower(name[dot:])
	}
	if name == "" {
		return ""
	}
	return "*"
}
