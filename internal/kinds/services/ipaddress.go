package services

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

// An address is allocated while an IPAddress with this name exists. The commit of a Service also creates and deletes
// the IPAddresses of the Service, so no address can be allocated twice.

const (
	addressPrefix  = "/registry/ipaddresses/"
	addressManager = "ipallocator.k8s.io" // the IPAddresses of Services have this value in the label managed-by
)

// RelatedWrites creates IPAddresses for the new addresses of a Service, and deletes those of its released addresses.
func (p Pool) RelatedWrites(old *storage.Record, obj object.Tree) (all []resource.RelatedWrite) {
	snap := p.head()
	before, after := storedIPs(old), ips(object.Strings(object.TreeAt(obj, "spec"), "clusterIPs"))
	change := func(ip string) resource.RelatedWrite {
		return resource.RelatedWrite{
			Endpoint: resource.Endpoint{Resource: networkingv1.SchemeGroupVersion.WithResource("ipaddresses")},
			Name:     ip,
		}
	}
	for _, ip := range before {
		if rec := snap.Get(addressPrefix + ip); rec != nil && !slices.Contains(after, ip) && ownerKey(rec) == old.Key {
			c := change(ip)
			c.Delete = true
			all = append(all, c)
		}
	}
	for _, ip := range after {
		if !slices.Contains(before, ip) {
			c := change(ip)
			// cannot fail, because the scheme has the type
			c.Create, _ = resource.ToTree(addressOf(ip, object.Namespace(obj), object.Name(obj)))
			all = append(all, c)
		}
	}
	return all
}

// addressOf returns the IPAddress for an address of a Service.
func addressOf(ip, namespace, name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{Name: ip, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: addressManager,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services",
			Namespace: namespace, Name: name}},
	}
}

// storedIPs returns the cluster IPs of a stored Service. rec may be nil.
func storedIPs(rec *storage.Record) []string {
	if rec == nil {
		return nil
	}
	raw, _ := object.Field(rec.Value, "spec", "clusterIPs")
	var all []string
	_ = json.Unmarshal(raw, &all) // fails for an ExternalName Service, which has no cluster IPs
	return ips(all)
}

// ips returns the names of the IPAddresses for cluster IPs.
func ips(clusterIPs []string) (all []string) {
	for _, text := range clusterIPs {
		if addr := parseIP(text); addr.IsValid() {
			all = append(all, addr.String())
		}
	}
	return all
}

// parseIP parses an address. It accepts leading zeros, which old clients write. The result for an invalid address is
// the zero Addr.
func parseIP(text string) netip.Addr { return servicecidr.IPToAddr(netutils.ParseIPSloppy(text)) }

// ownerKey returns the storage key of the Service that an IPAddress belongs to. It returns "" if the parent is not a
// Service.
func ownerKey(rec *storage.Record) string {
	raw, _ := object.Field(rec.Value, "spec", "parentRef")
	var ref networkingv1.ParentReference
	if json.Unmarshal(raw, &ref) != nil || ref.Group != corev1.GroupName || ref.Resource != "services" {
		return ""
	}
	return serviceKey(ref.Namespace, ref.Name)
}

// RepairAddresses compares the IPAddresses with the cluster IPs of Services. wrong contains the names of IPAddresses
// that must be deleted because their Service does not have the address. missing contains the IPAddresses that must be
// created afterwards. IPAddresses are missing if a client has deleted them, or if an older server wrote the Services,
// which created no IPAddresses.
func RepairAddresses(snap *storage.Snapshot) (wrong []string, missing []*networkingv1.IPAddress) {
	owners := map[string][]string{} // maps each address to the keys of the Services that have it
	for rec := range snap.Walk(servicePrefix, "") {
		for _, ip := range storedIPs(rec) {
			owners[ip] = append(owners[ip], rec.Key)
		}
	}
	for rec := range snap.Walk(addressPrefix, "") {
		ip := rec.Key[len(addressPrefix):]
		services, known := owners[ip]
		manager, _ := object.Field(rec.Value, "metadata", "labels", networkingv1.LabelManagedBy)
		switch {
		case slices.Contains(services, ownerKey(rec)):
			delete(owners, ip)
		case known || string(manager) == `"`+addressManager+`"`:
			wrong = append(wrong, ip)
		}
	}
	for ip, services := range owners {
		namespace, name, _ := strings.Cut(services[0][len(servicePrefix):], "/")
		missing = append(missing, addressOf(ip, namespace, name))
	}
	return wrong, missing
}
