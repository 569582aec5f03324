// Package authn builds the authenticator of a server from upstream's authenticators
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/).
package authn

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
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
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// Config holds the values of kube-apiserver's flags of the same names. The zero value authenticates only service
// account tokens and client certificates of the cluster's own CA.
type Config struct {
	Anonymous     bool          // authenticate requests without credentials as system:anonymous
	ClientCAFile  string        // file of CAs of users, in addition to the cluster's own CA; reloaded when it changes
	RequestHeader RequestHeader // configures the front proxy
	TokenAuthFile string        // CSV file of token, user, uid, groups
	// ConfigFile is an AuthenticationConfiguration of apiserver.config.k8s.io. Its issuers are reloaded when it
	// changes.
	ConfigFile   string
	Webhook      Webhook
	Accounts     Accounts
	APIAudiences []string // audiences of this server in tokens; nil means the issuers

	Dial utilnet.DialFunc // connects to the webhook; nil means the net package
	// EgressLookup returns the dialer for issuers with an egressSelectorType. Other issuers use the net package.
	EgressLookup egressselector.Lookup
}

// RequestHeader configures the front proxy. There is no front proxy if CAFile is "".
type RequestHeader struct {
	CAFile                                                         string
	AllowedNames                                                   []string // empty allows all names
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

// Webhook configures the webhook that reviews the tokens that no other authenticator accepts. There is no webhook if
// ConfigFile is "".
type Webhook struct {
	ConfigFile string // path of a kubeconfig
	Version    string // of TokenReview: v1 or v1beta1
	CacheTTL   time.Duration
}

// Accounts configures how service account tokens are issued and verified.
type Accounts struct {
	Issuers        []string      // accepted issuers; the first one issues new tokens; nil means DefaultIssuer
	SigningKeyFile string        // "" means the server's own key
	KeyFiles       []string      // files of public or private keys that verify tokens; nil means the signing key
	MaxExpiration  time.Duration // maximum lifetime of a token; 0 means no limit
	JWKSURI        string        // URI of the public keys in the discovery document; "" means this server
}

// DefaultIssuer is the default issuer of service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Authenticators holds the configuration of an access.Authenticator, and the issuer and keys of service account tokens.
type Authenticators struct {
	access.Authentication
	Tokens       authenticator.Request // authenticates the tokens in TokenReviews
	Audiences    authenticator.Audiences
	Issuer       serviceaccount.TokenGenerator
	LegacyIssuer serviceaccount.TokenGenerator // issues tokens that are stored in Secrets
	PublicKeys   serviceaccount.PublicKeysGetter
	accountKeys  []any // public keys: the one of Issuer, then all that verify tokens
	controllers  []dynamiccertificates.ControllerRunner
	file         *configFile // nil if there is no configuration file
}

// Run reloads files when they change. It blocks until ctx is done. report receives the errors of reloads.
func (a *Authenticators) Run(ctx context.Context, report func(error)) {
	var running sync.WaitGroup
	for _, r := range a.controllers {
		running.Go(func() { r.Run(ctx, 1) })
	}
	if a.file != nil {
		running.Go(func() { a.file.reload(ctx, report) })
	}
	running.Wait()
}

// New returns the Authenticators that c and its files configure. ca is the cluster's own CA in PEM. key signs service
// account tokens unless c specifies a key. Tokens become invalid when one of the objects they name is deleted from
// objects. secrets records the last use of legacy tokens. ctx bounds all requests to other servers.
func New(
	ctx context.Context, c Config, ca []byte, key crypto.Signer,
	objects serviceaccount.ServiceAccountTokenGetter, secrets typedcorev1.SecretsGetter,
) (*Authenticators, error) {
	a := &Authenticators{}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if err := a.setClientCAs(c, ca); err != nil {
		return nil, err
	}
	if err := a.setFrontProxy(c.RequestHeader); err != nil {
		return nil, err
	}
	if err := a.setAccountKeys(&c, key); err != nil {
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
		WebhookRetryBackoff: &wait.Backoff{
			Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5,
		},
		CustomDial:           c.Dial,
		EgressLookup:         c.EgressLookup,
		TokenSuccessCacheTTL: 10 * time.Second, // as kube-apiserver
	}
	anonymousAuth := apiserverconfig.AnonymousAuthConfig{Enabled: c.Anonymous}
	if c.ConfigFile != "" {
		var err error
		if a.file, err = loadConfiguration(&kube, c); err != nil {
			return nil, err
		}
		if a.file.config.Anonymous != nil {
			anonymousAuth = *a.file.config.Anonymous
		}
	}
	if anonymousAuth.Enabled {
		a.Anonymous = anonymous.NewAuthenticator(anonymousAuth.Conditions)
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
		a.Authentication.Tokens = withAudiences(a.Audiences, tokens)
	}
	a.Now = time.Now
	return a, nil
}

// withAudiences returns an authenticator that passes audiences to tokens. Authenticators in this process assume the
// server's audiences by default. A webhook that receives no audiences could accept a token for any audience.
func withAudiences(audiences authenticator.Audiences, tokens authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return tokens.AuthenticateRequest(r.WithContext(authenticator.WithAudiences(r.Context(), audiences)))
	})
}

