package kinds_test

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// bind posts a Binding of a Pod to a node.
func (c *cluster) bind(pod, node string, by verb.Caller) error {
	c.Helper()
	v := c.version("v1", "Pod")
	at := c.at(v, pod, "binding")
	body := c.body(v.Subresource("binding").Body, fmt.Sprintf(`{metadata: {name: %s}, target: {name: %s}}`, pod, node))
	_, _, err := c.Engine.PostSubresource(c.Context(), at, body, by)
	return err
}

func (c *cluster) createPod(name, spec string) error {
	c.Helper()
	_, err := c.create(c.version("v1", "Pod"), `{metadata: {name: `+name+`}, spec: `+spec+`}`)
	return err
}

// runningPod returns the spec of a Pod on the node n1. The parameter container holds further fields of its container.
func runningPod(container string) string {
	return `{nodeName: n1, containers: [{name: c, image: i, ` + container + `}]}`
}

// pendingPod returns the spec of a Pod without a node. The parameter container holds further fields of its container.
func pendingPod(container string) string {
	return `{containers: [{name: c, image: i, ` + container + `}]}`
}

func requests(resources string) string { return `resources: {requests: {` + resources + `}}` }

func limits(resources string) string { return `resources: {limits: {` + resources + `}}` }

func ports(list string) string { return `ports: [` + list + `]` }

