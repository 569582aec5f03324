package conformance_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

const (
	servicesPath  = "/api/v1/namespaces/ns/services"
	addressesPath = "/apis/networking.k8s.io/v1/ipaddresses"
	rangesPath    = "/apis/networking.k8s.io/v1/servicecidrs"
)

// TestServicesByIPFamily checks that Services, IPAddresses and ServiceCIDRs behave as in kube-apiserver. The
// Service ranges have one IP family, or both families in either order (EXT-020).
func TestServicesByIPFamily(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	for _, ranges := range []string{"10.0.0.0/24,fd00:10::/112", "fd00:10::/64,10.0.0.0/16", "10.0.0.0/24",
		"fd00:10::/112"} {
		t.Run(ranges, func(t *testing.T) {
			flags := []string{"--service-cluster-ip-range=" + ranges}
			if strings.HasPrefix(ranges, "fd00") {
				flags = append(flags, "--advertise-address=fd00::1")
			}
			upstream := startKubeAPIServer(t, flags...)
			server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
				for text := range strings.SplitSeq(ranges, ",") {
					c.ServiceClusterIPRanges = append(c.ServiceClusterIPRanges, netip.MustParsePrefix(text))
				}
			}))
			p := &pair{
				trellis:  newServer(t, "trellis", server.Config),
				upstream: newServer(t, "upstream", upstream),
				known:    knownDifferences(),
			}
			p.waitFor(t, rangesPath+"/kubernetes",
				func(a response) bool { return len(nested[[]any](a.body, "status", "conditions")) > 0 })
			p.waitFor(t, "/api/v1/namespaces/default/services/kubernetes",
				func(a response) bool { return a.code == 200 })
			p.do(t, "POST /api/v1/namespaces", asYAML, `{apiVersion: v1, kind: Namespace, metadata: {name: ns}}`)
			p.createServices(t)
			p.changeServices(t)
			p.testIPAddresses(t)
			p.testServiceCIDRs(t, ranges)
			t.Logf("%d requests, %d with equal responses", p.sent, p.equal)
		})
	}
}

// serviceSpecs lists specs of valid and invalid Services. The addresses in the specs end at 10.0.0.16. The
// allocator assigns higher addresses to the Services without an address.
var serviceSpecs = []string{
	`{ports: [{port: 80}]}`,
	`{ipFamilyPolicy: SingleStack, ports: [{port: 80}]}`,
	`{ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{ipFamilyPolicy: Nonsense, ports: [{port: 80}]}`,
	`{ipFamilies: [IPv4], ports: [{port: 80}]}`,
	`{ipFamilies: [IPv6], ports: [{port: 80}]}`,
	`{ipFamilies: [IPv9], ports: [{port: 80}]}`,
	`{ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}`,
	`{ipFamilies: [IPv4, IPv4], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{ipFamilies: [IPv4, IPv6], ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{ipFamilies: [IPv6], ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{type: NodePort, ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{type: LoadBalancer, ipFamilyPolicy: PreferDualStack, externalTrafficPolicy: Local, ports: [{port: 80}]}`,
	`{type: ExternalName, externalName: example.com}`,
	`{type: ExternalName, externalName: example.com, ipFamilyPolicy: SingleStack}`,
	`{type: ExternalName, externalName: example.com, clusterIP: 10.0.0.13}`,
	`{clusterIP: None, ports: [{port: 80}]}`,
	`{clusterIP: None, selector: {a: b}, ports: [{port: 80}]}`,
	`{clusterIP: None, selector: {a: b}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{clusterIP: None, selector: {a: b}, ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{clusterIP: None, ipFamilyPolicy: SingleStack, ports: [{port: 80}]}`,
	`{clusterIP: None, ipFamilies: [IPv6], ports: [{port: 80}]}`,
	`{clusterIP: None, clusterIPs: [None, 10.0.0.13], ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.2, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.2, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.0, ports: [{port: 80}]}`,
	`{clusterIP: 10.9.0.1, ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::20", ports: [{port: 80}]}`,
	`{clusterIP: "fd00:0010:0::20", ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::", ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::ffff", ports: [{port: 80}]}`,
	`{clusterIP: "::ffff:10.0.0.8", ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::21", ipFamilies: [IPv4], ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.3, clusterIPs: [10.0.0.3, "fd00:10::22"], ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.3, clusterIPs: [10.0.0.3, "fd00:10::22"], ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::23", clusterIPs: ["fd00:10::23", 10.0.0.4], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{clusterIP: "fd00:10::24", ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.6, clusterIPs: [10.0.0.6, "fd00:11::25"], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.6, clusterIPs: [10.0.0.6, 10.0.0.7], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
	`{clusterIP: 10.0.0.6, clusterIPs: [10.0.0.6, "fd00:10::25", 10.0.0.7], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}`,
}

func (p *pair) createServices(t *testing.T) {
	for i, spec := range serviceSpecs {
		p.do(t, "POST "+servicesPath, asYAML,
			fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: s%d}, spec: %s}`, i, spec))
	}
	p.get(t, servicesPath)
	p.table(t, servicesPath)
	for _, ip := range []string{"10.0.0.2", "fd00:10::20", "10.0.0.3", "fd00:10::22", "fd00:10::23", "10.0.0.4",
		"10.0.0.8"} {
		p.get(t, addressesPath+"/"+ip)
		p.table(t, addressesPath+"/"+ip)
	}
	p.table(t, rangesPath+"/kubernetes")
	p.get(t, addressesPath+"?fieldSelector=metadata.name%3D10.0.0.1") // of the Service kubernetes
	p.get(t, addressesPath+"?fieldSelector=metadata.name%3Dfd00:10::1")
}

