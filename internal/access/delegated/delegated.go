// Package delegated is for a server behind another one: the main server says whom to believe, by the ConfigMap
// extension-apiserver-authentication and by TokenReviews, and who may do what, by SubjectAccessReviews
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/). All of it is done by upstream's parts.
package delegated

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/access"
)

// Config is what an extension server's flags of the same names say. What it leaves out is looked up in the ConfigMap.
type Config struct {
	ClientCAFile          string
	RequestHeader         RequestHeader
	SkipLookup            bool // do not look
	TolerateLookupFailure bool // go on where that fails
}

// RequestHeader is the main server as a front proxy. Without a CAFile the ConfigMap says all of it.
type RequestHeader struct {
	CAFile                                                         string
	AllowedNames                                                   []string // none: any
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

const (
	configMap = "extension-apiserver-authentication"
	// cacheTTL is how long what the main server has said is believed, timeout how long it may take to say it; upstream's.
	cacheTTL = 10 * time.Second
	timeout  = 10 * time.Second
)

// Backoff is how often the main server is asked again that does not answer, as upstream's servers do.
var Backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// authentication is what is being put together.
type authentication struct {
	Config
	access.Authentication
	client kubernetes.Interface
	run    []dynamiccertificates.ControllerRunner
	loaded chan struct{} // receives when CAs of the ConfigMap have been read
	await  int           // how many are to be
}

// Enqueue implements dynamiccertificates.Listener.
func (a *authentication) Enqueue() {
	select {
	case a.loaded <- struct{}{}:
	default: // there are as many as anybody waits for
	}
}

// NewAuthentication asks the main server, by a client that may read the ConfigMap and create TokenReviews. What it has read it
// follows until running is done; ctx bounds the call.
func NewAuthentication(ctx, running context.Context, c Config, client kubernetes.Interface, retry wait.Backoff, logger *slog.Logger) (access.Authentication, error) {
	a := &authentication{Config: c, client: client, loaded: make(chan struct{}, 2)}
	if err := a.fromFiles(); err != nil {
		return a.Authentication, err
	}
	if err := a.fromConfigMap(ctx); err != nil {
		if !c.TolerateLookupFailure {
			return a.Authentication, err
		}
		logger.Warn("going on without: whom the main server believes", "error", err)
	}
	reviews := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: client.AuthenticationV1(), TokenAccessReviewTimeout: timeout, WebhookRetryBackoff: &retry, CacheTTL: cacheTTL,
	}
	var err error
	if a.Tokens, _, err = reviews.New(); err != nil {
		return a.Authentication, fmt.Errorf("reviews of tokens: %w", err)
	}
	a.Anonymous, a.Now = anonymous.NewAuthenticator(nil), time.Now
	for _, r := range a.run {
		go r.Run(running, 1)
	}
	for range a.await {
		select {
		case <-a.loaded:
		case <-ctx.Done():
			return a.Authentication, fmt.Errorf("read ConfigMap %s: %w", configMap, ctx.Err())
		}
	}
	return a.Authentication, nil
}

// fromFiles believes what the flags say.
func (a *authentication) fromFiles() error {
	if a.ClientCAFile != "" {
		file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", a.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		a.run, a.ClientCAs = append(a.run, file), access.NewTrust(file)
	}
	h := a.RequestHeader
	if h.CAFile == "" {
		return nil
	}
	file, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", h.CAFile)
	if err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	headers, err := headerrequest.New(h.UsernameHeaders, h.UIDHeaders, h.GroupHeaders, h.ExtraHeaderPrefixes)
	if err != nil {
		return fmt.Errorf("--requestheader-username-headers and others: %w", err)
	}
	a.run = append(a.run, file)
	a.FrontProxy = &access.FrontProxy{
		CAs: access.NewTrust(file), Names: headerrequest.StaticStringSlice(h.AllowedNames).Value, Headers: group.NewAuthenticatedGroupAdder(headers),
	}
	return nil
}

// fromConfigMap believes what the main server says of the rest.
func (a *authentication) fromConfigMap(ctx context.Context) error {
	if a.SkipLookup || a.ClientCAs != nil && a.FrontProxy != nil {
		return nil
	}
	said, err := a.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w (what is missing is mostly: kubectl create rolebinding -n kube-system NAME --role=extension-apiserver-authentication-reader --serviceaccount=NAMESPACE:NAME)", err)
	}
	if err != nil && !apierrors.IsNotFound(err) { // there is none yet: a main server that has just begun makes it
		return fmt.Errorf("read ConfigMap %s: %w", configMap, err)
	}
	if a.ClientCAs == nil {
		if a.ClientCAs, err = a.follow(said, "client-ca", "client-ca-file"); err != nil {
			return err
		}
	}
	if a.FrontProxy != nil {
		return nil
	}
	cas, err := a.follow(said, "request-header", "requestheader-client-ca-file")
	if err != nil {
		return err
	}
	c := headerrequest.NewRequestHeaderAuthRequestController(configMap, metav1.NamespaceSystem, a.client, "requestheader-username-headers", "requestheader-uid-headers",
		"requestheader-group-headers", "requestheader-extra-headers-prefix", "requestheader-allowed-names")
	if err := c.RunOnce(ctx); err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", configMap, err)
	}
	type now = headerrequest.StringSliceProviderFunc
	headers := headerrequest.NewDynamic(now(c.UsernameHeaders), now(c.UIDHeaders), now(c.GroupHeaders), now(c.ExtraHeaderPrefixes))
	a.run = append(a.run, c)
	a.FrontProxy = &access.FrontProxy{CAs: cas, Names: c.AllowedClientNames, Headers: group.NewAuthenticatedGroupAdder(headers)}
	return nil
}

// follow trusts the CAs that the ConfigMap has at a key, now or later.
func (a *authentication) follow(said *corev1.ConfigMap, purpose, key string) (*access.Trust, error) {
	cas, err := dynamiccertificates.NewDynamicCAFromConfigMapController(purpose, metav1.NamespaceSystem, configMap, key, a.client)
	if err != nil {
		return nil, err
	}
	trust := access.NewTrust(cas)
	cas.AddListener(a)
	if said.Data[key] != "" {
		a.await++
	}
	a.run = append(a.run, cas)
	return trust, nil
}

// NewAuthorizer asks the main server by a client that may create SubjectAccessReviews. Everybody may see health, and
// system:masters everything, as with upstream's servers. Where there is no answer, it is an error.
func NewAuthorizer(client kubernetes.Interface, retry wait.Backoff) (access.Authorizer, error) {
	health, err := path.NewAuthorizer([]string{"/healthz", "/readyz", "/livez"})
	if err != nil {
		return nil, err
	}
	reviews := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: cacheTTL, DenyCacheTTL: cacheTTL, WebhookRetryBackoff: &retry,
	}
	webhook, err := reviews.New()
	if err != nil {
		return nil, fmt.Errorf("reviews of access: %w", err)
	}
	return access.Chain(access.Named("kubernetes.io/always-allow-paths", health), access.Named("kubernetes.io/webhook", webhook))
}
