// Package delegated authenticates and authorizes requests to an extension server with the help of the main server
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/). The main server supplies the
// trusted CAs in the ConfigMap extension-apiserver-authentication, and answers TokenReviews and SubjectAccessReviews.
// The package combines upstream's components.
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

// Config holds the values of an extension server's flags of the same names. Values that are not set are looked up in
// the ConfigMap.
type Config struct {
	ClientCAFile          string
	RequestHeader         RequestHeader
	SkipLookup            bool // do not read the ConfigMap
	TolerateLookupFailure bool // continue without the ConfigMap if it cannot be read
}

// RequestHeader configures the main server as a front proxy. If CAFile is "", the ConfigMap supplies all fields.
type RequestHeader struct {
	CAFile                                                         string
	AllowedNames                                                   []string // empty allows all names
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

const (
	configMap = "extension-apiserver-authentication"
	// cacheTTL is the time for which results of reviews are cached. timeout bounds a TokenReview. Both are upstream's.
	cacheTTL = 10 * time.Second
	timeout  = 10 * time.Second
)

// Backoff is the backoff of reviews that fail, as in upstream's servers.
var Backoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// builder builds an access.Authentication.
type builder struct {
	Config
	access.Authentication
	client      kubernetes.Interface
	controllers []dynamiccertificates.ControllerRunner
	loaded      chan struct{} // receives a value when CAs have been loaded from the ConfigMap
	pending     int           // number of CA bundles to load before the server starts
}

// Enqueue implements dynamiccertificates.Listener.
func (a *builder) Enqueue() {
	select {
	case a.loaded <- struct{}{}:
	default: // the channel is full: it has a value for each pending bundle
	}
}

// NewAuthentication returns the authentication that c and the main server configure. client must be authorized to read
// the ConfigMap and to create TokenReviews. Files and the ConfigMap are watched until running is done. ctx limits the
// duration of the call.
func NewAuthentication(
	ctx, running context.Context, c Config, client kubernetes.Interface, retry wait.Backoff, logger *slog.Logger,
) (access.Authentication, error) {
	a := &builder{Config: c, client: client, loaded: make(chan struct{}, 2)}
	if err := a.applyFlags(); err != nil {
		return a.Authentication, err
	}
	if err := a.applyConfigMap(ctx); err != nil {
		if !c.TolerateLookupFailure {
			return a.Authentication, err
		}
		logger.Warn("cannot read the authentication configuration of the main server, continuing without it",
			"error", err)
	}
	reviews := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: client.AuthenticationV1(), TokenAccessReviewTimeout: timeout,
		WebhookRetryBackoff: &retry, CacheTTL: cacheTTL,
	}
	var err error
	if a.Tokens, _, err = reviews.New(); err != nil {
		return a.Authentication, fmt.Errorf("configure TokenReviews: %w", err)
	}
	a.Anonymous, a.Now = anonymous.NewAuthenticator(nil), time.Now
	for _, r := range a.controllers {
		go r.Run(running, 1)
	}
	for range a.pending {
		select {
		case <-a.loaded:
		case <-ctx.Done():
			return a.Authentication, fmt.Errorf("read ConfigMap %s: %w", configMap, ctx.Err())
		}
	}
	return a.Authentication, nil
}

// applyFlags configures the CAs and the front proxy that the flags specify.
func (a *builder) applyFlags() error {
	if a.ClientCAFile != "" {
		file, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca-bundle", a.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		a.controllers, a.ClientCAs = append(a.controllers, file), access.NewCAPool(file)
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
	a.controllers = append(a.controllers, file)
	a.FrontProxy = &access.FrontProxy{
		CAs:     access.NewCAPool(file),
		Names:   headerrequest.StaticStringSlice(h.AllowedNames).Value,
		Headers: group.NewAuthenticatedGroupAdder(headers),
	}
	return nil
}

// applyConfigMap configures the CAs and the front proxy from the ConfigMap, unless the flags specify them.
func (a *builder) applyConfigMap(ctx context.Context) error {
	if a.SkipLookup || a.ClientCAs != nil && a.FrontProxy != nil {
		return nil
	}
	stored, err := a.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w (a RoleBinding is probably missing: kubectl create rolebinding -n kube-system NAME"+
			" --role=extension-apiserver-authentication-reader --serviceaccount=NAMESPACE:NAME)", err)
	}
	if err != nil && !apierrors.IsNotFound(err) { // a main server that has just started creates the ConfigMap later
		return fmt.Errorf("read ConfigMap %s: %w", configMap, err)
	}
	if a.ClientCAs == nil {
		if a.ClientCAs, err = a.followCAs(stored, "client-ca", "client-ca-file"); err != nil {
			return err
		}
	}
	if a.FrontProxy != nil {
		return nil
	}
	cas, err := a.followCAs(stored, "request-header", "requestheader-client-ca-file")
	if err != nil {
		return err
	}
	c := headerrequest.NewRequestHeaderAuthRequestController(configMap, metav1.NamespaceSystem, a.client,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	if err := c.RunOnce(ctx); err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", configMap, err)
	}
	type provider = headerrequest.StringSliceProviderFunc
	headers := headerrequest.NewDynamic(provider(c.UsernameHeaders), provider(c.UIDHeaders),
		provider(c.GroupHeaders), provider(c.ExtraHeaderPrefixes))
	a.controllers = append(a.controllers, c)
	a.FrontProxy = &access.FrontProxy{
		CAs: cas, Names: c.AllowedClientNames, Headers: group.NewAuthenticatedGroupAdder(headers),
	}
	return nil
}

// followCAs returns a CAPool that follows the CAs at a key of the ConfigMap. If the ConfigMap stored contains CAs at
// the key, the server loads these before it starts.
func (a *builder) followCAs(stored *corev1.ConfigMap, purpose, key string) (*access.CAPool, error) {
	cas, err := dynamiccertificates.NewDynamicCAFromConfigMapController(purpose, metav1.NamespaceSystem, configMap, key,
		a.client)
	if err != nil {
		return nil, err
	}
	trust := access.NewCAPool(cas)
	cas.AddListener(a)
	if stored.Data[key] != "" {
		a.pending++
	}
	a.controllers = append(a.controllers, cas)
	return trust, nil
}

// NewAuthorizer returns an authorizer that sends SubjectAccessReviews to the main server. client must be authorized to
// create them. Like upstream's servers, the authorizer allows health checks to all callers, and everything to
// system:masters. If the main server does not respond, Authorize returns an error.
func NewAuthorizer(client kubernetes.Interface, retry wait.Backoff) (access.Authorizer, error) {
	health, err := path.NewAuthorizer([]string{"/healthz", "/readyz", "/livez"})
	if err != nil {
		return nil, err
	}
	reviews := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(),
		AllowCacheTTL:             cacheTTL, DenyCacheTTL: cacheTTL, WebhookRetryBackoff: &retry,
	}
	webhook, err := reviews.New()
	if err != nil {
		return nil, fmt.Errorf("configure SubjectAccessReviews: %w", err)
	}
	return access.Chain(access.Named("kubernetes.io/always-allow-paths", health),
		access.Named("kubernetes.io/webhook", webhook))
}
