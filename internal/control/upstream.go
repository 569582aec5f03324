package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	accounts "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Upstream are upstream's controllers, which act on built-in kinds.
type Upstream struct {
	// Controllers are those that run, in the form of kube-controller-manager's --controllers: names, "-name" for one that does not,
	// "*" for all that are not named. That which aggregates ClusterRoles always runs.
	Controllers []string
	RootCA      []byte                        // that ConfigMaps and Secrets tell clients, PEM
	Tokens      serviceaccount.TokenGenerator // for Secrets
}

// Names of upstream's controllers, by which they are selected.
const (
	serviceAccounts      = "serviceaccount-controller"
	serviceAccountTokens = "serviceaccount-token-controller"
	rootCA               = "root-ca-certificate-publisher-controller"
)

// Names are those that Upstream.Controllers may have.
func Names() []string { return []string{rootCA, serviceAccounts, serviceAccountTokens} }

func (u *Upstream) enabled(name string) bool {
	return slices.Contains(u.Controllers, name) || slices.Contains(u.Controllers, "*") && !slices.Contains(u.Controllers, "-"+name)
}

// Check refuses a name that no controller has.
func (u *Upstream) Check() error {
	for _, c := range u.Controllers {
		if name := strings.TrimPrefix(c, "-"); c != "*" && !slices.Contains(Names(), name) {
			return fmt.Errorf("%q is not in the list of known controllers", name)
		}
	}
	return nil
}

// Run runs the controllers against the API server of config until ctx is done.
func (u *Upstream) Run(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of controllers: %w", err)
	}
	ctx = klog.NewContext(ctx, logr.New(errorsOnly{klog.NewKlogr().GetSink()})) // a sink of its own, for New writes to it
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutOwnership))
	runs := []func(context.Context, int){clusterroleaggregation.NewClusterRoleAggregation(all.Rbac().V1().ClusterRoles(), client.RbacV1()).Run}
	if u.enabled(serviceAccounts) {
		c, err := accounts.NewServiceAccountsController(klog.FromContext(ctx), all.Core().V1().ServiceAccounts(), all.Core().V1().Namespaces(), client, accounts.DefaultServiceAccountsControllerOptions())
		if err != nil {
			return err
		}
		runs = append(runs, c.Run)
	}
	if u.enabled(serviceAccountTokens) {
		secrets := core.New(all, "", only("type", string(corev1.SecretTypeServiceAccountToken))).V1().Secrets()
		c, err := accounts.NewTokensController(klog.FromContext(ctx), all.Core().V1().ServiceAccounts(), secrets, client, accounts.TokensControllerOptions{TokenGenerator: u.Tokens, RootCA: u.RootCA})
		if err != nil {
			return err
		}
		runs = append(runs, c.Run)
	}
	if u.enabled(rootCA) {
		maps := core.New(all, "", only(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName)).V1().ConfigMaps()
		c, err := rootcacertpublisher.NewPublisher(maps, all.Core().V1().Namespaces(), client, u.RootCA)
		if err != nil {
			return err
		}
		runs = append(runs, c.Run)
	}
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done()) // quietly, which they would not
	var running sync.WaitGroup
	for _, run := range runs {
		if ctx.Err() == nil {
			running.Go(func() { run(ctx, 1) })
		}
	}
	<-ctx.Done()
	running.Wait()
	all.Shutdown()
	return nil
}

// withoutOwnership is what a cache keeps of an object.
func withoutOwnership(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// only has an informer keep the objects of which a field has a value: of the others there may be many, and large ones.
func only(field, value string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(field, value).String() }
}

// errorsOnly is a log of what goes wrong, for controllers of upstream's that tell of their beginning and end.
type errorsOnly struct{ logr.LogSink }

// Enabled implements logr.LogSink.
func (errorsOnly) Enabled(int) bool { return false }

// WithValues implements logr.LogSink.
func (s errorsOnly) WithValues(pairs ...any) logr.LogSink {
	return errorsOnly{s.LogSink.WithValues(pairs...)}
}

// WithName implements logr.LogSink.
func (s errorsOnly) WithName(name string) logr.LogSink { return errorsOnly{s.LogSink.WithName(name)} }
