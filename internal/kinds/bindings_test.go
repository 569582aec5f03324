package kinds_test

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// bind posts the Binding of a Pod.
func (c *cluster) bind(pod, node string, by engine.Caller) error {
	c.Helper()
	v := c.version("v1", "Pod")
	at := c.at(v, pod, "binding")
	body := c.body(v.Subresource("binding").Body, fmt.Sprintf(`{metadata: {name: %s}, target: {name: %s}}`, pod, node))
	_, _, err := c.Engine.PostSubresource(c.Context(), at, body, by)
	return err
}

func (c *cluster) makePod(name, spec string) error {
	c.Helper()
	_, err := c.make(c.version("v1", "Pod"), `{metadata: {name: `+name+`}, spec: `+spec+`}`)
	return err
}

// running is the spec of a Pod on the node n1 whose container is as it says.
func running(container string) string {
	return `{nodeName: n1, containers: [{name: c, image: i, ` + container + `}]}`
}

func pending(container string) string {
	return `{containers: [{name: c, image: i, ` + container + `}]}`
}

func requests(what string) string { return `resources: {requests: {` + what + `}}` }

func limits(what string) string { return `resources: {limits: {` + what + `}}` }

func ports(what string) string { return `ports: [` + what + `]` }

var rooms = []struct {
	name  string
	has   string   // what n1 reports
	on    []string // specs of the Pods that are there
	wants string   // that of the one to be bound
	says  string   // "": there is room
}{
	{"cpu", `cpu: "1"`, []string{running(requests("cpu: 600m"))}, pending(requests("cpu: 500m")), "cpu: 500m requested, 400m left"},
	{"just enough", `cpu: "1"`, []string{running(requests("cpu: 600m"))}, pending(requests("cpu: 400m")), ""},
	{"memory", `memory: 1Gi`, []string{running(requests("memory: 600Mi"))}, pending(requests("memory: 500Mi")), "memory: 500Mi requested, 424Mi left"},
	{"ephemeral storage", `ephemeral-storage: 10G`, []string{running(requests("ephemeral-storage: 6G"))}, pending(requests("ephemeral-storage: 5G")), "ephemeral-storage: 5G requested, 4G left"},
	{"huge pages", `hugepages-2Mi: 8Mi`, []string{running(limits("hugepages-2Mi: 6Mi, cpu: 1m"))}, pending(limits("hugepages-2Mi: 4Mi, cpu: 1m")), "hugepages-2Mi: 4Mi requested, 2Mi left"},
	{"Pods", `pods: "1"`, []string{running("")}, pending(""), "pods: 1 requested, 0 left"},
	{"extended resource", `example.com/gpu: "2"`, []string{running(limits(`example.com/gpu: "1"`))}, pending(limits(`example.com/gpu: "2"`)), "example.com/gpu: 2 requested, 1 left"},
	{"extended resource that is not reported", `cpu: "1"`, nil, pending(limits(`example.com/gpu: "2"`)), ""},
	{"extended resource that the node has none of", `example.com/gpu: "0"`, nil, pending(limits(`example.com/gpu: "2"`)), "example.com/gpu: 2 requested, 0 left"},
	{"extended resource that DRA backs", `example.com/fpga: "0"`, nil, pending(limits(`example.com/fpga: "2"`)), ""},
	{"several", `cpu: "1", memory: 1Gi`, nil, pending(requests("memory: 2Gi, cpu: 2")), "cpu: 2 requested, 1 left, memory: 2Gi requested, 1Gi left"},
	{"nothing of what is overcommitted", `cpu: "1"`, []string{running(requests("cpu: 600m")), running(requests("cpu: 600m"))}, pending(requests("memory: 1Gi")), ""},
	{"overcommitted", `cpu: "1"`, []string{running(requests("cpu: 600m")), running(requests("cpu: 600m"))}, pending(requests("cpu: 1m")), "cpu: 1m requested, 0 left"},
	{"nothing reported", ``, []string{running(requests("cpu: 600m"))}, pending(requests("cpu: 500m")), ""},
	{"more than can be counted", `cpu: "1"`, nil, pending(requests("cpu: 9E")), "cpu: 9223372036854775807m requested, 1 left"},
	{"more on the node than can be counted", `memory: 1Gi`, []string{running(requests("memory: 7E")), running(requests("memory: 7E"))}, pending(requests("memory: 1")), "memory: 1 requested, 0 left"},

	{"sidecars", `cpu: "1"`, nil, `{initContainers: [{name: s, image: i, restartPolicy: Always, ` + requests("cpu: 600m") + `}], containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`, "cpu: 1100m requested, 1 left"},
	{"init containers", `cpu: "1"`, nil, `{initContainers: [{name: s, image: i, ` + requests("cpu: 600m") + `}], containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`, ""},
	{"overhead", `cpu: "1"`, nil, `{overhead: {cpu: 600m}, containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`, "cpu: 1100m requested, 1 left"},
	{"the whole Pod", `cpu: "1"`, nil, `{resources: {requests: {cpu: 1100m}}, containers: [{name: c, image: i, ` + requests("cpu: 500m") + `}]}`, "cpu: 1100m requested, 1 left"},

	{"port", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080}`))}, pending(ports(`{containerPort: 81, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port of the container alone", `cpu: "1"`, []string{running(ports(`{containerPort: 80}`))}, pending(ports(`{containerPort: 80}`)), ""},
	{"another port", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080}`))}, pending(ports(`{containerPort: 80, hostPort: 8081}`)), ""},
	{"port of another protocol", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080}`))}, pending(ports(`{containerPort: 80, hostPort: 8080, protocol: UDP}`)), ""},
	{"port of one address and of all", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`))}, pending(ports(`{containerPort: 80, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port of all addresses and of one", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080, hostIP: 0.0.0.0}`))}, pending(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`)), "host port 8080/TCP at 127.0.0.1 is taken"},
	{"port of two addresses", `cpu: "1"`, []string{running(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1}`))}, pending(ports(`{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.2}`)), ""},
	{"port of a sidecar", `cpu: "1"`, []string{`{nodeName: n1, initContainers: [{name: s, image: i, restartPolicy: Always, ` + ports(`{containerPort: 80, hostPort: 8080}`) + `}], containers: [{name: c, image: i}]}`}, pending(ports(`{containerPort: 80, hostPort: 8080}`)), "host port 8080/TCP is taken"},
	{"port of an init container", `cpu: "1"`, []string{`{nodeName: n1, initContainers: [{name: s, image: i, ` + ports(`{containerPort: 80, hostPort: 8080}`) + `}], containers: [{name: c, image: i}]}`}, pending(ports(`{containerPort: 80, hostPort: 8080}`)), ""},
}

// Issue 16: what a node has room for. A dry run is told the same; where bindings are not guarded, all are bound.
func TestBindingsThatFit(t *testing.T) {
	for _, r := range rooms {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guarded %v", r.name, guarded), func(t *testing.T) {
				c := serveCluster(t, kinds.Config{UnguardedBindings: !guarded})
				c.mustMake(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {`+r.has+`}}}`)
				c.mustMake(c.version("resource.k8s.io/v1", "DeviceClass"), "fpga", `{metadata: {name: fpga}, spec: {extendedResourceName: example.com/fpga}}`)
				for i, spec := range r.on {
					if err := c.makePod(fmt.Sprintf("on%d", i), spec); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.makePod("p", r.wants); err != nil {
					t.Fatal(err)
				}
				want := ""
				if guarded && r.says != "" {
					want = `Operation cannot be fulfilled on pods/binding "p": node "n1" has no room: ` + r.says
				}
				dry := c.by()
				dry.DryRun = true
				for _, by := range []engine.Caller{dry, c.by()} {
					got := ""
					if err := c.bind("p", "n1", by); err != nil {
						if got = err.Error(); !apierrors.IsConflict(err) {
							t.Errorf("%#v", err)
						}
					}
					if got != want {
						t.Errorf("dry run %v\ngot  %q\nwant %q", by.DryRun, got, want)
					}
				}
			})
		}
	}
}

