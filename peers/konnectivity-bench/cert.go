package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"os"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const hostName = "localhost"

// writeCert writes a certificate with its key to a file. It is a CA, server and client certificate at once.
func writeCert(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: hostName}, key)
	if err != nil {
		return err
	}
	certPEM, err := cert.EncodeCertificates(ca)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(certPEM, keyPEM...), 0o600)
}