var bindingCases = []struct {
	name        string
	allocatable string   // of n1
	running     []string // specs of the Pods on n1
	pending     string   // spec of the Pod that is bound
	want        string   // reason of the Conflict; "" means that the binding succeeds
}{
	{"cpu", `cpu: "1"`, []string{runningPod(requests("cpu: 600m"))}, pendingPod(requests("cpu: 500m")),
		"cpu: 500m requested, 400m left"},
	{"just enough", `cpu: "1"`, []string{runningPod(requests("cpu: 600m"))}, pendingPod(requests("cpu: 400m")), ""},
	{"memory", `memory: 1Gi`, []string{runningPod(requests("memory: 600Mi"))}, pendingPod(requests("memory: 500Mi")),
		"memory: 500Mi requested, 424Mi left"},
	{"ephemeral storage", `ephemeral-storage: 10G`, []string{runningPod(requests("ephemeral-storage: 6G"))},
		pendingPod(requests("ephemeral-storage: 5G")), "ephemeral-storage: 5G requested, 4G left"},
	{"huge pages", `hugepages-2Mi: 8Mi`, []string{runningPod(limits("hugepages-2Mi: 6Mi, cpu: 1m"))},
		pendingPod(limits("hugepages-2Mi: 4Mi, cpu: 1m")), "hugepages-2Mi: 4Mi requested, 2Mi left"},
	{"Pods", `pods: "1"`, []string{runningPod("")}, pendingPod(""), "pods: 1 requested, 0 left"},
	{"extended resource", `example.com/gpu: "2"`, []string{runningPod(limits(`example.com/gpu: "1"`))},
		pendingPod(limits(`example.com/gpu: "2"`)), "example.com/gpu: 2 requested, 1 left"},
	{"extended resource that is not reported", `cpu: "1"`, nil, pendingPod(limits(`example.com/gpu: "2"`)), ""},
	{"extended resource of which the node has 0", `example.com/gpu: "0"`, nil,
		pendingPod(limits(`example.com/gpu: "2"`)), "example.com/gpu: 2 requested, 0 left"},
	{"extended resource that DRA backs", `example.com/fpga: "0"`, nil, pendingPod(limits(`example.com/fpga: "2"`)), ""},
	{"several", `cpu: "1", memory: 1Gi`, nil, pendingPod(requests("memory: 2Gi, cpu: 2")),
		"cpu: 2 requested, 1 left, memory: 2Gi requested, 1Gi left"},
	{"another resource than the overcommitted one", `cpu: "1"`,
		[]string{runningPod(requests("cpu: 600m")), runningPod(requests("cpu: 600m"))},
		pendingPod(requests("memory: 1Gi")), ""},
	{"overcommitted", `cpu: "1"`, []string{runningPod(requests("cpu: 600m")), runningPod(requests("cpu: 600m"))},
		pendingPod(requests("cpu: 1m")), "cpu: 1m requested, 0 left"},
	{"nothing reported", ``, []string{runningPod(requests("cpu: 600m"))}, pendingPod(requests("cpu: 500m")), ""},
	{"request above the largest amount", `cpu: "1"`, nil, pendingPod(requests("cpu: 9E")),
		"cpu: 9223372036854775807m requested, 1 left"},
	{"usage above the largest amount", `memory: 1Gi`,
		[]string{runningPod(requests("memory: 7E")), runningPod(requests("memory: 7E"))},
		pendingPod(requests("memory: 1")), "memory: 1 requested, 0 left"},

	{"sidecars", `cpu: "1"`, nil, `{initContainers: [{name: s, image: i, restartPolicy: Always, ` +
		requests("cpu: 600m") + `}], containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`,
		"cpu: 1100m requested, 1 left"},
	{"init containers", `cpu: "1"`, nil, `{initContainers: [{name: s, image: i, ` + requests("cpu: 600m") +
		`}], containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`, ""},
	{"overhead", `cpu: "1"`, nil, `{overhead: {cpu: 600m}, containers: [{name: c, image: i, ` + requests("cpu: 500m") +
		`}]}`, "cpu: 1100m requested, 1 left"},
	{"Pod-level resources", `cpu: "1"`, nil, `{resources: {requests: {cpu: 1100m}}, containers: [{name: c, image: i, ` +
		requests("cpu: 500m") + `}]}`, "cpu: 1100m requested, 1 left"},

	{"port", `cpu: "1"`, []string{runningPod(ports(`{containerPort: 80, hostPort: 8080}`))},
		pendingPod(ports(`{containerPort: 81, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port without a host port", `cpu: "1"`, []string{runningPod(ports(`{containerPort: 80}`))},
		pendingPod(ports(`{containerPort: 80}`)), ""},
	{"another port", `cpu: "1"`, []string{runningPod(ports(`{containerPort: 80, hostPort: 8080}`))},
		pendingPod(ports(`{containerPort: 80, hostPort: 8081}`)), ""},
	{"port of another protocol", `cpu: "1"`, []string{runningPod(ports(`{containerPort: 80, hostPort: 8080}`))},
		pendingPod(ports(`{containerPort: 80, hostPort: 8080, protocol: UDP}`)), ""},
	{"port of one address and of all", `cpu: "1"`,
		[]string{runningPod(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`))},
		pendingPod(ports(`{containerPort: 80, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port of all addresses and of one", `cpu: "1"`,
		[]string{runningPod(ports(`{containerPort: 80, hostPort: 8080, hostIP: 0.0.0.0}`))},
		pendingPod(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`)),
		"host port 8080/TCP at 127.0.0.1 is taken"},
	{"port of two addresses", `cpu: "1"`,
		[]string{runningPod(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`))},
		pendingPod(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.2}`)), ""},
	{"port of a sidecar", `cpu: "1"`,
		[]string{`{nodeName: n1, initContainers: [{name: s, image: i, restartPolicy: Always, ` +
			ports(`{containerPort: 80, hostPort: 8080}`) + `}], containers: [{name: c, image: i}]}`},
		pendingPod(ports(`{containerPort: 80, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port of an init container", `cpu: "1"`,
		[]string{`{nodeName: n1, initContainers: [{name: s, image: i, ` + ports(`{containerPort: 80, hostPort: 8080}`) +
			`}], containers: [{name: c, image: i}]}`}, pendingPod(ports(`{containerPort: 80, hostPort: 8080}`)), ""},
}

// TestBindingCapacity checks which bindings fail for lack of capacity, also in dry runs. With UnguardedBindings, all
// bindings succeed (issue 16).
func TestBindingCapacity(t *testing.T) {
	for _, r := range bindingCases {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guarded %v", r.name, guarded), func(t *testing.T) {
				c := serveCluster(t, kinds.Config{UnguardedBindings: !guarded})
				c.mustCreate(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {`+
					r.allocatable+`}}}`)
				c.mustCreate(c.version("resource.k8s.io/v1", "DeviceClass"), "fpga",
					`{metadata: {name: fpga}, spec: {extendedResourceName: example.com/fpga}}`)
				for i, spec := range r.running {
					if err := c.createPod(fmt.Sprintf("on%d", i), spec); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.createPod("p", r.pending); err != nil {
					t.Fatal(err)
				}
				want := ""
				if guarded && r.want != "" {
					want = `Operation cannot be fulfilled on pods/binding "p": node "n1" has insufficient capacity: ` +
						r.want
				}
				dry := c.by()
				dry.DryRun = true
				for _, by := range []verb.Caller{dry, c.by()} {
					got := ""
					if err := c.bind("p", "n1", by); err != nil {
						if got = err.Error(); !apierrors.IsConflict(err) {
							t.Errorf("got error %#v, want a Conflict", err)
						}
					}
					if got != want {
						t.Errorf("dry run %v:\ngot  %q\nwant %q", by.DryRun, got, want)
					}
				}
			})
		}
	}
}