// Issue 16: a Pod takes room until it has ended, and what its resize says at the time.
func TestRoomOfPodsAsTheyGo(t *testing.T) {
	const all = `{metadata: {name: %s%s}, spec: {nodeName: n1, terminationGracePeriodSeconds: 30, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}`
	for name, q := range map[string]struct {
		status string
		mark   bool
		says   string
	}{
		"Pending":           {`{phase: Pending}`, false, "1 requested, 0 left"},
		"Running":           {`{phase: Running}`, false, "1 requested, 0 left"},
		"Succeeded":         {`{phase: Succeeded}`, false, ""},
		"Failed":            {`{phase: Failed}`, false, ""},
		"going":             {`{phase: Running}`, true, "1 requested, 0 left"},
		"resized to less":   {`{phase: Running, containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 1500m}}]}`, false, "1 requested, 500m left"},
		"resize infeasible": {`{phase: Running, conditions: [{type: PodResizePending, status: "True", reason: Infeasible}], containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 500m}}]}`, false, ""},
		"resize deferred":   {`{phase: Running, conditions: [{type: PodResizePending, status: "True", reason: Deferred}], containerStatuses: [{name: c, image: i, imageID: i, ready: true, restartCount: 0, allocatedResources: {cpu: 500m}}]}`, false, "1 requested, 0 left"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serveCluster(t, kinds.Config{})
			v, has := c.version("v1", "Pod"), `"1"`
			switch name {
			case "resized to less":
				has = `"2"`
			case "resize infeasible":
				has = `1500m`
			}
			c.mustMake(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {cpu: `+has+`}}}`)
			c.mustMake(v, "a", fmt.Sprintf(all, "a", ""))
			if err := c.makePod("p", pending(requests(`cpu: "1"`))); err != nil {
				t.Fatal(err)
			}
			if _, err := c.put(v, "a", "status", fmt.Sprintf(all[:len(all)-1], "a", "")+`, status: `+q.status+`}`); err != nil {
				t.Fatal(err)
			}
			if q.mark {
				if _, gone, err := c.Engine.Delete(c.Context(), c.at(v, "a", ""), metav1.DeleteOptions{}, c.by()); gone || err != nil {
					t.Fatal(gone, err)
				}
			}
			err := c.bind("p", "n1", c.by())
			if q.says == "" && err != nil {
				t.Error(err)
			}
			if q.says != "" {
				expectError(t, err, `node "n1" has no room: cpu: `+q.says)
			}
		})
	}
}

// Issue 16: what comes with a node, static Pods among it, is let in as upstream does, and counts; a node that is not there has room for all.
func TestPodsWithANodeCount(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	v := c.version("v1", "Pod")
	for i := range 2 {
		if err := c.makePod(fmt.Sprintf("q%d", i), pending(requests(`cpu: "1"`))); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.bind("q0", "n1", c.by()); err != nil {
		t.Fatal(err)
	}
	c.mustMake(c.version("v1", "Node"), "n1", `{metadata: {name: n1}, status: {allocatable: {cpu: "5"}}}`)
	if err := c.makePod("created", running(requests(`cpu: "3"`))); err != nil {
		t.Fatal(err)
	}
	c.mustMake(v, "static", `{metadata: {name: static, annotations: {kubernetes.io/config.mirror: x, kubernetes.io/config.source: file, kubernetes.io/config.hash: x}}, spec: `+running(requests(`cpu: "2"`))+`}`)
	expectError(t, c.bind("q1", "n1", c.by()), `node "n1" has no room: cpu: 1 requested, 0 left`)
	c.mustMake(c.version("v1", "Node"), "m", `{metadata: {name: m}, status: {allocatable: {cpu: "1"}}}`)
	if err := c.bind("q1", "m", c.by()); err != nil {
		t.Error(err)
	}
}