// setClientCAs sets ClientCAs to the cluster's own CA and the CAs of the file.
func (a *Authenticators) setClientCAs(c Config, ca []byte) error {
	clusterCA, err := dynamiccertificates.NewStaticCAContent("cluster-ca", ca)
	if err != nil {
		return fmt.Errorf("load cluster CA: %w", err)
	}
	trusted := dynamiccertificates.CAContentProvider(clusterCA)
	if c.ClientCAFile != "" {
		file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", c.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		a.controllers = append(a.controllers, file)
		trusted = dynamiccertificates.NewUnionCAContentProvider(clusterCA, file)
	}
	a.ClientCAs = access.NewCAPool(trusted)
	return nil
}

func (a *Authenticators) setFrontProxy(h RequestHeader) error {
	if h.CAFile == "" {
		return nil
	}
	file, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", h.CAFile)
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	a.controllers = append(a.controllers, file)
	headers, err := headerrequest.New(h.UsernameHeaders, h.UIDHeaders, h.GroupHeaders, h.ExtraHeaderPrefixes)
	if err != nil {
		return fmt.Errorf("--requestheader-username-headers and others: %w", err)
	}
	a.FrontProxy = &access.FrontProxy{
		CAs:     access.NewCAPool(file),
		Names:   headerrequest.StaticStringSlice(h.AllowedNames).Value,
		Headers: group.NewAuthenticatedGroupAdder(headers),
	}
	return nil
}

// setAccountKeys loads the keys of service account tokens. It sets the default issuer in c. serverKey is the default
// signing key.
func (a *Authenticators) setAccountKeys(c *Config, serverKey crypto.Signer) error {
	if len(c.Accounts.Issuers) == 0 {
		c.Accounts.Issuers = []string{DefaultIssuer}
	}
	if a.Audiences = c.APIAudiences; len(a.Audiences) == 0 {
		a.Audiences = c.Accounts.Issuers
	}
	signer := serverKey
	if file := c.Accounts.SigningKeyFile; file != "" {
		key, err := keyutil.PrivateKeyFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
		var ok bool
		if signer, ok = key.(crypto.Signer); !ok {
			return fmt.Errorf("--service-account-signing-key-file: the key in %s cannot sign", file)
		}
	}
	public := []any{signer.Public()}
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
	a.accountKeys = append([]any{signer.Public()}, public...)
	var err error
	if a.PublicKeys, err = serviceaccount.StaticPublicKeysGetter(public); err != nil {
		return fmt.Errorf("load service account public keys: %w", err)
	}
	if a.Issuer, err = serviceaccount.JWTTokenGenerator(c.Accounts.Issuers[0], signer); err == nil {
		a.LegacyIssuer, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, signer)
	}
	if err != nil {
		return fmt.Errorf("create service account token issuer: %w", err)
	}
	return nil
}

// AccountKeys returns the fingerprints of the public keys of service account tokens. The first one is of the key that
// signs. The server accepts the tokens of all others.
func (a *Authenticators) AccountKeys() (all []string, err error) {
	for _, key := range a.accountKeys {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return nil, fmt.Errorf("service account key: %w", err)
		}
		if f := pki.Fingerprint(der); !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all, nil
}
