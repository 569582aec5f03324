package selector

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// credentials holds the certificates for TLS with a tunnel server. It reloads their files when they change.
type credentials struct {
	serverName string
	protocols  []string                                  // for ALPN
	trusted    *dynamiccertificates.DynamicFileCAContent // nil means the system's CAs
	own        *dynamiccertificates.DynamicCertKeyPairContent
}

// openCredentials reads the files in c. path is the location of c in the configuration, for errors.
func openCredentials(c *apiserver.TLSConfig, path *field.Path) (out *credentials, errs field.ErrorList) {
	out = &credentials{}
	var err error
	if c.CABundle != "" {
		if out.trusted, err = dynamiccertificates.NewDynamicCAContentFromFile("egress-ca", c.CABundle); err != nil {
			errs = append(errs, field.Invalid(path.Child("caBundle"), c.CABundle, err.Error()))
		}
	}
	files := []struct{ name, path string }{{"clientCert", c.ClientCert}, {"clientKey", c.ClientKey}}
	before := len(errs)
	for _, file := range files {
		if file.path == "" {
			errs = append(errs, field.Required(path.Child(file.name),
				"the tunnel server requires a client certificate"))
		} else if _, err := os.Stat(file.path); err != nil {
			errs = append(errs, field.Invalid(path.Child(file.name), file.path, err.Error()))
		}
	}
	if len(errs) > before {
		return nil, errs
	}
	if out.own, err = dynamiccertificates.NewDynamicServingContentFromFiles("egress-client", c.ClientCert,
		c.ClientKey); err != nil {
		errs = append(errs, field.Invalid(path.Child("clientCert"), c.ClientCert, err.Error()))
	}
	return out, errs
}

// config returns the TLS configuration for the next connection.
func (c *credentials) config() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName, NextProtos: c.protocols}
	if c.trusted != nil {
		options, ok := c.trusted.VerifyOptions()
		if !ok {
			return nil, fmt.Errorf("%s has no CA", c.trusted.Name())
		}
		out.RootCAs = options.Roots
	}
	own, err := tls.X509KeyPair(c.own.CurrentCertKeyContent())
	out.Certificates = []tls.Certificate{own}
	return out, err
}

// run reads the files again when they change, until ctx is done.
func (c *credentials) run(ctx context.Context) {
	var running sync.WaitGroup
	if c.trusted != nil {
		running.Go(func() { c.trusted.Run(ctx, 1) })
	}
	running.Go(func() { c.own.Run(ctx, 1) })
	running.Wait()
}