// serviceChanges holds lists of changes. The first element of a list is the spec of a new Service. The other
// elements are patches of the spec, applied in order.
var serviceChanges = [][]string{
	{`{"clusterIP":"10.0.0.9"}`, `{"ipFamilyPolicy":"PreferDualStack"}`, `{"ipFamilyPolicy":"SingleStack"}`,
		`{"ipFamilyPolicy":"RequireDualStack"}`,
		`{"clusterIPs":["10.0.0.9"]}`, `{"ipFamilies":["IPv4"]}`,
		`{"clusterIPs":["10.0.0.9"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack"}`,
		`{"ipFamilies":["IPv4","IPv6"]}`, `{"ipFamilies":["IPv6","IPv4"],"ipFamilyPolicy":"PreferDualStack"}`,
		`{"clusterIPs":["10.0.0.9","fd00:10::40"],"ipFamilyPolicy":"PreferDualStack"}`,
		`{"clusterIPs":["10.0.0.9","fd00:10::41"]}`,
		`{"type":"ExternalName","externalName":"example.com"}`,
		`{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}`,
		`{"type":"ClusterIP","externalName":null,"ipFamilyPolicy":"PreferDualStack"}`},
	{`{"clusterIP":"fd00:10::42"}`, `{"ipFamilyPolicy":"PreferDualStack"}`, `{"clusterIPs":["fd00:10::42","10.0.0.2"]}`,
		`{"ipFamilyPolicy":"SingleStack"}`,
		`{"clusterIPs":["fd00:10::42","10.0.0.2"],"ipFamilyPolicy":"PreferDualStack"}`, `{"clusterIP":"fd00:10::43"}`,
		`{"clusterIP":""}`, `{"clusterIP":"None"}`},
	{`{"clusterIP":"None"}`, `{"ipFamilyPolicy":"SingleStack"}`, `{"ipFamilyPolicy":"PreferDualStack"}`,
		`{"clusterIP":"10.0.0.10"}`, `{"selector":{"a":"b"}}`,
		`{"ipFamilies":["IPv6"],"ipFamilyPolicy":"SingleStack"}`},
	{`{"type":"ExternalName","externalName":"example.com"}`, `{"type":"ClusterIP","clusterIP":"10.0.0.2"}`,
		`{"type":"ClusterIP","externalName":null,"clusterIP":"10.0.0.11"}`,
		`{"type":"NodePort"}`, `{"type":"ExternalName","externalName":"example.com"}`},
	{`{"ipFamilyPolicy":"PreferDualStack"}`, `{"type":"NodePort"}`, `{"ipFamilies":null}`,
		`{"clusterIP":null,"clusterIPs":null}`, `{"ipFamilyPolicy":null}`},
}

