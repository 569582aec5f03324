package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	known "k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	accounts "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Upstream are controllers of kube-controller-manager's.
type Upstream struct {
	// Controllers are those that run, as its flag of this name has them: names, "-name" for one that does not run, "*" for all that
	// are not named.
	Controllers []string
	RootCA      []byte                        // that ConfigMaps and Secrets tell clients, PEM
	Tokens      serviceaccount.TokenGenerator // for Secrets

	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	roles     bool // --runtime-config has not switched them off
}

// AggregateRoles is the name of the controller that gives ClusterRoles the rules of those that they select.
const AggregateRoles = known.ClusterRoleAggregationController

type runner interface{ Run(context.Context, int) }

// controllers open each of them.
var controllers = map[string]func(*Upstream, klog.Logger) (runner, error){
	AggregateRoles: func(u *Upstream, _ klog.Logger) (runner, error) {
		if !u.roles {
			return nil, nil
		}
		return clusterroleaggregation.NewClusterRoleAggregation(u.informers.Rbac().V1().ClusterRoles(), u.client.RbacV1()), nil
	},
	known.ServiceAccountController: func(u *Upstream, l klog.Logger) (runner, error) {
		v1 := u.informers.Core().V1()
		return accounts.NewServiceAccountsController(l, v1.ServiceAccounts(), v1.Namespaces(), u.client, accounts.DefaultServiceAccountsControllerOptions())
	},
	known.ServiceAccountTokenController: func(u *Upstream, l klog.Logger) (runner, error) {
		secrets := u.only("type", string(corev1.SecretTypeServiceAccountToken)).Secrets()
		return accounts.NewTokensController(l, u.informers.Core().V1().ServiceAccounts(), secrets, u.client, accounts.TokensControllerOptions{TokenGenerator: u.Tokens, RootCA: u.RootCA})
	},
	known.RootCACertificatePublisherController: func(u *Upstream, _ klog.Logger) (runner, error) {
		maps := u.only(metav1.ObjectNameField, rootcacertpublisher.RootCACertConfigMapName).ConfigMaps()
		return rootcacertpublisher.NewPublisher(maps, u.informers.Core().V1().Namespaces(), u.client, u.RootCA)
	},
}

// Names are those that Upstream.Controllers may have.
func Names() []string { return slices.Sorted(maps.Keys(controllers)) }

func (u *Upstream) enabled(name string) bool {
	return slices.Contains(u.Controllers, name) || slices.Contains(u.Controllers, "*") && !slices.Contains(u.Controllers, "-"+name)
}

// Check refuses a name that no controller has.
func (u *Upstream) Check() error {
	for _, c := range u.Controllers {
		if name := strings.TrimPrefix(c, "-"); c != "*" && controllers[name] == nil {
			return fmt.Errorf("%q is not in the list of known controllers", name)
		}
	}
	return nil
}

// Run runs the controllers against the API server of config until ctx is done. Its logger gets what they tell.
func (u *Upstream) Run(ctx context.Context, config *rest.Config) (err error) {
	if u.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("client of controllers: %w", err)
	}
	_, err = u.client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{Limit: 1})
	u.roles = !apierrors.IsNotFound(err)
	u.informers = informers.NewSharedInformerFactory(u.client, 0)
	var enabled []runner
	for name, open := range controllers {
		if u.enabled(name) {
			c, err := open(u, klog.FromContext(ctx))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if c != nil {
				enabled = append(enabled, c)
			}
		}
	}
	u.informers.Start(ctx.Done())
	defer u.informers.Shutdown()
	u.informers.WaitForCacheSync(ctx.Done()) // a controller that is ended while it does so says so
	var running sync.WaitGroup
	for _, c := range enabled {
		if ctx.Err() == nil {
			running.Go(func() { c.Run(ctx, 1) })
		}
	}
	running.Wait()
	return nil
}

// only has informers keep the objects of which a field has a value: of the others there may be many, and large ones.
func (u *Upstream) only(field, value string) corev1informers.Interface {
	return core.New(u.informers, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(field, value).String() }).V1()
}
