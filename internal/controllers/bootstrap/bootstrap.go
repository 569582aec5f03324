// Package bootstrap creates the default objects of a server: roles, priorities, addresses of Services, and a Lease with
// the names of the running controllers. Unlike upstream's code, it writes concurrently, which shortens the start.
package bootstrap

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
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// maxConcurrentWrites is the number of objects that are written at the same time. Concurrent writes share a disk flush.
const maxConcurrentWrites = 64

// Reconcile creates the default roles and bindings. If they exist, it adds the default rules and subjects that they
// lack, and keeps all other rules and subjects. It does not change objects with the annotation
// rbac.authorization.kubernetes.io/autoupdate: "false"
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#auto-reconciliation). It also creates the default
// priorities. It publishes the names of the running controllers in a Lease.
func Reconcile(ctx context.Context, client kubernetes.Interface, controllers []string) error {
	b := bootstrap{client: client}
	b.all.SetLimit(maxConcurrentWrites)
	rbac, namespaces := client.RbacV1(), client.CoreV1().Namespaces()
	roles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	slices.SortFunc(roles, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	for _, role := range roles {
		if err := b.fillAggregatedRules(ctx, &role, roles); err != nil {
			return err
		}
		b.role(reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
			reconciliation.ClusterRoleModifier{Client: rbac.ClusterRoles()})
	}
	clusterRoleBindings := reconciliation.ClusterRoleBindingClientAdapter{Client: rbac.ClusterRoleBindings()}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		b.binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding}, clusterRoleBindings)
	}
	b.binding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: kubeletClient()}, clusterRoleBindings)
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			b.role(reconciliation.RoleRuleOwner{Role: &role},
				reconciliation.RoleModifier{Client: rbac, NamespaceClient: namespaces})
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			b.binding(reconciliation.RoleBindingAdapter{RoleBinding: &binding},
				reconciliation.RoleBindingClientAdapter{Client: rbac, NamespaceClient: namespaces})
		}
	}
	b.priorities(ctx)
	b.writeControllersLease(ctx, controllers)
	return b.all.Wait()
}

// kubeletClient returns the binding that authorizes this server's requests to kubelets, such as those for logs. The
// kubelets send a SubjectAccessReview to this server for each request.
func kubeletClient() *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "trellis:" + pki.KubeletClient},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: pki.KubeletClient}},
	}
}

// bootstrap reconciles the default objects concurrently.
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
		options := &reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}
		_, err := options.Run()
		return err
	})
}

// fillAggregatedRules sets the rules of a role that aggregates other roles, if the role does not exist yet. The role
// is thus complete before the controller ClusterRoleAggregation runs. That controller maintains the rules later.
func (b *bootstrap) fillAggregatedRules(ctx context.Context, role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) error {
	if role.AggregationRule == nil {
		return nil
	}
	if _, err := b.client.RbacV1().ClusterRoles().Get(ctx, role.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	rules, err := aggregatedRules(role, all)
	role.Rules = rules
	return err
}

// aggregatedRules returns the rules of all roles that the given role selects. The rules are ordered by the names of
// the selected roles. The selected roles may aggregate other roles.
func aggregatedRules(role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) (rules []rbacv1.PolicyRule, err error) {
	if role.AggregationRule == nil {
		return role.Rules, nil
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return nil, fmt.Errorf("aggregate ClusterRole %s: %w", role.Name, err)
		}
		for k := range all {
			if all[k].Name == role.Name || !selector.Matches(labels.Set(all[k].Labels)) {
				continue
			}
			more, err := aggregatedRules(&all[k], all)
			if err != nil {
				return nil, err
			}
			for _, rule := range more {
				isEqual := func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }
				if !slices.ContainsFunc(rules, isEqual) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}

// reconcile runs a function in a goroutine, and retries it after a write of another server and while the storage is
// unavailable.
func (b *bootstrap) reconcile(name string, reconcile func() error) {
	b.all.Go(func() error {
		passing := func(err error) bool {
			return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) ||
				apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)
		}
		err := retry.OnError(retry.DefaultBackoff, passing, reconcile)
		if err != nil && !apierrors.IsNotFound(err) { // disabled kinds are not served
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}
