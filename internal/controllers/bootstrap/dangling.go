package bootstrap

import (
	"context"
	"fmt"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flowcontrolapply "k8s.io/client-go/applyconfigurations/flowcontrol/v1"
	client "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// configConsumer is the field manager of the conditions of FlowSchemas in upstream.
const configConsumer = "api-priority-and-fairness-config-consumer-v1"

// Dangling is a controller that calls WriteDangling after changes.
type Dangling struct {
	client client.FlowcontrolV1Interface
	queue  informer.Queue[struct{}]
}

// NewDangling returns a Dangling.
func NewDangling(c client.FlowcontrolV1Interface) *Dangling {
	return &Dangling{client: c, queue: informer.NewQueue[struct{}]("write conditions of FlowSchemas")}
}

// Observe queues the conditions after changes of FlowSchemas and PriorityLevelConfigurations.
func (d *Dangling) Observe(ch informer.Change) {
	switch ch.Kind.GroupKind() {
	case flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema").GroupKind(),
		flowcontrolv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration").GroupKind():
		d.queue.AddAfter(struct{}{}, informer.BatchDelay)
	}
}

// Run writes the conditions until ctx is done.
func (d *Dangling) Run(ctx context.Context) {
	d.queue.Work(ctx, 1, func(ctx context.Context, _ struct{}) error { return WriteDangling(ctx, d.client) })
}

// WriteDangling writes the conditions Dangling of FlowSchemas that are wrong or missing. The condition is True if the
// priority level of a FlowSchema does not exist.
func WriteDangling(ctx context.Context, client client.FlowcontrolV1Interface) error {
	levels, err := client.PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err) // the kind is not served
	}
	schemas, err := client.FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	var writes errgroup.Group
	writes.SetLimit(maxConcurrentWrites)
	for i := range schemas.Items {
		s := &schemas.Items[i]
		level := s.Spec.PriorityLevelConfiguration.Name
		hasName := func(l flowcontrolv1.PriorityLevelConfiguration) bool { return l.Name == level }
		exists := slices.ContainsFunc(levels.Items, hasName)
		writes.Go(func() error { return writeCondition(ctx, client, s, danglingCondition(level, exists)) })
	}
	return writes.Wait()
}

// danglingCondition returns upstream's condition of a FlowSchema that refers to the priority level.
func danglingCondition(level string, exists bool) flowcontrolv1.FlowSchemaCondition {
	c := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionTrue, Reason: "NotFound",
	}
	const reference = "This FlowSchema references the PriorityLevelConfiguration object named %q "
	c.Message = fmt.Sprintf(reference+"but there is no such object", level)
	if exists {
		c.Status, c.Reason = flowcontrolv1.ConditionFalse, "Found"
		c.Message = fmt.Sprintf(reference+"and it exists", level)
	}
	return c
}

// writeCondition writes the condition of a FlowSchema if it has changed.
func writeCondition(
	ctx context.Context, client client.FlowcontrolV1Interface, s *flowcontrolv1.FlowSchema,
	want flowcontrolv1.FlowSchemaCondition,
) error {
	if slices.ContainsFunc(s.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
	}) {
		return nil
	}
	condition := flowcontrolapply.FlowSchemaCondition().WithType(want.Type).WithStatus(want.Status).
		WithReason(want.Reason).WithMessage(want.Message).WithLastTransitionTime(metav1.Now())
	status := flowcontrolapply.FlowSchemaStatus().WithConditions(condition)
	options := metav1.ApplyOptions{FieldManager: configConsumer, Force: true}
	_, err := client.FlowSchemas().ApplyStatus(ctx, flowcontrolapply.FlowSchema(s.Name).WithStatus(status), options)
	return informer.IgnoreNotFound(err) // the FlowSchema may have been deleted meanwhile
}
