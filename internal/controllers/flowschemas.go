package controllers

import (
	"context"
	"fmt"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	flowcontrolapply "k8s.io/client-go/applyconfigurations/flowcontrol/v1"
	client "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"
)

// danglingController writes the condition Dangling of FlowSchemas. The condition is True if the priority level of a
// FlowSchema does not exist.
type danglingController struct {
	client client.FlowcontrolV1Interface
	queue  queue[string] // has one key
}

const (
	allFlowSchemas = "*"
	configConsumer = "api-priority-and-fairness-config-consumer-v1" // field manager of the conditions in upstream
)

var priorityKinds = []schema.GroupKind{
	{Group: flowcontrolv1.GroupName, Kind: "FlowSchema"},
	{Group: flowcontrolv1.GroupName, Kind: "PriorityLevelConfiguration"},
}

func newDanglingController(config *rest.Config) (*danglingController, error) {
	c, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for FlowSchemas: %w", err)
	}
	return &danglingController{client: c, queue: newQueue[string]("write conditions of FlowSchemas")}, nil
}

// ReconcileDangling writes the condition Dangling of all FlowSchemas.
func ReconcileDangling(ctx context.Context, config *rest.Config) error {
	d, err := newDanglingController(config)
	if err != nil {
		return err
	}
	return d.sync(ctx, allFlowSchemas)
}

func (d *danglingController) observe(ch change) {
	if slices.Contains(priorityKinds, ch.kind.groupKind()) {
		d.queue.AddAfter(allFlowSchemas, batchDelay)
	}
}

func (d *danglingController) run(ctx context.Context) { d.queue.work(ctx, 1, d.sync) }

// sync writes the conditions that are wrong or missing.
func (d *danglingController) sync(ctx context.Context, _ string) error {
	levels, err := d.client.PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return ignoreNotFound(err) // the kind is not served
	}
	schemas, err := d.client.FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	var writes errgroup.Group
	writes.SetLimit(maxConcurrentWrites)
	for i := range schemas.Items {
		s := &schemas.Items[i]
		level := s.Spec.PriorityLevelConfiguration.Name
		hasName := func(l flowcontrolv1.PriorityLevelConfiguration) bool { return l.Name == level }
		exists := slices.ContainsFunc(levels.Items, hasName)
		writes.Go(func() error { return d.write(ctx, s, danglingCondition(level, exists)) })
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

// write writes the condition of a FlowSchema if it has changed.
func (d *danglingController) write(
	ctx context.Context, s *flowcontrolv1.FlowSchema, want flowcontrolv1.FlowSchemaCondition,
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
	_, err := d.client.FlowSchemas().ApplyStatus(ctx, flowcontrolapply.FlowSchema(s.Name).WithStatus(status), options)
	return ignoreNotFound(err) // the FlowSchema may have been deleted meanwhile
}
