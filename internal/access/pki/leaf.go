package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// The certificates that are renewed, by the names of their files.
const (
	servingName = "apiserver"
	adminName   = "admin"
	proxyName   = "front-proxy-client"
	kubeletName = "apiserver-kubelet-client"
)

// KubeletClient is whom the server is to kubelets.
const KubeletClient = "kube-apiserver-kubelet-client"

func leaves() (all []string) {
	for _, a := range authorities {
		all = append(all, a.leaves...)
	}
	return all
}

// template is what is said of name's certificate, but for hosts and times.
func template(name string) *x509.Certificate {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	switch name {
	case adminName:
		t.Subject = pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case kubeletName:
		t.Subject = pkix.Name{CommonName: KubeletClient}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	case proxyName:
		t.Subject = pkix.Name{CommonName: proxyName}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return t
}

// leaf returns name's certificate, made anew where the stored one does not do.
func (m *maker) leaf(name string, hosts []string) (pair, error) {
	data, err := m.read(name + ".crt")
	if err != nil {
		return pair{}, err
	}
	key, err := m.stored(name + ".key")
	if err != nil {
		return pair{}, err
	}
	if key == nil || !m.fits(data, key, hosts) {
		return m.newLeaf(name, hosts)
	}
	keyPEM, err := m.read(name + ".key")
	return pair{data, keyPEM}, err
}

// newLeaf makes a certificate and its key. Where it is interrupted between the two, they do not match, and are made again.
func (m *maker) newLeaf(name string, hosts []string) (pair, error) {
	key, err := m.newKey(name + ".key")
	if err != nil {
		return pair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return pair{}, fmt.Errorf("pki: %w", err)
	}
	t := template(name)
	t.NotAfter = m.now.Add(lifetimeOfLeaf)
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	data, _, err := m.sign(t, key.Public())
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
