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

// File names of the certificates that are renewed, without extension.
const (
	servingName = "apiserver"
	adminName   = "admin"
	proxyName   = "front-proxy-client"
	kubeletName = "apiserver-kubelet-client"
)

// KubeletClient is the user name of the server at kubelets.
const KubeletClient = "kube-apiserver-kubelet-client"

func leafNames() (all []string) {
	for _, a := range authorities {
		all = append(all, a.leaves...)
	}
	return all
}

// template returns the content of a certificate by file name, without hosts and validity.
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

// ensureLeaf returns the certificate with the given file name. It issues a new one if the stored one is not usable.
func (i *issuer) ensureLeaf(name string, hosts []string) (pair, error) {
	data, err := i.read(name + ".crt")
	if err != nil {
		return pair{}, err
	}
	key, err := i.readKey(name + ".key")
	if err != nil {
		return pair{}, err
	}
	if key == nil || !i.usable(data, key, hosts) {
		return i.newLeaf(name, hosts)
	}
	keyPEM, err := i.read(name + ".key")
	return pair{data, keyPEM}, err
}

// newLeaf issues a certificate with a new key. If newLeaf is interrupted between the writes of the two files, the key
// and the certificate do not match. The next call of ensureLeaf then replaces both.
func (i *issuer) newLeaf(name string, hosts []string) (pair, error) {
	key, err := i.newKey(name + ".key")
	if err != nil {
		return pair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return pair{}, fmt.Errorf("pki: %w", err)
	}
	t := template(name)
	t.NotAfter = i.now.Add(leafLifetime)
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	data, _, err := i.sign(t, key.Public())
	if err != nil {
		return pair{}, err
	}
	return pair{data, keyPEM}, i.write(name+".crt", data)
}

// usable reports whether the certificate in data matches the key, the CA and all hosts, and need not be renewed yet.
func (i *issuer) usable(data []byte, key crypto.Signer, hosts []string) bool {
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return false
	}
	c := certs[0]
	if !matches(c, key) || c.CheckSignatureFrom(i.ca) != nil || i.now.Add(renewBefore).After(c.NotAfter) {
		return false
	}
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}
