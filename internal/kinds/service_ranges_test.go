package kinds_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// addresses returns the cluster IPs of a stored Service.
func (c *cluster) addresses(name string) []string {
	c.Helper()
	var s corev1.Service
	if err := json.Unmarshal(c.stored(c.version("v1", "Service"), name), &s); err != nil {
		c.Fatal(err)
	}
	return s.Spec.ClusterIPs
}

// createRange creates a ServiceCIDR. The parameter status is the status of its condition Ready. "" means that the
// condition is missing.
func (c *cluster) createRange(name, status, cidrs string) {
	c.Helper()
	v := c.version("networking.k8s.io/v1", "ServiceCIDR")
	c.mustCreate(v, name, `{metadata: {name: `+name+`}, spec: {cidrs: `+cidrs+`}}`)
	if status == "" {
		return
	}
	body := `{metadata: {name: ` + name + `}, spec: {cidrs: ` + cidrs +
		`}, status: {conditions: [{type: Ready, status: "` + status +
		`", reason: R, lastTransitionTime: "2026-01-02T03:04:05Z"}]}}`
	if _, err := c.put(v, name, "status", body); err != nil {
		c.Fatal(err)
	}
}

// TestAddressesComeFromServiceCIDRs checks that addresses are allocated from ServiceCIDRs that are ready and not being
// deleted, and from the configured ranges until the default ServiceCIDR exists (EXT-020).
func TestAddressesComeFromServiceCIDRs(t *testing.T) {
	const refused = "the provided network does not match the current range"
	c := serveCluster(t, kinds.Config{ServiceRanges: prefixes("10.0.0.0/24", "fd00::/112")})
	take := func(name, ip, want string) {
		t.Helper()
		err := c.createService(name, `{clusterIP: "`+ip+`", `+anyPort+`}`)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)) {
			t.Errorf("%s: got error %v, want %q", ip, err, want)
		}
	}
	take("own", "10.0.0.7", "")
	take("early", "10.1.0.7", refused)
	c.createRange("more", "", `[10.1.0.0/24, "fd01::/64"]`)
	c.createRange("ready", "True", `[10.2.0.0/24]`)
	c.createRange("unready", "False", `[10.3.0.0/24]`)
	c.createRange("unknown", "Unknown", `[10.4.0.0/24]`)
	take("no-condition", "10.1.0.7", "") // a range that lacks the condition counts as ready
	take("six", "fd01::7", "")
	take("ready", "10.2.0.7", "")
	take("unready", "10.3.0.7", refused)
	take("unknown", "10.4.0.7", refused)
	take("still-own", "10.0.0.8", "")
	c.createRange(services.DefaultCIDR, "True", `[10.5.0.0/24]`)
	take("no-longer-own", "10.0.0.9", refused)
	take("default", "10.5.0.7", "")
	take("of-two-ranges", "10.5.0.7", "provided IP is already allocated")

	v := c.version("networking.k8s.io/v1", "ServiceCIDR") // a ServiceCIDR that is being deleted provides no addresses
	c.createRange("deleted", "True", `[10.6.0.0/24]`)
	if _, err := c.put(v, "deleted", "",
		`{metadata: {name: deleted, finalizers: [example.com/f]}, spec: {cidrs: [10.6.0.0/24]}}`); err != nil {
		t.Fatal(err)
	}
	take("before", "10.6.0.7", "")
	if _, gone, err := c.Engine.Delete(t.Context(), c.at(v, "deleted", ""), metav1.DeleteOptions{},
		c.by()); err != nil || gone {
		t.Fatalf("delete: got gone %v, error %v", gone, err)
	}
	take("after", "10.6.0.8", refused)
}

