package kinds

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/servicecidr"
	netutils "k8s.io/utils/net"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// An address is taken as long as there is an IPAddress of its name. That of a Service's comes and goes in the commits of the
// Service, so that nobody can be given it twice.

const (
	addressPrefix = "/registry/ipaddresses/"
	addressManager     = "ipallocator.k8s.io" // who manages those of Services
)

// relatedWrites makes the IPAddresses of what a Service comes to hold, and deletes those of what it no longer holds.
func (p pool) relatedWrites(was *storage.Record, obj object.Tree) (all []resource.RelatedWrite) {
	snap := p.head()
	before, after := storedIPs(was), ips(object.Strings(tree(obj, "spec"), "clusterIPs"))
	change := func(ip string) resource.RelatedWrite {
		return resource.RelatedWrite{Endpoint: resource.Endpoint{Resource: networkingv1.SchemeGroupVersion.WithResource("ipaddresses")}, Name: ip}
	}
	for _, ip := range before {
		if rec := snap.Get(addressPrefix + ip); rec != nil && !slices.Contains(after, ip) && ownerKey(rec) == was.Key {
			c := change(ip)
			c.Delete = true
			all = append(all, c)
		}
	}
	for _, ip := range after {
		if !slices.Contains(before, ip) {
			c := change(ip)
			c.Create, _ = resource.ToTree(addressOf(ip, object.Namespace(obj), object.Name(obj))) // it is of the scheme
			all = append(all, c)
		}
	}
	return all
}

// addressOf is the IPAddress of a Service.
func addressOf(ip, namespace, name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: addressManager,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
	}
}

// storedIPs are those of a stored Service; none where there is none.
func storedIPs(rec *storage.Record) []string {
	if rec == nil {
		return nil
	}
	raw, _ := object.Field(rec.Value, "spec", "clusterIPs")
	var all []string
	_ = json.Unmarshal(raw, &all) // an ExternalName has none
	return ips(all)
}

// ips are cluster IPs as IPAddresses are named.
func ips(clusterIPs []string) (all []string) {
	for _, text := range clusterIPs {
		if addr := parseIP(text); addr.IsValid() {
			all = append(all, addr.String())
		}
	}
	return all
}

// parseIP reads what old clients write, too; of what is none it makes nothing.
func parseIP(text string) netip.Addr { return servicecidr.IPToAddr(netutils.ParseIPSloppy(text)) }

// ownerKey is the key of the Service that an IPAddress is of; "" if it is of none.
func ownerKey(rec *storage.Record) string {
	raw, _ := object.Field(rec.Value, "spec", "parentRef")
	var ref networkingv1.ParentReference
	if json.Unmarshal(raw, &ref) != nil || ref.Group != corev1.GroupName || ref.Resource != "services" {
		return ""
	}
	return serviceKey(ref.Namespace, ref.Name)
}

// RepairAddresses says which IPAddresses are to be deleted, since no Service holds what they say, and which are to be made
// then. There are such where somebody has deleted one, and after an older server: it had none.
func RepairAddresses(snap *storage.Snapshot) (wrong []string, missing []*networkingv1.IPAddress) {
	held := map[string][]string{} // keys of Services
	for rec := range snap.Walk(servicePrefix, "") {
		for _, ip := range storedIPs(rec) {
			held[ip] = append(held[ip], rec.Key)
		}
	}
	for rec := range snap.Walk(addressPrefix, "") {
		ip := rec.Key[len(addressPrefix):]
		services, known := held[ip]
		by, _ := object.Field(rec.Value, "metadata", "labels", networkingv1.LabelManagedBy)
		switch {
		case slices.Contains(services, ownerKey(rec)):
			delete(held, ip)
		case known || string(by) == `"`+addressManager+`"`:
			wrong = append(wrong, ip)
		}
	}
	for ip, services := range held {
		namespace, name, _ := strings.Cut(services[0][len(servicePrefix):], "/")
		missing = append(missing, addressOf(ip, namespace, name))
	}
	return wrong, missing
}
