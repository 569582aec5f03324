package builtin

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

const invalidService = `Service "s" is invalid: `

// EXT-020: what kube-apiserver says of Services and endpoints that cannot be; the words are those of its validation.
func TestServicesThatCannotBe(t *testing.T) {
	const label = `a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`
	const ports = `ports: [{port: 80}]`
	for _, c := range []struct {
		plural, body string
		want         []string
	}{
		{"services", `{` + ports + `}`, nil},
		{"services", `{}`, []string{`spec.ports: Required value`}},
		{"services", `{clusterIP: None}`, nil},
		{"services", `{type: Foo, ` + ports + `}`, []string{`spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`}},
		{"services", `{ports: [{port: 0, name: A, protocol: X}, {port: 80}, {port: 80, name: b, targetPort: "9-"}]}`, []string{
			`spec.ports[0].name: Invalid value: "A": ` + label,
			`spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`,
			`spec.ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"`,
			`spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive`,
			`spec.ports[1].name: Required value`,
			`spec.ports[2].targetPort: Invalid value: "9-": must contain at least one letter (a-z)`,
			`spec.ports[2].targetPort: Invalid value: "9-": must not begin or end with a hyphen`,
			`spec.ports[2]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}`}},
		{"services", `{ports: [{port: 80, nodePort: 30001}]}`, []string{`spec.ports[0].nodePort: Forbidden: may not be used when ` + "`type`" + ` is 'ClusterIP'`}},
		{"services", `{type: NodePort, clusterIP: None, ` + ports + `}`, []string{`spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services`}},
		{"services", `{type: LoadBalancer, ports: [{port: 10250}]}`, []string{`spec.ports[0]: Invalid value: 10250: may not expose port 10250 externally since it is used by kubelet`}},
		{"services", `{type: ExternalName}`, []string{`spec.externalName: Required value`}},
		{"services", `{type: ExternalName, externalName: a.b., clusterIP: 10.0.0.9, ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}`, []string{
			`spec.clusterIPs: Forbidden: may not be set for ExternalName services`, `spec.ipFamilies: Forbidden: may not be set for ExternalName services`, `spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services`}},
		{"services", `{clusterIP: nonsense, ` + ports + `}`, []string{invalidService + `spec.clusterIPs[0]: Invalid value: "nonsense": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		{"services", `{clusterIP: 010.0.0.7, ` + ports + `}`, []string{invalidService + `spec.clusterIPs[0]: Invalid value: "010.0.0.7": must not have leading 0s`}},
		{"services", `{clusterIP: 10.0.0.7, clusterIPs: [10.0.0.8], ` + ports + `}`, []string{invalidService + `spec.clusterIPs: Invalid value: ["10.0.0.8"]: first value must match ` + "`clusterIP`"}},
		{"services", `{clusterIPs: [10.0.0.8], ` + ports + `}`, []string{invalidService + `spec.clusterIPs: Invalid value: ["10.0.0.8"]: must be empty when ` + "`clusterIP`" + ` is not specified`}},
		{"services", `{clusterIP: "fd00::1", ` + ports + `}`, []string{invalidService + `spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster`}},
		{"services", `{clusterIP: 10.0.0.255, ` + ports + `}`, []string{invalidService + `spec.clusterIPs: Invalid value: ["10.0.0.255"]: failed to allocate IP 10.0.0.255: the provided network does not match the current range`}},
		{"services", `{ipFamilies: [IPv6], ` + ports + `}`, []string{invalidService + `spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`}},
		{"services", `{ipFamilyPolicy: RequireDualStack, ` + ports + `}`, []string{invalidService + `spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`}},
		{"services", `{ipFamilies: [IPv4, IPv6], ` + ports + `}`, []string{invalidService + `spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified`}},
		{"services", `{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}, ` + ports + `}`, []string{`spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400`}},
		{"services", `{externalIPs: [127.0.0.1, q], ` + ports + `}`, []string{
			`spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`spec.externalIPs[1]: Invalid value: "q": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		{"services", `{externalTrafficPolicy: Local, healthCheckNodePort: 30001, allocateLoadBalancerNodePorts: true, loadBalancerClass: a/b, loadBalancerSourceRanges: [x], ` + ports + `}`, []string{
			`spec.LoadBalancerSourceRanges: Forbidden: may only be used when ` + "`type`" + ` is 'LoadBalancer'`,
			`spec.LoadBalancerSourceRanges[0]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)`,
			`spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when ` + "`type`" + ` is 'LoadBalancer'`,
			`spec.loadBalancerClass: Forbidden: may only be used when ` + "`type`" + ` is 'LoadBalancer'`,
			`spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services`,
			`spec.healthCheckNodePort: Invalid value: 30001: may only be set when ` + "`type`" + ` is 'LoadBalancer' and ` + "`externalTrafficPolicy`" + ` is 'Local'`}},
		{"services", `{trafficDistribution: z, internalTrafficPolicy: x, ` + ports + `}`, []string{
			`spec.internalTrafficPolicy: Unsupported value: "x": supported values: "Cluster", "Local"`,
			`spec.trafficDistribution: Unsupported value: "z": supported values: "PreferClose", "PreferSameNode", "PreferSameZone"`}},

		{"endpoints", `{subsets: [{}, {addresses: [{ip: 169.254.1.1, hostname: A}], ports: [{port: 1}, {port: 0, name: b}]}]}`, []string{
			"subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
			`subsets[1].addresses[0].hostname: Invalid value: "A": ` + label,
			`subsets[1].addresses[0].ip: Invalid value: "169.254.1.1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`subsets[1].ports[0].name: Required value`, `subsets[1].ports[1].port: Invalid value: 0: must be between 1 and 65535, inclusive`}},
		{"endpointslices", `{}`, []string{`addressType: Required value`}},
		{"endpointslices", `{addressType: IP}`, []string{`addressType: Unsupported value: "IP": supported values: "FQDN", "IPv4", "IPv6"`}},
		{"endpointslices", `{addressType: IPv4, endpoints: [{addresses: []}, {addresses: ["fd00::1", 0.0.0.0]}], ports: [{port: 1}, {port: 2}, {name: x, protocol: Q}]}`, []string{
			`endpoints[0].addresses: Required value: must contain at least 1 address`,
			`endpoints[1].addresses[0]: Invalid value: "fd00::1": must be an IPv4 address`,
			`endpoints[1].addresses[1]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)`,
			`ports[1].name: Duplicate value: ""`,
			`ports[2].protocol: Unsupported value: "Q": supported values: "SCTP", "TCP", "UDP"`}},
	} {
		v := find(t, groupOf(c.plural), c.plural)
		body := c.body
		if c.plural == "services" {
			body = `{metadata: {name: s}, spec: ` + body + `}`
		}
		if got := create(t, v, read(t, v, body)); !slices.Equal(got, c.want) {
			t.Errorf("%s %s\ngot  %s\nwant %s", c.plural, c.body, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
}

func groupOf(plural string) string {
	if plural == "endpointslices" {
		return "discovery.k8s.io"
	}
	return ""
}

// EXT-020: what an update keeps, drops and refuses.
func TestServiceUpdates(t *testing.T) {
	v := find(t, "", "services")
	for _, c := range []struct {
		old, body string
		want      []string
		spec      string // what matters of it
	}{
		{`{type: NodePort, clusterIP: 10.0.0.7, ports: [{port: 80, nodePort: 30001}]}`, `{type: NodePort, ports: [{port: 81}]}`, nil,
			`"clusterIP":"10.0.0.7","clusterIPs":["10.0.0.7"],"externalTrafficPolicy":"Cluster","internalTrafficPolicy":"Cluster","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{"nodePort":30001,"port":81`},
		{`{type: LoadBalancer, loadBalancerClass: a/b, clusterIP: 10.0.0.7, ports: [{port: 80, nodePort: 30001}]}`,
			`{type: ClusterIP, loadBalancerClass: a/b, allocateLoadBalancerNodePorts: true, externalTrafficPolicy: Cluster, ports: [{port: 80, nodePort: 30001}]}`, nil,
			`{"clusterIP":"10.0.0.7","clusterIPs":["10.0.0.7"],"internalTrafficPolicy":"Cluster","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","ports":[{"port":80,"protocol":"TCP","targetPort":80}],`},
		{`{clusterIP: 10.0.0.7, ports: [{port: 80}]}`, `{clusterIP: 10.0.0.8, ports: [{port: 80}]}`, []string{
			`spec.clusterIPs[0]: Invalid value: ["10.0.0.8"]: may not change once set`}, ""},
		{`{clusterIP: None, selector: {a: b}, ports: [{port: 80}]}`, `{clusterIP: 10.0.0.8, selector: {a: b}, ports: [{port: 80}]}`, []string{
			`spec.clusterIPs[0]: Invalid value: ["10.0.0.8"]: may not change once set`}, ""},
		{`{clusterIP: None, ports: [{port: 80}]}`, `{ports: [{port: 80}]}`, nil,
			`{"clusterIP":"None","clusterIPs":["None"],"internalTrafficPolicy":"Cluster","ipFamilies":["IPv4","IPv6"],"ipFamilyPolicy":"RequireDualStack"`},
		{`{type: LoadBalancer, loadBalancerClass: a/b, ports: [{port: 80}]}`, `{type: LoadBalancer, ports: [{port: 80}]}`, []string{
			`spec.loadBalancerClass: Invalid value: null: may not change once set`}, ""},
	} {
		old := read(t, v, `{metadata: {name: s}, spec: `+c.old+`}`)
		if m := create(t, v, old); m != nil {
			t.Fatal(m)
		}
		obj := read(t, v, `{metadata: {name: s}, spec: `+c.body+`}`)
		got := update(t, v, obj, old, "")
		if c.spec != "" && !strings.Contains(string(object.AppendJSON(nil, tree(obj, "spec"))), c.spec) || !slices.Equal(got, c.want) {
			t.Errorf("%s -> %s\ngot  %v %s\nwant %v %s", c.old, c.body, got, object.AppendJSON(nil, tree(obj, "spec")), c.want, c.spec)
		}
	}
}

// What is taken lies in the store: an address that another Service holds by the time of the commit is not committed.
func TestAddressesAreGuarded(t *testing.T) {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	p := newPool(Config{Head: store.Head})
	v := find(t, "", "services")
	write := func(name, spec string) error {
		obj := read(t, v, `{metadata: {name: `+name+`, namespace: ns}, spec: `+spec+`}`)
		if err := p.prepareCreate(context.Background(), obj); err != nil {
			return err
		}
		guards := p.guards(context.Background(), obj)
		_, err := store.Commit(context.Background(), []storage.Write{{Key: serviceKey("ns", name), Value: object.Pack(obj, 0).JSON()}}, guards...)
		return err
	}
	seen := read(t, v, `{metadata: {name: late, namespace: ns}, spec: {clusterIP: 10.0.0.7, ports: [{port: 1}]}}`)
	if err := p.prepareCreate(context.Background(), seen); err != nil {
		t.Fatal(err)
	}
	early := p.guards(context.Background(), seen)
	if err := write("first", `{clusterIP: 10.0.0.7, ports: [{port: 1}]}`); err != nil {
		t.Fatal(err)
	}
	for _, guards := range [][]storage.Guard{early, p.guards(context.Background(), seen)} {
		if _, err := store.Commit(context.Background(), []storage.Write{{Key: serviceKey("ns", "late"), Value: object.Pack(seen, 0).JSON()}}, guards...); err == nil {
			t.Fatal("an address was given twice")
		}
	}
	// A range of 254 holds 254, and then says so.
	for i := range 253 {
		if err := write("s"+strings.Repeat("x", i), `{ports: [{port: 1}]}`); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := write("more", `{ports: [{port: 1}]}`); err == nil || !strings.Contains(err.Error(), "failed to allocate a serviceIP: range is full") {
		t.Error(err)
	}
	held := heldByOthers(store.Head(), "")
	if len(held.ips) != 254 {
		t.Error(len(held.ips))
	}
}
