package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// TestApprover checks that the approver approves only requests that the kubelet of the node needs. These requests
// contain only the name and the address of the node.
func TestApprover(t *testing.T) {
	a := approver{nodeName: "mine", user: "admin", address: net.IPv4(192, 0, 2, 1)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const client, serving = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	for name, c := range map[string]struct {
		signer, user, node string
		address            string
		dns                string
		want               bool
	}{
		"client, by its user":      {client, "admin", "mine", "", "", true},
		"client, by itself":        {client, "system:node:mine", "mine", "", "", true},
		"client, by another":       {client, "eve", "mine", "", "", false},
		"client, for another node": {client, "admin", "other", "", "", false},
		"serving, by itself":       {serving, "system:node:mine", "mine", "192.0.2.1", "mine", true},
		"serving, by its user":     {serving, "admin", "mine", "192.0.2.1", "mine", false},
		"serving, another address": {serving, "system:node:mine", "mine", "192.0.2.2", "mine", false},
		"serving, another name":    {serving, "system:node:mine", "mine", "192.0.2.1", "kubernetes.default.svc", false},
		"serving, by another node": {serving, "system:node:other", "mine", "192.0.2.1", "mine", false},
		"another signer": {certificatesv1.KubeAPIServerClientSignerName, "system:node:mine", "mine", "", "",
			false},
	} {
		template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + c.node,
			Organization: []string{"system:nodes"}}}
		usage := certificatesv1.UsageClientAuth
		if c.signer == serving {
			template.IPAddresses, template.DNSNames, usage = []net.IP{net.ParseIP(c.address)}, []string{c.dns},
				certificatesv1.UsageServerAuth
		}
		request, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			t.Fatal(err)
		}
		got := a.matches(&certificatesv1.CertificateSigningRequestSpec{
			SignerName: c.signer, Username: c.user,
			Usages:  []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
		})
		if got != c.want {
			t.Errorf("%s: got match %t, want %t", name, got, c.want)
		}
	}
}
