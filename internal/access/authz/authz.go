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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/trellis-k8s/trellis/internal/access"
)

// Config is what kube-apiserver's flags of the same names say. Its zero value is RBAC alone.
type Config struct {
	Modes      []string // in their order, each once: see Modes; nil: RBAC
	Webhook    Webhook  // of the mode Webhook
	ConfigFile string   // AuthorizationConfiguration of apiserver.config.k8s.io, instead of all else; read once
}

// Webhook is a server that decides.
type Webhook struct {
	ConfigFile                     string        // kubeconfig
	Version                        string        // of SubjectAccessReview: v1 or v1beta1
	AuthorizedTTL, UnauthorizedTTL time.Duration // how long its answers are kept; 0: not at all
}

// Modes are those there are.
var Modes = []string{"AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"}

// Roles is who decides by roles.
type Roles interface {
	access.Authorizer
	authorizer.RuleResolver
}

// New reads the files that c names. nodes are the informers that the mode Node asks for; it decides by what they know.
func New(c Config, roles Roles, nodes informers.SharedInformerFactory) (access.Authorizer, authorizer.RuleResolver, error) {
	list, err := c.list()
	if err != nil {
		return nil, nil, err
	}
	b := builder{roles: roles, nodes: nodes}
	for i := range list {
		if err := b.add(&list[i]); err != nil {
			return nil, nil, fmt.Errorf("authorizer %s: %w", list[i].Name, err)
		}
	}
	chain, err := access.Chain(b.chain...)
	return chain, union.NewRuleResolvers(b.rules...), err
}

// list is what the file says or, without one, the flags.
func (c Config) list() ([]apiserverconfig.AuthorizerConfiguration, error) {
	if c.ConfigFile != "" {
		return read(c.ConfigFile)
	}
	if len(c.Modes) == 0 {
		c.Modes = []string{"RBAC"}
	}
	var list []apiserverconfig.AuthorizerConfiguration
	for i, mode := range c.Modes {
		a := apiserverconfig.AuthorizerConfiguration{Type: apiserverconfig.AuthorizerType(mode), Name: strings.ToLower(mode)}
		switch {
		case !slices.Contains(Modes, mode):
			return nil, fmt.Errorf("--authorization-mode: %q is none of %s", mode, strings.Join(Modes, ", "))
		case slices.Contains(c.Modes[:i], mode):
			return nil, fmt.Errorf("--authorization-mode: %s is there twice", mode)
		case a.Type == apiserverconfig.TypeWebhook && c.Webhook.ConfigFile == "":
			return nil, errors.New("--authorization-mode: Webhook needs --authorization-webhook-config-file")
		case a.Type == apiserverconfig.TypeWebhook:
			a.Name, a.Webhook = "default", c.Webhook.configuration()
		}
		list = append(list, a)
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

// read is what a file says, if that can be done.
func read(file string) ([]apiserverconfig.AuthorizerConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config: %w", err)
	}
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config: %s: %w", file, err)
	}
	errs := validation.ValidateAuthorizationConfiguration(authorizationcel.NewDefaultCompiler(), nil, config, sets.New(Modes...), sets.New("Webhook"))
	if err := errs.ToAggregate(); err != nil {
		return nil, fmt.Errorf("--authorization-config: %s: %w", file, err)
	}
	for _, a := range config.Authorizers {
		if want := strings.ToLower(string(a.Type)); a.Type != apiserverconfig.TypeWebhook && a.Name != want {
			return nil, fmt.Errorf("--authorization-config: %s: the name of %s must be %s, not %s", file, a.Type, want, a.Name)
		}
	}
	return config.Authorizers, nil
}

// builder collects the authorizers.
type builder struct {
	roles Roles
	nodes informers.SharedInformerFactory
	chain []union.NamedAuthorizer
	rules []authorizer.RuleResolver
}

// both is what every authorizer of upstream's is.
type both interface {
	access.Authorizer
	authorizer.RuleResolver
}

func (b *builder) add(c *apiserverconfig.AuthorizerConfiguration) error {
	var one both
	var err error
	switch c.Type {
	case "AlwaysAllow":
		one = authorizerfactory.NewAlwaysAllowAuthorizer()
	case "AlwaysDeny":
		one = authorizerfactory.NewAlwaysDenyAuthorizer()
	case "Node":
		one = b.node()
	case "RBAC":
		one = b.roles
	case apiserverconfig.TypeWebhook:
		one, err = newWebhook(c)
	}
	if err != nil {
		return err
	}
	b.chain = append(b.chain, access.Named(c.Name, one))
	b.rules = append(b.rules, one)
	return nil
}

// node decides what the kubelet of a node may see: what the Pods on it need.
func (b *builder) node() both {
	graph := node.NewGraph()
	core, storage := b.nodes.Core().V1(), b.nodes.Storage().V1()
	node.AddGraphEventHandlers(graph, core.Nodes(), core.Pods(), core.PersistentVolumes(), storage.VolumeAttachments(),
		b.nodes.Resource().V1().ResourceSlices(), b.nodes.Certificates().V1().PodCertificateRequests())
	return node.NewAuthorizer(graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
}

// retries is how often a webhook is asked again that does not answer, as kube-apiserver does.
func retries() wait.Backoff {
	return wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
}

func newWebhook(c *apiserverconfig.AuthorizerConfiguration) (both, error) {
	w := c.Webhook
	if w.ConnectionInfo.Type != apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("connectionInfo.type: %s: only %s is possible", w.ConnectionInfo.Type, apiserverconfig.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
	}
	client, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
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
	return webhook.New(client, w.SubjectAccessReviewVersion, authorized, unauthorized, retries(), onError, w.MatchConditions, c.Name, unmeasured{}, authorizationcel.NewDefaultCompiler())
}

// unmeasured counts nothing.
type unmeasured struct {
	webhookmetrics.NoopRequestMetrics
	webhookmetrics.NoopWebhookMetrics
	authorizationcel.NoopMatcherMetrics
}

// Run has the informers of the mode Node begin, until ctx is done.
func Run(ctx context.Context, nodes informers.SharedInformerFactory) {
	nodes.Start(ctx.Done())
	<-ctx.Done()
	nodes.Shutdown()
}
