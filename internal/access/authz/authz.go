// Package authz builds the authorizer of a server from upstream's authorizers and the RBAC index
// (https://kubernetes.io/docs/reference/access-authn-authz/authorization/).
package authz

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/informers"
	kubeauthorizer "k8s.io/kubernetes/pkg/kubeapiserver/authorizer"

	"github.com/trellis-k8s/trellis/internal/access"
)

// Config holds the values of kube-apiserver's flags of the same names. The zero value enables the modes Node and RBAC.
type Config struct {
	Modes   []string // the enabled Modes in their order, without duplicates; nil means Node, RBAC
	Webhook Webhook  // configures the mode Webhook
	// ConfigFile is an AuthorizationConfiguration of apiserver.config.k8s.io. It replaces Modes and Webhook, and is
	// reloaded when it changes.
	ConfigFile string

	Dial utilnet.DialFunc // connects to webhooks; nil means the net package
}

// Webhook configures an authorization webhook.
type Webhook struct {
	ConfigFile                     string        // path of a kubeconfig
	Version                        string        // of SubjectAccessReview: v1 or v1beta1
	AuthorizedTTL, UnauthorizedTTL time.Duration // time for which responses are cached; 0 disables the cache
}

// Modes lists the supported authorization modes.
var Modes = []string{"AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"}

// Authorizers authorizes requests with a chain of authorizers, which is rebuilt when its file changes.
type Authorizers struct {
	config     Config
	roles      Authorizer
	informers  informers.SharedInformerFactory // of the Node authorizer; nil if it is disabled
	node       *nodeAuthorizer                 // nil if the Node authorizer is disabled
	data       []byte                          // content of the file at the start
	fixedTypes sets.Set[apiserverconfig.AuthorizerType]
	chain      atomic.Pointer[chain]
}

// chain is the chain of authorizers in force.
type chain struct {
	access.Authorizer
	rules authorizer.RuleResolver
}

// New returns the Authorizers that c and its files configure. roles is the RBAC authorizer. newInformers creates the
// informers of the Node authorizer. New calls newInformers only if the Node authorizer is enabled.
func New(c Config, roles Authorizer, newInformers func() informers.SharedInformerFactory) (*Authorizers, error) {
	a := &Authorizers{config: c, roles: roles, fixedTypes: sets.New[apiserverconfig.AuthorizerType]()}
	list, err := a.configurations()
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		a.fixedTypes.Insert(c.Type)
	}
	if a.fixedTypes.Delete(apiserverconfig.TypeWebhook); a.fixedTypes.Has("Node") {
		a.informers = newInformers()
		a.node = newNodeAuthorizer(a.informers)
	}
	return a, a.apply(list)
}

// Nodes reports whether the Node authorizer is configured. The result never changes, because a reload that adds or
// removes the Node authorizer fails.
func (a *Authorizers) Nodes() bool { return a.node != nil }

// Authorize implements access.Authorizer.
func (a *Authorizers) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	return a.chain.Load().Authorize(ctx, attributes)
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizers) RulesFor(
	ctx context.Context, u user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return a.chain.Load().rules.RulesFor(ctx, u, namespace)
}

// Run runs the informers of the Node authorizer and reloads the file when it changes. It blocks until ctx is done.
// report receives the errors of reloads.
func (a *Authorizers) Run(ctx context.Context, report func(error)) {
	if a.informers != nil {
		defer a.informers.Shutdown()
		go a.node.run(ctx)
	}
	if a.config.ConfigFile != "" {
		metrics.RegisterMetrics()
		metrics.RecordAuthorizationConfigLastConfigInfo("", string(a.data))
		apply := func(_ context.Context, data []byte) error {
			list, err := a.decode(data)
			if err != nil {
				return err
			}
			return a.apply(list)
		}
		access.Reload(ctx, a.config.ConfigFile, a.data, apply, report,
			metrics.RecordAuthorizationConfigAutomaticReloadSuccess,
			metrics.RecordAuthorizationConfigAutomaticReloadFailure)
	}
	<-ctx.Done()
}

// apply replaces the chain by the authorizers of the list.
func (a *Authorizers) apply(list []apiserverconfig.AuthorizerConfiguration) error {
	var named []union.NamedAuthorizer
	var rules []authorizer.RuleResolver
	for i := range list {
		az, err := a.newAuthorizer(&list[i])
		if err != nil {
			return fmt.Errorf("authorizer %s: %w", list[i].Name, err)
		}
		named, rules = append(named, access.Named(list[i].Name, az)), append(rules, az)
	}
	all, err := access.Chain(named...)
	if err != nil {
		return err
	}
	a.chain.Store(&chain{all, union.NewRuleResolvers(rules...)})
	return nil
}

