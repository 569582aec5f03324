// Package authn puts together whom a server believes, out of upstream's authenticators
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/).
package authn

import (
	"context"
	"crypto"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/util/keyutil"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
	"k8s.io/kubernetes/pkg/serviceaccount"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trellis-k8s/trellis/internal/access"
)

// Config is what kube-apiserver's flags of the same names say. Its zero value believes tokens of service accounts alone.
type Config struct {
	Anonymous     bool   // requests without credentials are system:anonymous
	ClientCAFile  string // CAs of users, besides the cluster's own; read again when it changes
	RequestHeader RequestHeader
	TokenAuthFile string // CSV: token, user, uid, groups
	ConfigFile    string // AuthenticationConfiguration of apiserver.config.k8s.io; its issuers are read again when it changes
	Webhook       Webhook
	Accounts      Accounts
	APIAudiences  []string // that tokens are for; nil: the issuers

	Dial         utilnet.DialFunc      // connects to the webhook; nil: the net package
	EgressLookup egressselector.Lookup // finds how issuers are connected to that have an egressSelectorType; others are by the net package
}

// RequestHeader is a front proxy's. Without a CAFile there is none.
type RequestHeader struct {
	CAFile                                                         string
	AllowedNames                                                   []string // none: any
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

// Webhook is asked about tokens that nobody else knows. Without a ConfigFile there is none.
type Webhook struct {
	ConfigFile string // kubeconfig
	Version    string // of TokenReview: v1 or v1beta1
	CacheTTL   time.Duration
}

// Accounts is how tokens of service accounts are made and recognized.
type Accounts struct {
	Issuers        []string      // the first makes them; nil: DefaultIssuer
	SigningKeyFile string        // "": the server's own key
	KeyFiles       []string      // of keys that are recognized, public or private; nil: the signing key
	MaxExpiration  time.Duration // of a token; 0: any
	JWKSURI        string        // where others find the keys; "": at this server
}

// DefaultIssuer is who makes tokens of service accounts, unless something else is said.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Authenticators are the parts of an access.Authenticator, and what belongs to them.
type Authenticators struct {
	access.Authentication
	Tokens       authenticator.Request // as TokenReviews ask them
	Audiences    authenticator.Audiences
	Issuer       serviceaccount.TokenGenerator
	LegacyIssuer serviceaccount.TokenGenerator // of tokens in Secrets
	PublicKeys   serviceaccount.PublicKeysGetter
	run          []dynamiccertificates.ControllerRunner
	file         *configFile // nil if there is none
}

// Run reads files again when they change, until ctx is done. It reports what cannot be used.
func (a *Authenticators) Run(ctx context.Context, report func(error)) {
	var running sync.WaitGroup
	for _, r := range a.run {
		running.Go(func() { r.Run(ctx, 1) })
	}
	if a.file != nil {
		running.Go(func() { a.file.follow(ctx, report) })
	}
	running.Wait()
}

// New reads the files that c names. ca is the cluster's own CA, PEM; key signs tokens unless c names another one. Tokens end with
// the objects that they name. secrets notes when a legacy token was used last. What is asked of other servers ends with ctx.
func New(ctx context.Context, c Config, ca []byte, key crypto.Signer, objects serviceaccount.ServiceAccountTokenGetter, secrets typedcorev1.SecretsGetter) (*Authenticators, error) {
	a := &Authenticators{}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if err := a.clients(c, ca); err != nil {
		return nil, err
	}
	if err := a.frontProxy(c.RequestHeader); err != nil {
		return nil, err
	}
	if err := a.accounts(&c, key); err != nil {
		return nil, err
	}
	kube := kubeauthenticator.Config{
		TokenAuthFile: c.TokenAuthFile,

		ServiceAccountLookup:           true,
		ServiceAccountIssuers:          c.Accounts.Issuers,
		ServiceAccountPublicKeysGetter: a.PublicKeys,
		ServiceAccountTokenGetter:      objects,
		SecretsWriter:                  secrets,

		APIAudiences:                a.Audiences,
		WebhookTokenAuthnConfigFile: c.Webhook.ConfigFile,
		WebhookTokenAuthnVersion:    c.Webhook.Version,
		WebhookTokenAuthnCacheTTL:   c.Webhook.CacheTTL,
		WebhookRetryBackoff:         &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5},
		CustomDial:                  c.Dial,
		EgressLookup:                c.EgressLookup,
		TokenSuccessCacheTTL:        10 * time.Second, // as kube-apiserver
	}
	anonymously := apiserverconfig.AnonymousAuthConfig{Enabled: c.Anonymous}
	if c.ConfigFile != "" {
		var err error
		if a.file, err = readConfiguration(&kube, c); err != nil {
			return nil, err
		}
		if a.file.said.Anonymous != nil {
			anonymously = *a.file.said.Anonymous
		}
	}
	if anonymously.Enabled {
		a.Anonymous = anonymous.NewAuthenticator(anonymously.Conditions)
	}
	tokens, update, _, _, err := kube.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("authenticators: %w", err)
	}
	if a.file != nil {
		a.file.update = update
	}
	a.Tokens, a.Authentication.Tokens = tokens, tokens
	if c.Webhook.ConfigFile != "" {
		a.Authentication.Tokens = forUs(a.Audiences, tokens)
	}
	a.Now = time.Now
	return a, nil
}

