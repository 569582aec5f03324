// Package authz puts together who decides what callers may do, out of upstream's authorizers and our index of roles
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

// Config is what kube-apiserver's flags of the same names say. Its zero value is Node and RBAC.
type Config struct {
	Modes      []string // in their order, each once: see Modes; nil: Node, RBAC
	Webhook    Webhook  // of the mode Webhook
	ConfigFile string   // AuthorizationConfiguration of apiserver.config.k8s.io, instead of all else; read again when it changes

	Dial utilnet.DialFunc // connects to webhooks; nil: the net package
}

// Webhook is a server that decides.
type Webhook struct {
	ConfigFile                     string        // kubeconfig
	Version                        string        // of SubjectAccessReview: v1 or v1beta1
	AuthorizedTTL, UnauthorizedTTL time.Duration // how long its answers are kept; 0: not at all
}

// Modes are those there are.
var Modes = []string{"AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"}

// Authorizers decide who may do what, by a chain that is made anew when its file changes.
type Authorizers struct {
	config Config
	roles  Authorizer
	nodes  informers.SharedInformerFactory // that the mode Node asks for; nil unless it was on at the start, as is node
	node   *nodes
	data   []byte // of the file at the start
	fixed  sets.Set[apiserverconfig.AuthorizerType]
	chain  atomic.Pointer[chain]
}

// chain is what decides at a time.
type chain struct {
	access.Authorizer
	rules authorizer.RuleResolver
}

// New reads the files that c names. nodes makes the informers by which the mode Node decides, if it is on.
func New(c Config, roles Authorizer, nodes func() informers.SharedInformerFactory) (*Authorizers, error) {
	a := &Authorizers{config: c, roles: roles, fixed: sets.New[apiserverconfig.AuthorizerType]()}
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	for _, one := range list {
		a.fixed.Insert(one.Type)
	}
	if a.fixed.Delete(apiserverconfig.TypeWebhook); a.fixed.Has("Node") {
		a.nodes = nodes()
		a.node = newNodes(a.nodes)
	}
	return a, a.use(list)
}

// Nodes reports whether the Node authorizer is configured. The answer never changes: a file that adds or removes it later is refused.
func (a *Authorizers) Nodes() bool { return a.node != nil }

// Authorize implements access.Authorizer.
func (a *Authorizers) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	return a.chain.Load().Authorize(ctx, of)
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizers) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return a.chain.Load().rules.RulesFor(ctx, u, namespace)
}

// Run has the informers of the mode Node begin, once a node asks, and reads the file again when it changes, until ctx is done. It reports
// a file that cannot be used.
func (a *Authorizers) Run(ctx context.Context, report func(error)) {
	if a.nodes != nil {
		defer a.nodes.Shutdown()
		go a.node.run(ctx)
	}
	if a.config.ConfigFile != "" {
		metrics.RegisterMetrics()
		metrics.RecordAuthorizationConfigLastConfigInfo("", string(a.data))
		use := func(_ context.Context, data []byte) error {
			list, err := a.read(data)
			if err != nil {
				return err
			}
			return a.use(list)
		}
		access.Reload(ctx, a.config.ConfigFile, a.data, use, report, metrics.RecordAuthorizationConfigAutomaticReloadSuccess, metrics.RecordAuthorizationConfigAutomaticReloadFailure)
	}
	<-ctx.Done()
}

// use has a list decide from now on.
func (a *Authorizers) use(list []apiserverconfig.AuthorizerConfiguration) error {
	var named []union.NamedAuthorizer
	var rules []authorizer.RuleResolver
	for i := range list {
		one, err := a.open(&list[i])
		if err != nil {
			return fmt.Errorf("authorizer %s: %w", list[i].Name, err)
		}
		named, rules = append(named, access.Named(list[i].Name, one)), append(rules, one)
	}
	all, err := access.Chain(named...)
	if err != nil {
		return err
	}
	a.chain.Store(&chain{all, union.NewRuleResolvers(rules...)})
	return nil
}

// list is what the file says or, without one, the flags.
func (a *Authorizers) list() (list []apiserverconfig.AuthorizerConfiguration, err error) {
	c := a.config
	if c.ConfigFile != "" {
		if a.data, err = os.ReadFile(c.ConfigFile); err == nil {
			list, err = a.read(a.data)
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
		one := apiserverconfig.AuthorizerConfiguration{Type: apiserverconfig.AuthorizerType(mode), Name: strings.ToLower(mode)}
		switch {
		case !slices.Contains(Modes, mode):
			return nil, fmt.Errorf("--authorization-mode: %q is none of %s", mode, strings.Join(Modes, ", "))
		case slices.Contains(c.Modes[:i], mode):
			return nil, fmt.Errorf("--authorization-mode: %s is there twice", mode)
		case one.Type == apiserverconfig.TypeWebhook && c.Webhook.ConfigFile == "":
			return nil, errors.New("--authorization-mode: Webhook needs --authorization-webhook-config-file")
		case one.Type == apiserverconfig.TypeWebhook:
			one.Name, one.Webhook = "default", c.Webhook.configuration()
		}
		list = append(list, one)
	}
	return list, nil
}

// configuration is a Webhook as the file has it; what the flags do not say is as upstream has it.
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

// read is what the file says, if that can be done and leaves on what was on at the start.
func (a *Authorizers) read(data []byte) ([]apiserverconfig.AuthorizerConfiguration, error) {
	config, err := kubeauthorizer.LoadAndValidateData(data, authorizationcel.NewDefaultCompiler(), a.fixed)
	if err != nil {
		return nil, err
	}
	return config.Authorizers, nil
}

// Authorizer decides, and tells rules by which it does; all of upstream's do.
type Authorizer interface {
	access.Authorizer
	authorizer.RuleResolver
}

func (a *Authorizers) open(c *apiserverconfig.AuthorizerConfiguration) (Authorizer, error) {
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
		return nil, fmt.Errorf("connectionInfo.type: %s: only %s is possible", w.ConnectionInfo.Type, apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
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
	again := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5} // where it does not answer, as kube-apiserver
	return webhook.New(client, w.SubjectAccessReviewVersion, authorized, unauthorized, again, onError, w.MatchConditions, c.Name, unmeasured{}, authorizationcel.NewDefaultCompiler())
}

// unmeasured counts nothing.
type unmeasured struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.NoopWebhookMetrics
	authorizationcel.NoopMatcherMetrics
}
