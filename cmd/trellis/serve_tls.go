package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/apiserver"
)

// tlsFlags holds the values of the flags of secure serving.
type tlsFlags struct {
	certFile, keyFile string
	sni               []cliflag.NamedCertKey
	minVersion        string
	cipherSuites      []string
}

// bind declares the flags of secure serving.
func (f *tlsFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.certFile, "tls-cert-file", "",
		"file of the serving certificate and its intermediate CAs. The server reloads the file when it changes "+
			"(empty means a certificate of the CA in the data directory)")
	flags.StringVar(&f.keyFile, "tls-private-key-file", "", "file of the private key of --tls-cert-file")
	flags.Var(cliflag.NewNamedCertKeyArray(&f.sni), "tls-sni-cert-key",
		"files of a certificate and its private key: CERT,KEY or CERT,KEY:NAMES. The certificate is used for clients "+
			"that request one of NAMES, or else one of the names in the certificate. Example: "+
			"foo.crt,foo.key:*.foo.com,foo.com. Can be repeated")
	flags.Lookup("tls-sni-cert-key").DefValue = "" // the text of the flag type for no default is []
	flags.StringVar(&f.minVersion, "tls-min-version", "",
		"minimum TLS version: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (empty means VersionTLS12)")
	flags.StringSliceVar(&f.cipherSuites, "tls-cipher-suites", nil,
		"cipher suites for TLS 1.2 and earlier (empty means Go's defaults). Preferred: "+
			strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+
			". Insecure: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
}

// complete validates the flags and writes them to t.
func (f *tlsFlags) complete(t *apiserver.TLS) (err error) {
	if (f.certFile == "") != (f.keyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file must be set together")
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
