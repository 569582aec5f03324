// Package pki makes and keeps the keys of one cluster: its CA, the certificate it
// serves with, the administrator's certificate and the service-account key. It
// knows no requests; a Bundle is all that leaves it.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"os"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	day            = 24 * time.Hour
	lifetimeOfCA   = 10 * 365 * day
	lifetimeOfLeaf = 365 * day
	// renewBefore is how long before its end a certificate is replaced, at a start or while the server runs.
	renewBefore = 90 * day
)

// Bundle is the key material of one cluster.
type Bundle struct {
	CA         *x509.Certificate
	CAPEM      []byte
	Serving    tls.Certificate
	AdminCert  []byte // PEM; O=system:masters
	AdminKey   []byte // PEM
	AccountKey crypto.Signer
	Kubelet    tls.Certificate // the client certificate for kubelets

	// ProxyCAPEM is the CA of ProxyClient alone, which this server is to the API servers that it proxies to. That it is another
	// CA keeps users apart from proxies, which are believed when they say who asks.
	ProxyCAPEM  []byte
	ProxyClient tls.Certificate

	files files
	hosts []string
}

// Ensure reads the bundle in dir and makes what is missing. A serving or administrator's
// certificate that does not name all hosts, is not of the CA or ends soon is replaced; the CA and
// the service-account key never are. Files are written whole and private (0600). With dir
// "" nothing is kept. Hosts are DNS names and IP addresses.
func Ensure(dir string, hosts []string, now time.Time) (*Bundle, error) {
	if dir == "" {
		return load(inMemory{}, hosts, now)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return load(folder(dir), hosts, now)
}

// Renew is what Ensure would return now, for the same CA, place and hosts.
func (b *Bundle) Renew(now time.Time) (*Bundle, error) {
	ca, err := b.files.read("ca.crt")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(ca, b.CAPEM) {
		return nil, fmt.Errorf("pki: %s is not the CA that the server has begun with", b.files.path("ca.crt"))
	}
	return load(b.files, b.hosts, now)
}

// CAFiles are the files of the CA's certificate and of its key, for who signs with it and has called done when he needs them no
// longer: of a bundle that is not kept they are there until then.
func (b *Bundle) CAFiles() (cert, key string, done func(), err error) {
	f, done := b.files, func() {}
	if _, ok := f.(inMemory); ok {
		dir, err := os.MkdirTemp("", "trellis-ca-")
		if err != nil {
			return "", "", nil, fmt.Errorf("pki: %w", err)
		}
		f, done = folder(dir), func() { _ = os.RemoveAll(dir) }
		for _, name := range []string{"ca.crt", "ca.key"} {
			data, _ := b.files.read(name) // it is in memory
			if err := f.write(name, data); err != nil {
				done()
				return "", "", nil, err
			}
		}
	}
	return f.path("ca.crt"), f.path("ca.key"), done, nil
}

func load(f files, hosts []string, now time.Time) (*Bundle, error) {
	m := &maker{files: f, now: now}
	b := &Bundle{files: f, hosts: hosts}
	var err error
	if b.CAPEM, err = m.authority(authorities[0]); err != nil {
		return nil, err
	}
	b.CA = m.ca
	serving, err := m.leaf(servingName, hosts)
	if err != nil {
		return nil, err
	}
	if b.Serving, err = tls.X509KeyPair(serving.cert, serving.key); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", f.path(servingName+".crt"), err)
	}
	admin, err := m.leaf(adminName, nil)
	if err != nil {
		return nil, err
	}
	b.AdminCert, b.AdminKey = admin.cert, admin.key
	kubelet, err := m.leaf(kubeletName, nil)
	if err != nil {
		return nil, err
	}
	if b.Kubelet, err = tls.X509KeyPair(kubelet.cert, kubelet.key); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", f.path(kubeletName+".crt"), err)
	}
	if b.AccountKey, err = m.key("sa.key"); err != nil {
		return nil, err
	}
	return b, b.proxy(&maker{files: f, now: now})
}

// proxy reads or makes what the server proves to other API servers with.
func (b *Bundle) proxy(m *maker) (err error) {
	if b.ProxyCAPEM, err = m.authority(authorities[1]); err != nil {
		return err
	}
	client, err := m.leaf(proxyName, nil)
	if err != nil {
		return err
	}
	if b.ProxyClient, err = tls.X509KeyPair(client.cert, client.key); err != nil {
		return fmt.Errorf("pki: %s: %w", m.path(proxyName+".crt"), err)
	}
	return nil
}

// maker reads and makes the files of one bundle.
type maker struct {
	files
	now   time.Time
	ca    *x509.Certificate
	caKey crypto.Signer
}

// pair is a certificate and its key, PEM.
type pair struct{ cert, key []byte }

// authority is a CA, by the name of its files, its own, and what certificates it signs.
type authority struct {
	name, commonName string
	leaves           []string
}

var authorities = []authority{
	{"ca", "kubernetes", []string{adminName, servingName, kubeletName}},
	{"front-proxy-ca", "front-proxy-ca", []string{proxyName}},
}

// authority reads a CA, or makes it.
func (m *maker) authority(of authority) (pem []byte, err error) {
	file, keyFile := of.name+".crt", of.name+".key"
	data, err := m.read(file)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return m.newAuthority(of)
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", m.path(file), err)
	}
	if m.caKey, err = m.stored(keyFile); err != nil {
		return nil, err
	}
	if m.caKey == nil || !matches(certs[0], m.caKey) {
		return nil, fmt.Errorf("pki: %s has no matching %s beside it: restore the key, or remove the folder to make a new cluster CA", m.path(file), keyFile)
	}
	if m.now.After(certs[0].NotAfter) {
		return nil, fmt.Errorf("pki: %s expired on %s: remove the folder to make a new cluster CA", m.path(file), certs[0].NotAfter.Format(time.DateOnly))
	}
	m.ca = certs[0]
	return data, nil
}

func (m *maker) newAuthority(of authority) (pem []byte, err error) {
	if m.caKey, err = m.key(of.name + ".key"); err != nil {
		return nil, err
	}
	data, ca, err := m.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: of.commonName},
		DNSNames:              []string{of.commonName},
		NotAfter:              m.now.Add(lifetimeOfCA),
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, m.caKey.Public())
	if err != nil {
		return nil, err
	}
	m.ca = ca
	return data, m.write(of.name+".crt", data)
}

// sign makes a certificate of the CA; the first one, made while there is none, signs itself.
func (m *maker) sign(t *x509.Certificate, key crypto.PublicKey) ([]byte, *x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1))
	t.NotBefore = m.now.Add(-5 * time.Minute) // clocks differ a little
	parent := m.ca
	if parent == nil {
		parent = t
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key, m.caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign %s: %w", t.Subject.CommonName, err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return encode(cert.CertificateBlockType, der), c, nil
}

// key reads a private key or makes one.
func (m *maker) key(name string) (crypto.Signer, error) {
	key, err := m.stored(name)
	if key != nil || err != nil {
		return key, err
	}
	return m.newKey(name)
}

// stored reads a private key; nil: there is none.
func (m *maker) stored(name string) (crypto.Signer, error) {
	data, err := m.read(name)
	if data == nil || err != nil {
		return nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", m.path(name), err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("pki: %s: a key that cannot sign", m.path(name))
	}
	return key, nil
}

func (m *maker) newKey(name string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return key, m.write(name, data)
}

func matches(c *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(c.PublicKey)
}