// TestAddressesOfSeveralRanges checks that addresses are allocated from the next range when one is full.
func TestAddressesOfSeveralRanges(t *testing.T) {
	c := serveCluster(t, kinds.Config{ServiceRanges: prefixes("10.0.0.0/30", "fd00::/126")})
	for i := range 3 { // the last address of an IPv4 range is the broadcast address
		if err := c.createService(fmt.Sprint("four", i), `{`+anyPort+`}`); (err == nil) != (i < 2) {
			t.Errorf("Service four%d: got error %v", i, err)
		}
		if err := c.createService(fmt.Sprint("six", i), `{ipFamilies: [IPv6], `+anyPort+`}`); err != nil {
			t.Errorf("Service six%d: %v", i, err)
		}
	}
	expectError(t, c.createService("more", `{ipFamilies: [IPv6], `+anyPort+`}`),
		`failed to allocate a serviceIP for Service "more": range is full`)
	c.createRange("a", "True", `[10.0.1.0/30, "fd00:1::/126"]`)
	if err := c.createService("more", `{ipFamilyPolicy: RequireDualStack, `+anyPort+`}`); err != nil {
		t.Fatal(err)
	}
	got := c.addresses("more")
	if len(got) != 2 || !strings.HasPrefix(got[0], "10.0.1.") || !strings.HasPrefix(got[1], "fd00:1::") {
		t.Errorf("got addresses %q, want one of each new range", got)
	}
}

// TestAddressesOfLargeRanges checks that addresses of large ranges are within the range.
func TestAddressesOfLargeRanges(t *testing.T) {
	for _, r := range prefixes("10.0.0.0/8", "fd00::/64", "fd00::/56") {
		c := serveCluster(t, kinds.Config{ServiceRanges: []netip.Prefix{r}})
		for i := range 50 {
			name := fmt.Sprint("s", i)
			if err := c.createService(name, `{`+anyPort+`}`); err != nil {
				t.Fatal(err)
			}
			if ip := c.addresses(name)[0]; !r.Contains(netip.MustParseAddr(ip)) {
				t.Errorf("got address %s, want one in %s", ip, r)
			}
		}
	}
}

// TestLowestAddressesAreAllocatedLast checks that the lowest sixteenth of a range is reserved for explicit requests
// while other addresses are free (KEP-3070).
func TestLowestAddressesAreAllocatedLast(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for i := range 239 {
		name := fmt.Sprint("s", i)
		if err := c.createService(name, `{`+anyPort+`}`); err != nil {
			t.Fatal(err)
		}
		if ip := netip.MustParseAddr(c.addresses(name)[0]).As4(); (ip[3] > 16) != (i < 238) {
			t.Errorf("Service %d: got address %v", i, ip)
		}
	}
}

// TestAddressesAreRepaired checks that RepairAddresses returns the IPAddresses that are missing, and those that
// belong to no Service (EXT-020).
func TestAddressesAreRepaired(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for i := range 4 {
		if err := c.createService(fmt.Sprint("s", i),
			fmt.Sprintf(`{clusterIP: 10.0.0.%d, %s}`, i+2, anyPort)); err != nil {
			t.Fatal(err)
		}
	}
	v := c.version("networking.k8s.io/v1", "IPAddress")
	remove := func(key string) {
		rec := c.Store.Head().Get(key)
		if _, err := c.Store.Commit(t.Context(), []storage.Write{{Key: key, Expected: rec.Modified}}); err != nil {
			t.Fatal(err)
		}
	}
	if wrong, missing := services.RepairAddresses(c.Store.Head()); len(wrong)+len(missing) > 0 {
		t.Errorf("correct store: got wrong %q, missing %v", wrong, missing)
	}
	remove("/registry/ipaddresses/10.0.0.2") // deleted
	remove("/registry/ipaddresses/10.0.0.3") // deleted, and created below for another object
	remove("/registry/services/specs/ns/s2") // as if an older server had deleted the Service but not the IPAddress
	const labels = `labels: {ipaddress.kubernetes.io/managed-by: ipallocator.k8s.io}`
	c.mustCreate(v, "10.0.0.3", `{metadata: {name: 10.0.0.3}, spec: {parentRef: {resource: gateways, name: g}}}`)
	c.mustCreate(v, "10.0.0.9", `{metadata: {name: 10.0.0.9, `+labels+
		`}, spec: {parentRef: {resource: services, namespace: ns, name: s3}}}`)
	// belongs to a Gateway, so RepairAddresses does not return it
	c.mustCreate(v, "10.0.0.10", `{metadata: {name: 10.0.0.10}, spec: {parentRef: {resource: gateways, name: g}}}`)
	wrong, missing := services.RepairAddresses(c.Store.Head())
	slices.Sort(wrong)
	if !slices.Equal(wrong, []string{"10.0.0.3", "10.0.0.4", "10.0.0.9"}) {
		t.Errorf("got wrong %q", wrong)
	}
	created := map[string]string{}
	for _, a := range missing {
		created[a.Name] = a.Spec.ParentRef.Namespace + "/" + a.Spec.ParentRef.Name
	}
	if len(created) != 2 || created["10.0.0.2"] != "ns/s0" || created["10.0.0.3"] != "ns/s1" {
		t.Errorf("got missing %v", created)
	}
}