// forUs asks about tokens for the audiences us. Authenticators in this process assume them; a webhook that is told none may believe a
// token for anybody.
func forUs(us authenticator.Audiences, tokens authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return tokens.AuthenticateRequest(r.WithContext(authenticator.WithAudiences(r.Context(), us)))
	})
}

// clients trusts the cluster's own CA, and those of the file.
func (a *Authenticators) clients(c Config, ca []byte) error {
	own, err := dynamiccertificates.NewStaticCAContent("cluster-ca", ca)
	if err != nil {
		return fmt.Errorf("CA of the cluster: %w", err)
	}
	trusted := dynamiccertificates.CAContentProvider(own)
	if c.ClientCAFile != "" {
		file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", c.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		a.run = append(a.run, file)
		trusted = dynamiccertificates.NewUnionCAContentProvider(own, file)
	}
	a.ClientCAs = access.NewTrust(trusted)
	return nil
}

func (a *Authenticators) frontProxy(h RequestHeader) error {
	if h.CAFile == "" {
		return nil
	}
	file, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", h.CAFile)
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	a.run = append(a.run, file)
	headers, err := headerrequest.New(h.UsernameHeaders, h.UIDHeaders, h.GroupHeaders, h.ExtraHeaderPrefixes)
	if err != nil {
		return fmt.Errorf("--requestheader-username-headers and others: %w", err)
	}
	a.FrontProxy = &access.FrontProxy{CAs: access.NewTrust(file), Names: headerrequest.StaticStringSlice(h.AllowedNames).Value, Headers: group.NewAuthenticatedGroupAdder(headers)}
	return nil
}

// accounts finds the keys of service accounts, and fills in what c leaves out.
func (a *Authenticators) accounts(c *Config, own crypto.Signer) error {
	if len(c.Accounts.Issuers) == 0 {
		c.Accounts.Issuers = []string{DefaultIssuer}
	}
	if a.Audiences = c.APIAudiences; len(a.Audiences) == 0 {
		a.Audiences = c.Accounts.Issuers
	}
	private, public := any(own), []any{own.Public()}
	if file := c.Accounts.SigningKeyFile; file != "" {
		key, err := keyutil.PrivateKeyFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
		private = key
		if signer, ok := key.(crypto.Signer); ok {
			public = []any{signer.Public()}
		}
	}
	if len(c.Accounts.KeyFiles) > 0 {
		public = nil
	}
	for _, file := range c.Accounts.KeyFiles {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		public = append(public, keys...)
	}
	var err error
	if a.PublicKeys, err = serviceaccount.StaticPublicKeysGetter(public); err != nil {
		return fmt.Errorf("keys of service accounts: %w", err)
	}
	if a.Issuer, err = serviceaccount.JWTTokenGenerator(c.Accounts.Issuers[0], private); err == nil {
		a.LegacyIssuer, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, private)
	}
	if err != nil {
		return fmt.Errorf("key of service accounts: %w", err)
	}
	return nil
}
