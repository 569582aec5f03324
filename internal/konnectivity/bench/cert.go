package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"os"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const hostName = "localhost"

// writeCert makes one certificate that is a CA, a server's and a client's in one, and writes it with its key into a file.
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