// TestRepairOfSharedAddress checks that RepairAddresses returns nothing if two Services have the same address and its
// IPAddress belongs to one of them.
func TestRepairOfSharedAddress(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	if err := c.createService("b", `{clusterIP: 10.0.0.7, `+anyPort+`}`); err != nil {
		t.Fatal(err)
	}
	rec := c.Store.Head().Get("/registry/services/specs/ns/b")
	tree, _, err := object.DecodeJSON(rec.Value)
	if err != nil {
		t.Fatal(err)
	}
	object.Metadata(tree)["name"] = "a"
	if _, err := c.Store.Commit(t.Context(),
		[]storage.Write{{Key: "/registry/services/specs/ns/a", Value: object.Pack(tree, 0).JSON()}}); err != nil {
		t.Fatal(err)
	}
	if wrong, missing := services.RepairAddresses(c.Store.Head()); len(wrong)+len(missing) > 0 {
		t.Errorf("got wrong %q, missing %v; want none", wrong, missing)
	}
}

// TestServiceOfTwoFamilies checks that an update can add the second family and address of a Service, and can remove
// both (EXT-020).
func TestServiceOfTwoFamilies(t *testing.T) {
	c := serveCluster(t, kinds.Config{ServiceRanges: prefixes("fd00::/112", "10.0.0.0/24")})
	v := c.version("v1", "Service")
	if err := c.createService("s", `{clusterIP: "fd00::7", `+anyPort+`}`); err != nil {
		t.Fatal(err)
	}
	const path = "spec.ipFamilyPolicy: Invalid value: "
	for _, step := range []struct{ spec, err, want string }{
		{``, "", "[fd00::7]"},
		{`clusterIPs: ["fd00::7", 10.0.0.7], ipFamilyPolicy: SingleStack`,
			path + `"SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified`, "[fd00::7]"},
		{`clusterIPs: ["fd00::7", 10.0.1.7], ipFamilyPolicy: PreferDualStack`,
			`failed to allocate IP 10.0.1.7: the provided network does not match the current range`, "[fd00::7]"},
		{`clusterIPs: ["fd00::7", 10.0.0.7], ipFamilyPolicy: PreferDualStack`, "", "[fd00::7 10.0.0.7]"},
		{`clusterIPs: ["fd00::7"], ipFamilyPolicy: RequireDualStack`,
			path + `"RequireDualStack": must be 'SingleStack' to release the secondary cluster IP`,
			"[fd00::7 10.0.0.7]"},
		{`ipFamilies: [IPv6], ipFamilyPolicy: PreferDualStack`,
			path + `"PreferDualStack": must be 'SingleStack' to release the secondary IP family`, "[fd00::7 10.0.0.7]"},
		{`ipFamilyPolicy: PreferDualStack`, "", "[fd00::7 10.0.0.7]"},
		{`ipFamilyPolicy: SingleStack`, "", "[fd00::7]"},
		{`type: ExternalName, externalName: example.com`, "", "[]"},
		{`clusterIP: 10.0.0.7, clusterIPs: [10.0.0.7, "fd00::7"], ipFamilyPolicy: RequireDualStack`, "",
			"[10.0.0.7 fd00::7]"},
	} {
		_, err := c.put(v, "s", "", `{metadata: {name: s}, spec: {`+
			strings.TrimPrefix(step.spec+`, `+anyPort, ", ")+`}}`)
		if step.err == "" && err != nil || step.err != "" && (err == nil || !strings.HasSuffix(err.Error(), step.err)) {
			t.Errorf("%s: got error %v, want %q", step.spec, err, step.err)
		}
		got := c.addresses("s")
		if fmt.Sprint(got) != step.want || c.Store.Head().Count("/registry/ipaddresses/", "") != len(got) {
			t.Errorf("%s: got addresses %q, want %s; got %d IPAddresses", step.spec, got, step.want,
				c.Store.Head().Count("/registry/ipaddresses/", ""))
		}
	}
}
