package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/controllers/apiservice"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/flags"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Aggregation configures the proxy to the API servers that APIServices register.
type Aggregation struct {
	// ProxyClientCertFile and ProxyClientKeyFile hold the client certificate for aggregated API servers. With it,
	// they verify that the user headers come from this server. The files are reloaded when they change. "" means a
	// certificate of the server's own front-proxy CA.
	ProxyClientCertFile, ProxyClientKeyFile string
	// ByClusterIP makes the server dial the cluster IP of the Service. Then kube-proxy must route the connection to
	// an endpoint. By default the server dials an endpoint directly.
	ByClusterIP bool
}

// AddFlags declares the flags.
func (a *Aggregation) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.ProxyClientCertFile, "proxy-client-cert-file", "",
		"file of the client certificate for requests to aggregated API servers (empty means a certificate of a "+
			"separate CA in the data directory)")
	fs.StringVar(&a.ProxyClientKeyFile, "proxy-client-key-file", "",
		"file of the private key of --proxy-client-cert-file")
	flags.Pair(fs, "proxy-client-cert-file", "proxy-client-key-file")
	flags.Negated(fs, &a.ByClusterIP, "enable-aggregator-routing",
		"connect to aggregated API servers at the endpoints of their Services. If false, connect to the cluster IP, "+
			"which needs a program such as kube-proxy")
}

// openAggregation creates the proxy to aggregated API servers and subscribes it to updates of the catalog.
func (s *Server) openAggregation(out *egress.Dialer) {
	services := s.services()
	services.ByClusterIP = s.config.Aggregation.ByClusterIP
	s.apiServices = apiservice.New(s.engine.Live.Load)
	s.aggregator = aggregation.New(aggregation.Config{
		Catalog: s.engine.Live.Load, Dialer: out, Endpoints: services.Endpoints, Certificate: s.proxyCertificate,
		Headers: s.headers().Default(), Report: s.apiServices.Report,
	})
	s.apiServices.LastResources = s.aggregator.LastResources
	follow := func(*catalog.Catalog) {
		s.aggregator.Follow()
		s.apiServices.CatalogChanged()
	}
	s.engine.Live.OnUpdate(follow)
	follow(nil)
}

// headers returns the configured front-proxy headers, or the defaults.
func (s *Server) headers() proxy.Headers {
	h := s.config.Authentication.RequestHeader
	if h.CAFile == "" {
		return proxy.Headers{}.Default()
	}
	return proxy.Headers{Username: h.UsernameHeaders, UID: h.UIDHeaders, Group: h.GroupHeaders,
		ExtraPrefix: h.ExtraHeaderPrefixes}
}

// proxyCertificate returns the client certificate for aggregated API servers.
func (s *Server) proxyCertificate() (*tls.Certificate, error) {
	return clientCertificate("--proxy-client-cert-file", s.proxyClient,
		func() *tls.Certificate { return &s.keys.Load().ProxyClient })
}

// clientCertificate returns the certificate that file currently contains. If file is nil, it calls the function own
// instead. An error contains the name of the flag.
func clientCertificate(flag string, file *dynamiccertificates.DynamicCertKeyPairContent,
	own func() *tls.Certificate) (*tls.Certificate, error) {
	if file == nil {
		return own(), nil
	}
	c, err := tls.X509KeyPair(file.CurrentCertKeyContent())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return &c, nil
}

// openClientCertificates reads the client certificates that the configuration names.
func (s *Server) openClientCertificates() (err error) {
	open := func(flag, cert, key string) *dynamiccertificates.DynamicCertKeyPairContent {
		if cert == "" || err != nil {
			return nil
		}
		file, failed := dynamiccertificates.NewDynamicServingContentFromFiles(flag, cert, key)
		if failed != nil {
			err = fmt.Errorf("--%s: %w", flag, failed)
		}
		return file
	}
	s.proxyClient = open("proxy-client-cert-file", s.config.Aggregation.ProxyClientCertFile,
		s.config.Aggregation.ProxyClientKeyFile)
	s.kubeletClient = open("kubelet-client-certificate", s.config.Kubelet.CertFile, s.config.Kubelet.KeyFile)
	return err
}

// trustInfo returns the content of the ConfigMap extension-apiserver-authentication. Aggregated API servers
// authenticate this server with the CA in this ConfigMap.
func (s *Server) trustInfo() (info clusterauthenticationtrust.ClusterAuthenticationInfo, err error) {
	if c := s.config; (c.Authentication.RequestHeader.CAFile == "") != (c.Aggregation.ProxyClientCertFile == "") {
		c.Logger.Warn("--requestheader-client-ca-file and --proxy-client-cert-file should be set together: " +
			"aggregated API servers trust this server only if a CA in --requestheader-client-ca-file signed its " +
			"client certificate")
	}
	headers := s.headers()
	info = clusterauthenticationtrust.ClusterAuthenticationInfo{
		ClientCA:                         s.authn.ClientCAs,
		RequestHeaderUsernameHeaders:     headerrequest.StaticStringSlice(headers.Username),
		RequestHeaderUIDHeaders:          headerrequest.StaticStringSlice(headers.UID),
		RequestHeaderGroupHeaders:        headerrequest.StaticStringSlice(headers.Group),
		RequestHeaderExtraHeaderPrefixes: headerrequest.StaticStringSlice(headers.ExtraPrefix),
	}
	h, keys := s.config.Authentication.RequestHeader, s.keys.Load()
	if h.CAFile == "" {
		info.RequestHeaderAllowedNames = headerrequest.StaticStringSlice{keys.ProxyClient.Leaf.Subject.CommonName}
		info.RequestHeaderCA, err = dynamiccertificates.NewStaticCAContent("front-proxy", keys.ProxyCAPEM)
		return info, err
	}
	info.RequestHeaderAllowedNames = headerrequest.StaticStringSlice(h.AllowedNames)
	info.RequestHeaderCA = s.authn.FrontProxy.CAs
	if len(h.AllowedNames) > 0 && shareCA(s.authn.ClientCAs.CurrentCABundleContent(),
		info.RequestHeaderCA.CurrentCABundleContent()) {
		s.config.Logger.Warn("--client-ca-file and --requestheader-client-ca-file share a CA: a user with a "+
			"certificate of this CA is taken for a front proxy, and gets 401 unless --requestheader-allowed-names "+
			"lists the user", "allowedNames",
			h.AllowedNames)
	}
	return info, nil
}

// shareCA reports whether two PEM bundles have a certificate in common.
func shareCA(a, b []byte) bool {
	some, _ := cert.ParseCertsPEM(a)
	others, _ := cert.ParseCertsPEM(b)
	return slices.ContainsFunc(some, func(c *x509.Certificate) bool { return slices.ContainsFunc(others, c.Equal) })
}
