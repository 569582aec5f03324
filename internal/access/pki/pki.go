// Package pki makes and keeps the keys of one cluster: its CA, the certificate it
// serves with, the administrator's certificate and the service-account key. It
// knows no requests; a Bundle is all that leaves it.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	day            = 24 * time.Hour
	lifetimeOfCA   = 10 * 365 * day
	lifetimeOfLeaf = 365 * day
	// renewBefore is how long before its end a certificate is replaced at a start.
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
}

// Ensure reads the bundle in dir and makes what is missing. A serving or administrator's
// certificate that does not name all hosts, is not of the CA or ends soon is replaced; the CA and
// the service-account key never are. Files are written whole and private (0600). With dir
// "" nothing is kept. Hosts are DNS names and IP addresses.
func Ensure(dir string, hosts []string, now time.Time) (*Bundle, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
	}
	m := &maker{dir: dir, now: now}
	b := &Bundle{}
	if err := m.authority(b); err != nil {
		return nil, err
	}
	serving, err := m.leaf("apiserver", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, hosts)
	if err != nil {
		return nil, err
	}
	if b.Serving, err = tls.X509KeyPair(serving.cert, serving.key); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", m.path("apiserver.crt"), err)
	}
	admin, err := m.leaf("admin", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, nil)
	if err != nil {
		return nil, err
	}
	b.AdminCert, b.AdminKey = admin.cert, admin.key
	b.AccountKey, _, err = m.key("sa.key")
	return b, err
}

// maker reads and makes the files of one bundle.
type maker struct {
	dir   string
	now   time.Time
	ca    *x509.Certificate
	caKey crypto.Signer
}

// pair is a certificate and its key, PEM.
type pair struct{ cert, key []byte }

func (m *maker) path(name string) string { return filepath.Join(m.dir, name) }

// read returns nil where the file does not exist.
func (m *maker) read(name string) ([]byte, error) {
	if m.dir == "" {
		return nil, nil
	}
	data, err := os.ReadFile(m.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return data, nil
}

func (m *maker) write(name string, data []byte) error {
	if m.dir == "" {
		return nil
	}
	if err := WriteFile(m.path(name), data); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

func (m *maker) authority(b *Bundle) error {
	data, err := m.read("ca.crt")
	if err != nil {
		return err
	}
	key, fresh, err := m.key("ca.key")
	if err != nil {
		return err
	}
	m.caKey = key
	if data == nil {
		return m.newAuthority(b)
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return fmt.Errorf("pki: %s: %w", m.path("ca.crt"), err)
	}
	if fresh || !matches(certs[0], key) {
		return fmt.Errorf("pki: %s has no matching ca.key beside it: restore the key, or remove the folder to make a new cluster CA", m.path("ca.crt"))
	}
	if m.now.After(certs[0].NotAfter) {
		return fmt.Errorf("pki: %s expired on %s: remove the folder to make a new cluster CA", m.path("ca.crt"), certs[0].NotAfter.Format(time.DateOnly))
	}
	m.ca, b.CA, b.CAPEM = certs[0], certs[0], data
	return nil
}

func (m *maker) newAuthority(b *Bundle) error {
	data, ca, err := m.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "kubernetes"},
		DNSNames:              []string{"kubernetes"},
		NotAfter:              m.now.Add(lifetimeOfCA),
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, m.caKey.Public())
	if err != nil {
		return err
	}
	m.ca, b.CA, b.CAPEM = ca, ca, data
	return m.write("ca.crt", data)
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

// leaf returns name's certificate, made anew from t where the stored one does not do.
func (m *maker) leaf(name string, t *x509.Certificate, hosts []string) (pair, error) {
	data, err := m.read(name + ".crt")
	if err != nil {
		return pair{}, err
	}
	key, _, err := m.key(name + ".key")
	if err != nil {
		return pair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return pair{}, fmt.Errorf("pki: %s: %w", m.path(name+".key"), err)
	}
	if m.fits(data, key, hosts) {
		return pair{data, keyPEM}, nil
	}
	t.NotAfter = m.now.Add(lifetimeOfLeaf)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	data, _, err = m.sign(t, key.Public())
	if err != nil {
		return pair{}, err
	}
	return pair{data, keyPEM}, m.write(name+".crt", data)
}

// fits reports whether the certificate in data can be used as it is.
func (m *maker) fits(data []byte, key crypto.Signer, hosts []string) bool {
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return false
	}
	c := certs[0]
	if !matches(c, key) || c.CheckSignatureFrom(m.ca) != nil || m.now.Add(renewBefore).After(c.NotAfter) {
		return false
	}
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// key reads a private key or makes one.
func (m *maker) key(name string) (key crypto.Signer, fresh bool, err error) {
	data, err := m.read(name)
	if err != nil {
		return nil, false, err
	}
	if data == nil {
		key, err := m.newKey(name)
		return key, true, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, false, fmt.Errorf("pki: %s: %w", m.path(name), err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, false, fmt.Errorf("pki: %s: a key that cannot sign", m.path(name))
	}
	return key, false, nil
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
