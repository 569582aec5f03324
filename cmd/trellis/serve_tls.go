package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/apiserver"
)

// tlsFlags are the flags of TLS as they were typed.
type tlsFlags struct {
	certFile, keyFile string
	sni               []cliflag.NamedCertKey
	minVersion        string
	cipherSuites      []string
}

// bind declares them.
func (f *tlsFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.certFile, "tls-cert-file", "",
		"file of the certificate to serve with, and of the CAs between it and its root; read again when it changes; by default one of the CA in the data directory")
	flags.StringVar(&f.keyFile, "tls-private-key-file", "", "file of its private key")
	flags.Var(cliflag.NewNamedCertKeyArray(&f.sni), "tls-sni-cert-key",
		"files of a certificate and its key for clients that ask for one of its names, or of those after a colon: foo.crt,foo.key:*.foo.com,foo.com; may be repeated")
	flags.Lookup("tls-sni-cert-key").DefValue = "" // and not []
	flags.StringVar(&f.minVersion, "tls-min-version", "",
		"least version of TLS (default VersionTLS12): "+strings.Join(cliflag.TLSPossibleVersions(), ", "))
	flags.StringSliceVar(&f.cipherSuites, "tls-cipher-suites", nil,
		"cipher suites up to TLS 1.2, by default Go's. Preferred: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+
			". Insecure: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
}

// complete turns them into t.
func (f *tlsFlags) complete(t *apiserver.TLS) (err error) {
	if (f.certFile == "") != (f.keyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file: name both or none")
	}
	t.CertFile, t.KeyFile = f.certFile, f.keyFile
	for _, s := range f.sni {
		t.SNI = append(t.SNI, apiserver.SNICertKey{CertFile: s.CertFile, KeyFile: s.KeyFile, Names: s.Names})
	}
	if t.MinVersion, err = cliflag.TLSVersion(f.minVersion); err != nil {
		return fmt.Errorf("--tls-min-version: %w", err)
	}
	if t.CipherSuites, err = cliflag.TLSCipherSuites(f.cipherSuites); err != nil {
		return fmt.Errorf("--tls-cipher-suites: %w", err)
	}
	return nil
}