// TestCapacityByPodStatus checks that a Pod uses capacity until it has terminated, and that a resize in its status
// changes the amount (issue 16).
func TestCapacityByPodStatus(t *testing.T) {
	const podFormat = `{metadata: {name: %s%s}, spec: {nodeName: n1, terminationGracePeriodSeconds: 30, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}`
	for name, q := range map[string]struct {
		status     string
		markDelete bool   // delete the Pod with a grace period
		want       string // shortage; "" means that the binding succeeds
	}{
		"Pending":     {`{phase: Pending}`, false, "1 requested, 0 left"},
		"Running":     {`{phase: Running}`, false, "1 requested, 0 left"},
		"Succeeded":   {`{phase: Succeeded}`, false, ""},
		"Failed":      {`{phase: Failed}`, false, ""},
		"terminating": {`{phase: Running}`, true, "1 requested, 0 left"},
		"resized to less": {
			`{phase: Running, containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 1500m}}]}`, false, "1 requested, 500m left",
		},
		"resize infeasible": {
			`{phase: Running, conditions: [{type: PodResizePending, status: "True", reason: Infeasible}], containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 500m}}]}`, false, "",
		},
		"resize deferred": {
			`{phase: Running, conditions: [{type: PodResizePending, status: "True", reason: Deferred}], containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 500m}}]}`, false, "1 requested, 0 left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := serveCluster(t, kinds.Config{})
			v, cpu := c.version("v1", "Pod"), `"1"`
			switch name {
			case "resized to less":
				cpu = `"2"`
			case "resize infeasible":
				cpu = `1500m`
			}
			c.mustCreate(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {cpu: `+cpu+`}}}`)
			c.mustCreate(v, "a", fmt.Sprintf(podFormat, "a", ""))
			if err := c.createPod("p", pendingPod(requests(`cpu: "1"`))); err != nil {
				t.Fatal(err)
			}
			if _, err := c.put(v, "a", "status", fmt.Sprintf(podFormat[:len(podFormat)-1], "a", "")+`, status: `+
				q.status+`}`); err != nil {
				t.Fatal(err)
			}
			if q.markDelete {
				if _, gone, err := c.Engine.Delete(c.Context(), c.at(v, "a", ""), metav1.DeleteOptions{},
					c.by()); gone || err != nil {
					t.Fatalf("delete: gone is %v, error %v", gone, err)
				}
			}
			err := c.bind("p", "n1", c.by())
			if q.want == "" && err != nil {
				t.Error(err)
			}
			if q.want != "" {
				expectError(t, err, `node "n1" has insufficient capacity: cpu: `+q.want)
			}
		})
	}
}

// TestPodsCreatedWithNode checks Pods that are created with a node, such as static Pods. They are accepted, as
// upstream does, and use the capacity of the node. A binding to a node that does not exist succeeds (issue 16).
func TestPodsCreatedWithNode(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	v := c.version("v1", "Pod")
	for i := range 2 {
		if err := c.createPod(fmt.Sprintf("q%d", i), pendingPod(requests(`cpu: "1"`))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.bind("q0", "n1", c.by()); err != nil {
		t.Fatal(err)
	}
	c.mustCreate(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {cpu: "5"}}}`)
	if err := c.createPod("created", runningPod(requests(`cpu: "3"`))); err != nil {
		t.Fatal(err)
	}
	c.mustCreate(v, "static",
		`{metadata: {name: static, annotations: {kubernetes.io/config.mirror: x, kubernetes.io/config.source: file, kubernetes.io/config.hash: x}}, spec: `+runningPod(requests(`cpu: "2"`))+`}`)
	expectError(t, c.bind("q1", "n1", c.by()), `node "n1" has insufficient capacity: cpu: 1 requested, 0 left`)
	c.mustCreate(c.version("v1", "Node"), "m", `{metadata: {name: m}, status: {allocatable: {cpu: "1"}}}`)
	if err := c.bind("q1", "m", c.by()); err != nil {
		t.Error(err)
	}
}
