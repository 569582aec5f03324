package serving

import (
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// AddFlags declares the flags.
func (t *TLS) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&t.CertFile, "tls-cert-file", "",
		"file of the serving certificate and its intermediate CAs. The server reloads the file when it changes "+
			"(empty means a certificate of the CA in the data directory)")
	fs.StringVar(&t.KeyFile, "tls-private-key-file", "", "file of the private key of --tls-cert-file")
	flags.Pair(fs, "tls-cert-file", "tls-private-key-file")
	fs.Var(cliflag.NewNamedCertKeyArray(&t.SNI), "tls-sni-cert-key",
		"files of a certificate and its private key: CERT,KEY or CERT,KEY:NAMES. The certificate is used for clients "+
			"that request one of NAMES, or else one of the names in the certificate. Example: "+
			"foo.crt,foo.key:*.foo.com,foo.com. Can be repeated")
	fs.Lookup("tls-sni-cert-key").DefValue = "" // the text of the flag type for no default is []
	fs.StringVar(&t.MinVersion, "tls-min-version", "",
		"minimum TLS version: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (empty means VersionTLS12)")
	fs.StringSliceVar(&t.CipherSuites, "tls-cipher-suites", nil,
		"cipher suites for TLS 1.2 and earlier (empty means Go's defaults). Preferred: "+
			strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+
			". Insecure: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
}
