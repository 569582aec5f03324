package authn

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// AddFlags declares the flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Anonymous, "anonymous-auth", true,
		"accept requests without credentials, as the user system:anonymous. This user may read only health and "+
			"version by default. If false, such requests get 401")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", "",
		"file of CAs for client certificates, in addition to the CA in the data directory. The common name of a "+
			"certificate is the user, and its organizations are the groups")
	fs.StringVar(&c.TokenAuthFile, "token-auth-file", "", "CSV file of tokens: token,user,uid,\"group1,group2\"")
	fs.StringVar(&c.ConfigFile, "authentication-config", "",
		"file of an AuthenticationConfiguration of apiserver.config.k8s.io with JWT issuers and anonymous paths. Its "+
			"section anonymous replaces --anonymous-auth")
	fs.StringSliceVar(&c.APIAudiences, "api-audiences", nil,
		"audiences of the API server. A token must have one of them (empty means the issuers of service account "+
			"tokens)")
	c.RequestHeader.addFlags(fs)
	c.Accounts.addFlags(fs)

	w := &c.Webhook
	fs.StringVar(&w.ConfigFile, "authentication-token-webhook-config-file", "",
		"kubeconfig of a webhook that authenticates a token if no other authenticator recognizes the token")
	fs.StringVar(&w.Version, "authentication-token-webhook-version", "v1beta1",
		"version of the TokenReview that the webhook receives: v1 or v1beta1")
	fs.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
		"time for which responses of the webhook are cached")
}

// addFlags declares the flags of an authenticating proxy.
func (h *RequestHeader) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&h.CAFile, "requestheader-client-ca-file", "",
		"file of CAs for the client certificate of an authenticating proxy. The proxy sends the user in headers. "+
			"These CAs are checked before those of --client-ca-file. The two files must have no CA in common")
	fs.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", nil,
		"allowed common names of the client certificate of the proxy (empty means any name)")
	fs.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", []string{"x-remote-user"},
		"headers that can contain the name of the user. The first header that is set is used")
	fs.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", nil,
		"headers that can contain the UID of the user, such as X-Remote-Uid")
	fs.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", []string{"x-remote-group"},
		"headers that contain the groups of the user")
	fs.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"x-remote-extra-"},
		"prefixes of headers that contain extra information about the user")
}

// addFlags declares the flags of service account tokens.
func (a *Accounts) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Issuers, "service-account-issuer", nil,
		"issuer URLs of service account tokens. The server issues tokens with the first URL and accepts tokens with "+
			"any of them (empty means https://kubernetes.default.svc.cluster.local)")
	fs.StringVar(&a.SigningKeyFile, "service-account-signing-key-file", "",
		"file of the private key that signs service account tokens (empty means a key in the data directory)")
	fs.StringArrayVar(&a.KeyFiles, "service-account-key-file", nil,
		"file of private or public keys that verify service account tokens; can be repeated (empty means the "+
			"signing key)")
	fs.DurationVar(&a.MaxExpiration, "service-account-max-token-expiration", 0,
		"maximum lifetime of a service account token (0 means no maximum)")
	fs.StringVar(&a.JWKSURI, "service-account-jwks-uri", "",
		"URL of the public keys in the discovery document of the token issuer (empty means a URL of this server)")
}

// Validate returns an error if a flag has an invalid value.
func (c *Config) Validate() error {
	switch e := c.Accounts.MaxExpiration; {
	case c.RequestHeader.CAFile != "" && len(c.RequestHeader.UsernameHeaders) == 0:
		return errors.New("--requestheader-username-headers must not be empty with --requestheader-client-ca-file")
	case e != 0 && (e < time.Hour || e > 1<<32*time.Second):
		return errors.New("--service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authentication-token-webhook-version must be v1 or v1beta1")
	}
	return nil
}