func (p *pair) changeServices(t *testing.T) {
	for i, patches := range serviceChanges {
		one := fmt.Sprintf("%s/c%d", servicesPath, i)
		p.do(t, "POST "+servicesPath, "",
			fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"c%d"},"spec":{"ports":[{"port":80}],%s}`, i, patches[0][1:]))
		for _, patch := range patches[1:] {
			p.do(t, "PATCH "+one, asMerge, `{"spec":`+patch+`}`)
			p.get(t, addressesPath+"/10.0.0.9")
			p.get(t, addressesPath+"/10.0.0.11")
		}
		p.do(t, "DELETE "+one, "", "")
	}
	for _, ip := range []string{"10.0.0.9", "fd00:10::40", "fd00:10::42", "10.0.0.11"} {
		p.get(t, addressesPath+"/"+ip)
	}
}

// testIPAddresses compares the creation, update and deletion of IPAddresses by a client.
func (p *pair) testIPAddresses(t *testing.T) {
	const body = `{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: "%s"}, spec: %s}`
	for _, spec := range []string{`{}`, `{parentRef: {}}`, `{parentRef: {resource: gateways, name: g}}`,
		`{parentRef: {group: "a b", resource: "", name: g}}`} {
		for _, name := range []string{"10.0.0.12", "fd00:10::50", "fd00:0:10::50", "10.0.0.012", "no-ip"} {
			p.do(t, "POST "+addressesPath, asYAML, fmt.Sprintf(body, name, spec))
		}
	}
	for i, ip := range []string{"10.0.0.12", "fd00:10::50"} {
		p.do(t, "POST "+servicesPath, asYAML,
			fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: t%d}, spec: {clusterIP: "%s", ports: [{port: 80}]}}`, i, ip))
		p.do(t, "PATCH "+addressesPath+"/"+ip, asMerge, `{"spec":{"parentRef":{"name":"other"}}}`)
		p.do(t, "PATCH "+addressesPath+"/"+ip, asMerge, `{"metadata":{"labels":{"a":"b"}}}`)
		p.get(t, addressesPath+"?fieldSelector=metadata.name%3D"+ip)
		p.get(t, addressesPath+"?fieldSelector=spec.parentRef.name%3Dg")
		p.do(t, "DELETE "+addressesPath+"/"+ip, "", "")
	}
	p.do(t, "DELETE "+addressesPath+"/10.0.0.2", "", "") // a Service uses this address
	p.get(t, addressesPath+"/10.0.0.2")
	p.get(t, servicesPath+"/s25")
}

// testServiceCIDRs compares ServiceCIDRs, and Services with addresses from them.
func (p *pair) testServiceCIDRs(t *testing.T, ranges string) {
	const body = `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: %s}, spec: {cidrs: %s}}`
	for _, cidrs := range []string{`[]`, `[10.1.0.0]`, `[10.1.0.1/24]`, `["10.01.0.0/24"]`,
		`["fd01::/64", "fd02::/64"]`, `[10.1.0.0/24, "fd01::/64", 10.2.0.0/24]`, `["fd01::/20"]`,
		`["::ffff:10.0.0.0/112"]`, `[10.1.0.0/32]`} {
		p.do(t, "POST "+rangesPath+"?dryRun=All", asYAML, fmt.Sprintf(body, "bad", cidrs))
	}
	p.do(t, "POST "+rangesPath, asYAML, fmt.Sprintf(body, "more", `[10.1.0.0/24]`))
	p.do(t, "PATCH "+rangesPath+"/more", asMerge, `{"spec":{"cidrs":["10.2.0.0/24"]}}`)
	p.do(t, "PATCH "+rangesPath+"/more", asMerge, `{"spec":{"cidrs":["10.1.0.0/24","10.2.0.0/24"]}}`)
	p.do(t, "PATCH "+rangesPath+"/more", asMerge, `{"spec":{"cidrs":["10.1.0.0/24","fd01::/112"]}}`)
	for family, ip := range map[string]string{".": "10.1.0.9", ":": "fd01::9"} {
		if strings.Contains(ranges, family) {
			p.createService(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"generateName":"probe-"},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, ip))
		}
	}
	for i, ip := range []string{"10.1.0.1", "10.1.0.0", "10.1.0.255", "10.2.0.1", "fd01::1"} {
		p.do(t, "POST "+servicesPath, asYAML,
			fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: r%d}, spec: {clusterIP: "%s", ports: [{port: 80}]}}`, i, ip))
	}
}

// createService creates a Service on both servers. It retries the request to kube-apiserver until the allocator has
// read the new range. Trellis must create the Service at the first attempt.
func (p *pair) createService(t *testing.T, body string) {
	t.Helper()
	for _, s := range []*server{p.trellis, p.upstream} {
		err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) {
				a, err := s.send(ctx, request{method: http.MethodPost, path: servicesPath, body: body})
				if s == p.trellis && a.code != http.StatusCreated {
					t.Fatalf("create Service: got %v, want code 201 at the first attempt", a)
				}
				return a.code == http.StatusCreated, err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
}
