package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// maxConcurrentWrites is how many objects are made at the same time: they share the disk's writes.
const maxConcurrentWrites = 64

// Bootstrap makes the roles and bindings that every cluster has, or adds to them what they lack. What somebody has
// added stays, and so does what the annotation rbac.authorization.kubernetes.io/autoupdate: "false" protects
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#auto-reconciliation). So it does with its
// priorities. It tells of the controllers that run, of which it is given UpstreamConfig.Controllers.
func Bootstrap(ctx context.Context, config *rest.Config, controllers []string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for what every cluster has: %w", err)
	}
	b := bootstrap{client: client}
	b.all.SetLimit(maxConcurrentWrites)
	roles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	slices.SortFunc(roles, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	for _, role := range roles {
		if err := b.fillAggregatedRules(ctx, &role, roles); err != nil {
			return err
		}
		b.role(reconciliation.ClusterRoleRuleOwner{ClusterRole: &role}, reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()})
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		b.binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding}, reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()})
	}
	b.binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: kubeletClient()}, reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()})
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			b.role(reconciliation.RoleRuleOwner{Role: &role}, reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()})
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			b.binding(reconciliation.RoleBindingAdapter{RoleBinding: &binding}, reconciliation.RoleBindingClientAdapter{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()})
		}
	}
	b.priorities(ctx)
	b.writeControllersLease(ctx, controllers)
	return b.all.Wait()
}

// kubeletClient lets this server do at kubelets, which ask it, what users ask it for.
func kubeletClient() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "trellis:" + pki.KubeletClient},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: pki.KubeletClient}},
	}
}

// bootstrap reconciles many objects at once.
type bootstrap struct {
	client kubernetes.Interface
	all    errgroup.Group
}

func (b *bootstrap) role(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
	b.reconcile(role.GetName(), func() error {
		_, err := (&reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}).Run()
		return err
	})
}

func (b *bootstrap) binding(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
	b.reconcile(binding.GetName(), func() error {
		_, err := (&reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}).Run()
		return err
	})
}

// fillAggregatedRules gives a role that is to be made the rules that the loop below would give it a moment later.
// What is there is the loop's.
func (b *bootstrap) fillAggregatedRules(ctx context.Context, role *rbacv1.ClusterRole, of []rbacv1.ClusterRole) error {
	if role.AggregationRule == nil {
		return nil
	}
	if _, err := b.client.RbacV1().ClusterRoles().Get(ctx, role.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	rules, err := aggregatedRules(role, of)
	role.Rules = rules
	return err
}

// aggregatedRules are the rules of a role that selects others, which may do so too, in the order of their names.
func aggregatedRules(role *rbacv1.ClusterRole, of []rbacv1.ClusterRole) (rules []rbacv1.PolicyRule, err error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregation of %s: %w", role.Name, err)
		}
		for k := range of {
			if of[k].Name == role.Name || !selector.Matches(labels.Set(of[k].Labels)) {
				continue
			}
			more, err := aggregatedRules(&of[k], of)
			if err != nil {
				return nil, err
			}
			for _, rule := range more {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

// reconcile runs reconcile, again where somebody else was quicker or the store is not there.
func (b *bootstrap) reconcile(name string, reconcile func() error) {
	b.all.Go(func() error {
		passing := func(err error) bool {
			return apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)
		}
		err := retry.OnError(retry.DefaultBackoff, passing, reconcile)
		if err != nil && !apierrors.IsNotFound(err) { // nothing serves what is switched off
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}
