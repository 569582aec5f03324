package bootstrap

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	flow "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"
)

// priorities creates the default PriorityClasses, FlowSchemas and PriorityLevelConfigurations. It also updates the
// mandatory FlowSchemas and PriorityLevelConfigurations, and the suggested ones that no user has changed. See
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/.
func (b *bootstrap) priorities(ctx context.Context) {
	classes := b.client.SchedulingV1().PriorityClasses()
	for _, class := range schedulingv1.SystemPriorityClasses() {
		b.reconcile(class.Name, func() error {
			if _, err := classes.Get(ctx, class.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return err
			}
			_, err := classes.Create(ctx, class, metav1.CreateOptions{})
			return err
		})
	}
	b.requestPriorities(ctx)
}

// ReconcileFlowControl creates and updates the default FlowSchemas and PriorityLevelConfigurations. It deletes those
// that are no longer default objects.
func ReconcileFlowControl(ctx context.Context, client kubernetes.Interface) error {
	b := bootstrap{client: client}
	b.requestPriorities(ctx)
	return b.all.Wait()
}

func (b *bootstrap) requestPriorities(ctx context.Context) {
	levels, schemas := b.client.FlowcontrolV1().PriorityLevelConfigurations(), b.client.FlowcontrolV1().FlowSchemas()
	levelLister, schemaLister := newLister(ctx, levels.Get, levels.List), newLister(ctx, schemas.Get, schemas.List)
	ensure(ctx, b, ensurer.NewPriorityLevelConfigurationOps(levels, levelLister),
		flow.MandatoryPriorityLevelConfigurations, flow.SuggestedPriorityLevelConfigurations)
	ensure(ctx, b, ensurer.NewFlowSchemaOps(schemas, schemaLister),
		flow.MandatoryFlowSchemas, flow.SuggestedFlowSchemas)
}

// ensure creates and updates the mandatory and suggested objects of one kind. It deletes other objects that the
// annotation apf.kubernetes.io/autoupdate-spec marks as managed by the server.
func ensure[T interface {
	comparable
	metav1.Object
	runtime.Object
}](ctx context.Context, b *bootstrap, ops ensurer.ObjectOps[T], mandatory, suggested []T) {
	for strategy, objects := range map[ensurer.EnsureStrategy[T]][]T{
		ensurer.NewMandatoryEnsureStrategy[T](): mandatory, ensurer.NewSuggestedEnsureStrategy[T](): suggested,
	} {
		for _, o := range objects {
			b.reconcile(o.GetName(), func() error { return ensurer.EnsureConfiguration(ctx, ops, o, strategy) })
		}
	}
	b.reconcile("unwanted objects", func() error {
		return ensurer.RemoveUnwantedObjects(ctx, ops, slices.Concat(mandatory, suggested))
	})
}

// uncachedLister is a lister that reads from the API server.
type uncachedLister[T, L runtime.Object] struct {
	ctx  context.Context
	get  func(context.Context, string, metav1.GetOptions) (T, error)
	list func(context.Context, metav1.ListOptions) (L, error)
}

func newLister[T, L runtime.Object](
	ctx context.Context, get func(context.Context, string, metav1.GetOptions) (T, error),
	list func(context.Context, metav1.ListOptions) (L, error),
) uncachedLister[T, L] {
	return uncachedLister[T, L]{ctx, get, list}
}

// Get returns the object with the given name.
func (n uncachedLister[T, L]) Get(name string) (T, error) {
	return n.get(n.ctx, name, metav1.GetOptions{})
}

// List returns all objects.
func (n uncachedLister[T, L]) List(labels.Selector) (all []T, _ error) {
	list, err := n.list(n.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(T))
		return nil
	})
	return all, err
}
