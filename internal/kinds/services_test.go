package kinds_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/kinds"
)

const (
	anyPort        = `ports: [{port: 80}]`
	invalidService = `Service "s" is invalid: `
)

func (c *cluster) createService(name, spec string) error {
	c.Helper()
	_, err := c.create(c.version("v1", "Service"), `{metadata: {name: `+name+`}, spec: `+spec+`}`)
	return err
}

// TestInvalidServices checks that the errors for addresses and families that cannot be allocated are kube-apiserver's
// (EXT-020).
func TestInvalidServices(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for _, q := range []struct{ spec, want string }{
		{`{clusterIP: nonsense, ` + anyPort + `}`,
			`spec.clusterIPs[0]: Invalid value: "nonsense": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`},
		{`{clusterIP: 010.0.0.7, ` + anyPort + `}`,
			`spec.clusterIPs[0]: Invalid value: "010.0.0.7": must not have leading 0s`},
		{`{clusterIP: 10.0.0.7, clusterIPs: [10.0.0.8], ` + anyPort + `}`,
			`spec.clusterIPs: Invalid value: ["10.0.0.8"]: first value must match ` + "`clusterIP`"},
		{`{clusterIPs: [10.0.0.8], ` + anyPort + `}`,
			`spec.clusterIPs: Invalid value: ["10.0.0.8"]: must be empty when ` + "`clusterIP`" + ` is not specified`},
		{`{clusterIP: "fd00::1", ` + anyPort + `}`,
			`spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster`},
		{`{clusterIP: 10.0.0.255, ` + anyPort + `}`,
			`spec.clusterIPs: Invalid value: ["10.0.0.255"]: failed to allocate IP 10.0.0.255: the provided network does not match the current range`},
		{`{ipFamilies: [IPv6], ` + anyPort + `}`,
			`spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`},
		{`{ipFamilyPolicy: RequireDualStack, ` + anyPort + `}`,
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`},
		{`{ipFamilies: [IPv4, IPv6], ` + anyPort + `}`,
			`spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified`},
	} {
		if err := c.createService("s", q.spec); err == nil || err.Error() != invalidService+q.want {
			t.Errorf("%s\ngot  %v\nwant %s", q.spec, err, invalidService+q.want)
		}
	}
}

// TestServiceUpdates checks which addresses and ports an update retains, drops and rejects (EXT-020).
func TestServiceUpdates(t *testing.T) {
	for _, q := range []struct {
		old, spec, err string
		want           []string // parts of the stored spec
		not            string   // text that must be missing in the stored spec
	}{
		{`{type: NodePort, clusterIP: 10.0.0.7, ports: [{port: 80, nodePort: 30001}]}`,
			`{type: NodePort, ports: [{port: 81}]}`, "",
			[]string{`"clusterIP":"10.0.0.7"`, `"clusterIPs":["10.0.0.7"]`, `"nodePort":30001`, `"port":81`}, "none"},
		{`{type: LoadBalancer, loadBalancerClass: a/b, clusterIP: 10.0.0.7, ports: [{port: 80, nodePort: 30001}]}`,
			`{type: ClusterIP, loadBalancerClass: a/b, allocateLoadBalancerNodePorts: true, externalTrafficPolicy: Cluster, ports: [{port: 80, nodePort: 30001}]}`, "",
			[]string{`"clusterIP":"10.0.0.7"`, `"ports":[{"port":80,"protocol":"TCP","targetPort":80}]`}, "nodePort"},
		{`{clusterIP: 10.0.0.7, ports: [{port: 80}]}`, `{clusterIP: 10.0.0.8, ports: [{port: 80}]}`,
			`spec.clusterIPs[0]: Invalid value: ["10.0.0.8"]: may not change once set`, nil, ""},
		{`{clusterIP: None, selector: {a: b}, ports: [{port: 80}]}`,
			`{clusterIP: 10.0.0.8, selector: {a: b}, ports: [{port: 80}]}`,
			`spec.clusterIPs[0]: Invalid value: ["10.0.0.8"]: may not change once set`, nil, ""},
		{`{clusterIP: None, ports: [{port: 80}]}`, `{ports: [{port: 80}]}`, "",
			[]string{`"clusterIP":"None"`, `"clusterIPs":["None"]`, `"ipFamilyPolicy":"RequireDualStack"`}, "nodePort"},
		{`{type: LoadBalancer, loadBalancerClass: a/b, ports: [{port: 80}]}`,
			`{type: LoadBalancer, ports: [{port: 80}]}`,
			`spec.loadBalancerClass: Invalid value: null: may not change once set`, nil, ""},
	} {
		c := serveCluster(t, kinds.Config{})
		v := c.version("v1", "Service")
		if err := c.createService("s", q.old); err != nil {
			t.Fatal(err)
		}
		_, err := c.put(v, "s", "", `{metadata: {name: s}, spec: `+q.spec+`}`)
		if q.err != "" {
			expectError(t, err, q.err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", q.spec, err)
			continue
		}
		// search only the spec, because managedFields also contains the names of fields
		got, _, _ := strings.Cut(string(c.stored(v, "s")), `"status"`)
		_, got, _ = strings.Cut(got, `"spec":`)
		for _, part := range q.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s -> %s\ngot %s, want %s in it", q.old, q.spec, got, part)
			}
		}
		if strings.Contains(got, q.not) {
			t.Errorf("%s -> %s\ngot %s, want no %s in it", q.old, q.spec, got, q.not)
		}
	}
}

// TestAddressesAreAllocatedOnce creates Services until the 254 addresses of a range are used up. It checks that no
// address is allocated twice, and that the next create fails.
func TestAddressesAreAllocatedOnce(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for i := range 254 {
		if err := c.createService(fmt.Sprintf("s%d", i), `{`+anyPort+`}`); err != nil {
			t.Fatal(i, err)
		}
	}
	expectError(t, c.createService("more", `{`+anyPort+`}`),
		`failed to allocate a serviceIP for Service "more": range is full`)
	expectError(t, c.createService("more", `{clusterIP: 10.0.0.7, `+anyPort+`}`), "provided IP is already allocated")
}
