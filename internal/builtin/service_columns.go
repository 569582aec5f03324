package builtin

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const none = "<none>"

func serviceColumns() []resource.Column {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return []resource.Column{
		nameColumn(),
		pathColumn("Type", doc["type"], "spec", "type"),
		cellColumn("Cluster-IP", doc["clusterIP"], func(t object.Tree) any { return orElse(text(t, "spec", "clusterIP"), none) }),
		cellColumn("External-IP", doc["externalIPs"], externalIPs),
		cellColumn("Port(s)", doc["ports"], servicePorts),
		ageColumn(),
		wide(cellColumn("Selector", doc["selector"], func(t object.Tree) any {
			return labels.FormatLabels(object.StringMap(tree(t, "spec"), "selector"))
		})),
	}
}

// externalIPs is where a Service can be reached from outside.
func externalIPs(t object.Tree) any {
	ips := object.Strings(tree(t, "spec"), "externalIPs")
	switch corev1.ServiceType(text(t, "spec", "type")) {
	case corev1.ServiceTypeExternalName:
		return text(t, "spec", "externalName")
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orElse(strings.Join(ips, ","), none)
	case corev1.ServiceTypeLoadBalancer:
		return orElse(strings.Join(append(loadBalancers(t), ips...), ","), "<pending>")
	}
	return "<unknown>"
}

// loadBalancers is sorted, and each is there once.
func loadBalancers(t object.Tree) []string {
	var all []string
	for _, i := range list(t, "status", "loadBalancer", "ingress") {
		in, _ := i.(object.Tree)
		if address := orElse(text(in, "ip"), text(in, "hostname")); address != "" {
			all = append(all, address)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func servicePorts(t object.Tree) any {
	var all []string
	for _, p := range list(t, "spec", "ports") {
		port, _ := p.(object.Tree)
		cell := fmt.Sprintf("%d/%s", number(port, "port"), text(port, "protocol"))
		if n := number(port, "nodePort"); n > 0 {
			cell = fmt.Sprintf("%d:%d/%s", number(port, "port"), n, text(port, "protocol"))
		}
		all = append(all, cell)
	}
	return orElse(strings.Join(all, ","), none)
}

func endpointsColumns() []resource.Column {
	return []resource.Column{nameColumn(), cellColumn("Endpoints", corev1.Endpoints{}.SwaggerDoc()["subsets"], endpointsCell), ageColumn()}
}

const shown = 3 // entries of a list; of the others only the number is

// some is the first of all, and how many more there are.
func some(all []string, empty string) string {
	if len(all) > shown {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:shown], ","), len(all)-shown)
	}
	return orElse(strings.Join(all, ","), empty)
}

func endpointsCell(t object.Tree) any {
	var all []string
	for _, s := range goForm[corev1.Endpoints](t).Subsets {
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 { // of a headless Service
				all = append(all, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	if len(list(t, "subsets")) == 0 {
		return none
	}
	return some(all, "")
}

func endpointSliceColumns() []resource.Column {
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	return []resource.Column{
		nameColumn(),
		pathColumn("AddressType", doc["addressType"], "addressType"),
		cellColumn("Ports", doc["ports"], slicePorts),
		cellColumn("Endpoints", doc["endpoints"], func(t object.Tree) any {
			var all []string
			for _, e := range list(t, "endpoints") {
				endpoint, _ := e.(object.Tree)
				all = append(all, object.Strings(endpoint, "addresses")...)
			}
			return some(all, "<unset>")
		}),
		ageColumn(),
	}
}

func slicePorts(t object.Tree) any {
	var all []string
	for _, p := range list(t, "ports") {
		port, _ := p.(object.Tree)
		cell := "*"
		if port["port"] != nil {
			cell = strconv.FormatInt(number(port, "port"), 10)
		} else if name, ok := port["name"].(string); ok {
			cell = name
		}
		all = append(all, cell)
	}
	return some(all, "<unset>")
}