// configurations returns the authorizers that the file configures or, if there is no file, the flags.
func (a *Authorizers) configurations() (list []apiserverconfig.AuthorizerConfiguration, err error) {
	c := a.config
	if c.ConfigFile != "" {
		if a.data, err = os.ReadFile(c.ConfigFile); err == nil {
			list, err = a.decode(a.data)
		}
		if err != nil {
			return nil, fmt.Errorf("--authorization-config: %s: %w", c.ConfigFile, err)
		}
		return list, nil
	}
	if len(c.Modes) == 0 {
		c.Modes = []string{"Node", "RBAC"}
	}
	for i, mode := range c.Modes {
		az := apiserverconfig.AuthorizerConfiguration{
			Type: apiserverconfig.AuthorizerType(mode), Name: strings.ToLower(mode),
		}
		switch {
		case !slices.Contains(Modes, mode):
			return nil, fmt.Errorf("--authorization-mode: unknown mode %q, must be one of %s",
				mode, strings.Join(Modes, ", "))
		case slices.Contains(c.Modes[:i], mode):
			return nil, fmt.Errorf("--authorization-mode: duplicate mode %s", mode)
		case az.Type == apiserverconfig.TypeWebhook && c.Webhook.ConfigFile == "":
			return nil, errors.New("--authorization-mode: Webhook requires --authorization-webhook-config-file")
		case az.Type == apiserverconfig.TypeWebhook:
			az.Name, az.Webhook = "default", c.Webhook.configuration()
		}
		list = append(list, az)
	}
	return list, nil
}

// configuration converts w to the form of an AuthorizationConfiguration. Fields without a flag have upstream's values.
func (w Webhook) configuration() *apiserverconfig.WebhookConfiguration {
	return &apiserverconfig.WebhookConfiguration{
		AuthorizedTTL:              metav1.Duration{Duration: w.AuthorizedTTL},
		CacheAuthorizedRequests:    w.AuthorizedTTL != 0,
		UnauthorizedTTL:            metav1.Duration{Duration: w.UnauthorizedTTL},
		CacheUnauthorizedRequests:  w.UnauthorizedTTL != 0,
		Timeout:                    metav1.Duration{Duration: 30 * time.Second},
		FailurePolicy:              apiserverconfig.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: w.Version,
		ConnectionInfo: apiserverconfig.WebhookConnectionInfo{
			Type:           apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
			KubeConfigFile: &w.ConfigFile,
		},
	}
}

// decode decodes and validates an AuthorizationConfiguration. It returns an error if a type in fixedTypes is missing.
func (a *Authorizers) decode(data []byte) ([]apiserverconfig.AuthorizerConfiguration, error) {
	config, err := kubeauthorizer.LoadAndValidateData(data, authorizationcel.NewDefaultCompiler(), a.fixedTypes)
	if err != nil {
		return nil, err
	}
	return config.Authorizers, nil
}

// Authorizer authorizes requests and lists the rules that apply to a user. All of upstream's authorizers implement it.
type Authorizer interface {
	access.Authorizer
	authorizer.RuleResolver
}

func (a *Authorizers) newAuthorizer(c *apiserverconfig.AuthorizerConfiguration) (Authorizer, error) {
	switch {
	case c.Type == "AlwaysAllow":
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case c.Type == "AlwaysDeny":
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case c.Type == "RBAC":
		return a.roles, nil
	case c.Type == apiserverconfig.TypeWebhook:
		return a.webhook(c)
	case c.Type == "Node" && a.node != nil:
		return a.node, nil
	}
	return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", c.Type)
}

func (a *Authorizers) webhook(c *apiserverconfig.AuthorizerConfiguration) (Authorizer, error) {
	w := c.Webhook
	if w.ConnectionInfo.Type != apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("connectionInfo.type: unsupported value %q, must be %q",
			w.ConnectionInfo.Type, apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
	}
	client, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, a.config.Dial)
	if err != nil {
		return nil, err
	}
	client.Timeout = w.Timeout.Duration
	authorized, unauthorized := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		authorized = 0
	}
	if !w.CacheUnauthorizedRequests {
		unauthorized = 0
	}
	onError := authorizer.DecisionNoOpinion
	if w.FailurePolicy == apiserverconfig.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	retry := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5} // as kube-apiserver
	return webhook.New(client, w.SubjectAccessReviewVersion, authorized, unauthorized, retry, onError,
		w.MatchConditions, c.Name, noMetrics{}, authorizationcel.NewDefaultCompiler())
}

// noMetrics discards the metrics of webhooks.
type noMetrics struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.NoopWebhookMetrics
	authorizationcel.NoopMatcherMetrics
}
