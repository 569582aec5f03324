package kinds_test

import (
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/trellis-k8s/trellis/internal/kinds"
)

// TestProtobufOfEachVersion checks that the protobuf message of an object has the requested version, although messages
// are cached (CRD-068).
func TestProtobufOfEachVersion(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	v1, v2 := c.version("autoscaling/v1", "HorizontalPodAutoscaler"), c.version("autoscaling/v2",
		"HorizontalPodAutoscaler")
	c.mustCreate(v2, "a",
		`{metadata: {name: a}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a},
metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]}}`)
	for range 2 {
		var first autoscalingv1.HorizontalPodAutoscaler
		o, err := c.Engine.Get(t.Context(), c.at(v1, "a", ""), "")
		if err != nil {
			t.Fatal(err)
		}
		message, err := o.Protobuf()
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Unmarshal(message); err != nil || first.Spec.TargetCPUUtilizationPercentage == nil ||
			*first.Spec.TargetCPUUtilizationPercentage != 70 {
			t.Errorf("autoscaling/v1: got error %v, object %+v", err, first)
		}
		var second autoscalingv2.HorizontalPodAutoscaler
		if o, err = c.Engine.Get(t.Context(), c.at(v2, "a", ""), ""); err != nil {
			t.Fatal(err)
		}
		if message, err = o.Protobuf(); err != nil {
			t.Fatal(err)
		}
		if err := second.Unmarshal(message); err != nil || len(second.Spec.Metrics) != 1 {
			t.Errorf("autoscaling/v2: got error %v, object %+v", err, second)
		}
	}
}
