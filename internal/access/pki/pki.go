// Package pki creates and stores the certificates and keys of a cluster: its CAs, the serving certificate, the client
// certificates and the service account key. It must not import packages that handle requests.
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
	day          = 24 * time.Hour
	caLifetime   = 10 * 365 * day
	leafLifetime = 365 * day
	// renewBefore is the remaining validity at which the server replaces a certificate, at its start or while it runs.
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

	// ProxyCAPEM is the CA of ProxyClient, the certificate that this server presents to aggregated API servers. It
	// signs no user certificates, because an aggregated API server lets every client with a certificate of this CA
	// supply a user in headers.
	ProxyCAPEM  []byte
	ProxyClient tls.Certificate

	files files
	hosts []string
}

// Ensure reads the bundle in dir and creates missing files. It replaces a certificate that is not signed by the CA or
// expires soon, and a serving certificate that lacks one of the hosts. It never replaces a CA or the service account
// key. Files are written atomically with mode 0600. If dir is "", the bundle is kept in memory. Hosts are DNS names and
// IP addresses.
func Ensure(dir string, hosts []string, now time.Time) (*Bundle, error) {
	if dir == "" {
		return load(memoryFiles{}, hosts, now)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return load(directory(dir), hosts, now)
}

// Renew calls Ensure again with the directory and hosts of b. It returns an error if the stored CA is not the CA of b.
func (b *Bundle) Renew(now time.Time) (*Bundle, error) {
	ca, err := b.files.read("ca.crt")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(ca, b.CAPEM) {
		return nil, fmt.Errorf("pki: %s has changed since the server started", b.files.path("ca.crt"))
	}
	return load(b.files, b.hosts, now)
}

// CAFiles returns the paths of the CA's certificate and key. The caller calls done when it no longer needs the files.
// If the bundle is in memory, CAFiles writes temporary files, which done removes.
func (b *Bundle) CAFiles() (cert, key string, done func(), err error) {
	f, done := b.files, func() {}
	if _, ok := f.(memoryFiles); ok {
		dir, err := os.MkdirTemp("", "trellis-ca-")
		if err != nil {
			return "", "", nil, fmt.Errorf("pki: %w", err)
		}
		f, done = directory(dir), func() { _ = os.RemoveAll(dir) }
		for _, name := range []string{"ca.crt", "ca.key"} {
			data, _ := b.files.read(name) // reading from memory never fails
			if err := f.write(name, data); err != nil {
				done()
				return "", "", nil, err
			}
		}
	}
	return f.path("ca.crt"), f.path("ca.key"), done, nil
}

func load(f files, hosts []string, now time.Time) (*Bundle, error) {
	i := &issuer{files: f, now: now}
	b := &Bundle{files: f, hosts: hosts}
	var err error
	if b.CAPEM, err = i.ensureAuthority(authorities[0]); err != nil {
		return nil, err
	}
	b.CA = i.ca
	serving, err := i.ensureLeaf(servingName, hosts)
	if err != nil {
		return nil, err
	}
	if b.Serving, err = tls.X509KeyPair(serving.cert, serving.key); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", f.path(servingName+".crt"), err)
	}
	admin, err := i.ensureLeaf(adminName, nil)
	if err != nil {
		return nil, err
	}
	b.AdminCert, b.AdminKey = admin.cert, admin.key
	kubelet, err := i.ensureLeaf(kubeletName, nil)
	if err != nil {
		return nil, err
	}
	if b.Kubelet, err = tls.X509KeyPair(kubelet.cert, kubelet.key); err != nil {
		return nil, fmt.Errorf("pki: %s: %w", f.path(kubeletName+".crt"), err)
	}
	if b.AccountKey, err = i.ensureKey(AccountKeyName); err != nil {
		return nil, err
	}
	return b, b.loadProxy(&issuer{files: f, now: now})
}

// loadProxy reads or creates the CA and the client certificate of the front proxy.
func (b *Bundle) loadProxy(i *issuer) (err error) {
	if b.ProxyCAPEM, err = i.ensureAuthority(authorities[1]); err != nil {
		return err
	}
	client, err := i.ensureLeaf(proxyName, nil)
	if err != nil {
		return err
	}
	if b.ProxyClient, err = tls.X509KeyPair(client.cert, client.key); err != nil {
		return fmt.Errorf("pki: %s: %w", i.path(proxyName+".crt"), err)
	}
	return nil
}

// issuer reads and creates the files of a bundle.
type issuer struct {
	files
	now   time.Time
	ca    *x509.Certificate // nil until ensureAuthority has returned
	caKey crypto.Signer
}

// pair is a certificate and its key in PEM.
type pair struct{ cert, key []byte }

// authority describes a CA.
type authority struct {
	name, commonName string   // file name without extension, and common name
	leaves           []string // file names of the certificates that the CA signs
}

var authorities = []authority{
	{"ca", "kubernetes", []string{adminName, servingName, kubeletName}},
	{"front-proxy-ca", "front-proxy-ca", []string{proxyName}},
}

// ensureAuthority reads a CA, or creates it if its certificate does not exist.
func (i *issuer) ensureAuthority(a authority) (pem []byte, err error) {
	file, keyFile := a.name+".crt", a.name+".key"
	data, err := i.read(file)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return i.newAuthority(a)
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", i.path(file), err)
	}
	if i.caKey, err = i.readKey(keyFile); err != nil {
		return nil, err
	}
	if i.caKey == nil || !matches(certs[0], i.caKey) {
		return nil, fmt.Errorf("pki: %s has no matching %s in the same directory: restore the key, or remove the"+
			" directory to create a new cluster CA", i.path(file), keyFile)
	}
	if i.now.After(certs[0].NotAfter) {
		return nil, fmt.Errorf("pki: %s expired on %s: remove the directory to create a new cluster CA",
			i.path(file), certs[0].NotAfter.Format(time.DateOnly))
	}
	i.ca = certs[0]
	return data, nil
}

func (i *issuer) newAuthority(a authority) (pem []byte, err error) {
	if i.caKey, err = i.ensureKey(a.name + ".key"); err != nil {
		return nil, err
	}
	data, ca, err := i.sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: a.commonName},
		DNSNames:              []string{a.commonName},
		NotAfter:              i.now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}, i.caKey.Public())
	if err != nil {
		return nil, err
	}
	i.ca = ca
	return data, i.write(a.name+".crt", data)
}

// sign issues a certificate signed by the CA. If there is no CA yet, the certificate is self-signed.
func (i *issuer) sign(t *x509.Certificate, key crypto.PublicKey) ([]byte, *x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1))
	t.NotBefore = i.now.Add(-5 * time.Minute) // tolerates clock skew
	parent := i.ca
	if parent == nil {
		parent = t
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key, i.caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: sign %s: %w", t.Subject.CommonName, err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("pki: %w", err)
	}
	return encode(cert.CertificateBlockType, der), c, nil
}

// ensureKey reads a private key, or creates it if it does not exist.
func (i *issuer) ensureKey(name string) (crypto.Signer, error) {
	key, err := i.readKey(name)
	if key != nil || err != nil {
		return key, err
	}
	return i.newKey(name)
}

// readKey reads a private key. It returns nil if the file does not exist.
func (i *issuer) readKey(name string) (crypto.Signer, error) {
	data, err := i.read(name)
	if data == nil || err != nil {
		return nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, fmt.Errorf("pki: %s: %w", i.path(name), err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("pki: %s: key cannot sign", i.path(name))
	}
	return key, nil
}

func (i *issuer) newKey(name string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return key, i.write(name, data)
}

func matches(c *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(c.PublicKey)
}
