package builtin

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Endpoints and EndpointSlice: where the traffic of a Service goes.

func endpoints() kind {
	e := at(corev1.SchemeGroupVersion, &corev1.Endpoints{}, &corev1.EndpointsList{})
	e.deprecated = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
	return kind{
		endpoint: e,
		plural:   "endpoints", short: "ep", prefix: "/registry/services/endpoints/",
		createOnUpdate: true,
		columns:        endpointsColumns,
		behavior:       resource.Behavior{Default: defaultEndpoints, Validate: validateEndpoints, Warnings: endpointsWarnings},
	}
}

func endpointSlices() kind {
	e := at(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	return kind{
		endpoint: e,
		plural:   "endpointslices",
		columns:  endpointSliceColumns,
		behavior: resource.Behavior{
			Default: defaultEndpointSlice,
			PrepareCreate: func(_ context.Context, obj object.Tree) error {
				object.SetGeneration(obj, 1)
				dropTopology(obj)
				return nil
			},
			PrepareUpdate: prepareEndpointSlice,
			Validate:      validateEndpointSlice,
			ValidateUpdate: func(obj, old object.Tree, _ string) field.ErrorList {
				return apivalidation.ValidateImmutableField(obj["addressType"], old["addressType"], field.NewPath("addressType"))
			},
			Warnings: endpointSliceWarnings,
		},
	}
}

func defaultEndpoints(obj object.Tree) {
	for _, s := range list(obj, "subsets") {
		subset, _ := s.(object.Tree)
		for _, p := range list(subset, "ports") {
			if port, _ := p.(object.Tree); port != nil && text(port, "protocol") == "" {
				port["protocol"] = string(corev1.ProtocolTCP)
			}
		}
	}
}

func defaultEndpointSlice(obj object.Tree) {
	for _, p := range list(obj, "ports") {
		port, _ := p.(object.Tree)
		if port == nil {
			continue
		}
		if port["name"] == nil {
			port["name"] = ""
		}
		if port["protocol"] == nil {
			port["protocol"] = string(corev1.ProtocolTCP)
		}
	}
}

// prepareEndpointSlice counts changes of labels too: they say which Service the slice is of.
func prepareEndpointSlice(_ context.Context, obj, old object.Tree, _ string) error {
	dropTopology(obj)
	changed := !object.Equal(orNil(tree(obj, "metadata", "labels")), orNil(tree(old, "metadata", "labels")))
	for _, name := range []string{"addressType", "endpoints", "ports"} {
		changed = changed || !object.Equal(obj[name], old[name])
	}
	if changed {
		object.SetGeneration(obj, object.Generation(old)+1)
	}
	return nil
}

// dropTopology: v1 has the field for objects that were written as v1beta1, and there are none.
func dropTopology(obj object.Tree) {
	for _, e := range list(obj, "endpoints") {
		endpoint, _ := e.(object.Tree)
		delete(endpoint, "deprecatedTopology")
	}
}

func endpointsWarnings(obj, _ object.Tree) []string {
	var warnings []string
	warn := func(path *field.Path, addresses []corev1.EndpointAddress) {
		for i, a := range addresses {
			warnings = append(warnings, validation.GetWarningsForIP(path.Index(i).Child("ip"), a.IP)...)
		}
	}
	for i, s := range goForm[corev1.Endpoints](obj).Subsets {
		path := field.NewPath("subsets").Index(i)
		warn(path.Child("addresses"), s.Addresses)
		warn(path.Child("notReadyAddresses"), s.NotReadyAddresses)
	}
	return warnings
}

func endpointSliceWarnings(obj, old object.Tree) []string {
	slice := goForm[discoveryv1.EndpointSlice](obj)
	if slice.AddressType == discoveryv1.AddressTypeFQDN {
		if old != nil {
			return nil
		}
		return []string{"spec.addressType: FQDN endpoints are deprecated"}
	}
	var warnings []string
	for i, e := range slice.Endpoints {
		warnings = append(warnings, ipWarnings(field.NewPath("endpoints").Index(i).Child("addresses"), e.Addresses)...)
	}
	return warnings
}

func validateEndpoints(obj object.Tree) (errs field.ErrorList) {
	for i, s := range goForm[corev1.Endpoints](obj).Subsets {
		path := field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, validateEndpointAddress(&s.Addresses[j], path.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs, validateEndpointAddress(&s.NotReadyAddresses[j], path.Child("notReadyAddresses").Index(j))...)
		}
		for j := range s.Ports {
			errs = append(errs, validateEndpointPort(&s.Ports[j], len(s.Ports) > 1, path.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointAddress(a *corev1.EndpointAddress, path *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(path.Child("ip"), a.IP, true, nil)
	if a.Hostname != "" {
		errs = append(errs, invalid(path.Child("hostname"), a.Hostname, validation.IsDNS1123Label(a.Hostname))...)
	}
	errs = append(errs, validateNodeName(a.NodeName, path)...)
	return append(errs, validateReachableIP(a.IP, path.Child("ip"))...)
}

func validateNodeName(name *string, path *field.Path) field.ErrorList {
	if name == nil {
		return nil
	}
	return invalid(path.Child("nodeName"), *name, apivalidation.NameIsDNSSubdomain(*name, false))
}

func validateEndpointPort(p *corev1.EndpointPort, needsName bool, path *field.Path) (errs field.ErrorList) {
	switch {
	case p.Name != "":
		errs = invalid(path.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))
	case needsName:
		errs = field.ErrorList{field.Required(path.Child("name"), "")}
	}
	errs = append(errs, invalid(path.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
	errs = append(errs, oneOf(path.Child("protocol"), p.Protocol, protocols()...)...)
	return append(errs, validateAppProtocol(p.AppProtocol, path)...)
}

const (
	maxEndpoints         = 1000
	maxEndpointAddresses = 100
	maxEndpointPorts     = 20000
	maxHints             = 8
)

func validateEndpointSlice(obj object.Tree) field.ErrorList {
	slice := goForm[discoveryv1.EndpointSlice](obj)
	errs := oneOf(field.NewPath("addressType"), slice.AddressType, discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	if path := field.NewPath("endpoints"); len(slice.Endpoints) > maxEndpoints {
		errs = append(errs, field.TooMany(path, len(slice.Endpoints), maxEndpoints))
	} else {
		for i := range slice.Endpoints {
			errs = append(errs, validateSliceEndpoint(&slice.Endpoints[i], slice.AddressType, path.Index(i))...)
		}
	}
	return append(errs, validateSlicePorts(slice.Ports, field.NewPath("ports"))...)
}

func validateSliceEndpoint(e *discoveryv1.Endpoint, addressType discoveryv1.AddressType, path *field.Path) (errs field.ErrorList) {
	at := path.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at, "must contain at least 1 address"))
	case n > maxEndpointAddresses:
		errs = append(errs, field.TooMany(at, n, maxEndpointAddresses))
	}
	for i, a := range e.Addresses {
		errs = append(errs, validateSliceAddress(a, addressType, at.Index(i))...)
	}
	errs = append(errs, validateNodeName(e.NodeName, path)...)
	if e.Hostname != nil {
		errs = append(errs, invalid(path.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
	}
	if e.Hints == nil {
		return errs
	}
	zones, nodes := []string{}, []string{}
	for _, z := range e.Hints.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range e.Hints.ForNodes {
		nodes = append(nodes, n.Name)
	}
	errs = append(errs, validateHints(zones, validation.IsValidLabelValue, path.Child("hints", "forZones"))...)
	return append(errs, validateHints(nodes, validation.IsDNS1123Subdomain, path.Child("hints", "forNodes"))...)
}

func validateSliceAddress(a string, addressType discoveryv1.AddressType, path *field.Path) (errs field.ErrorList) {
	switch addressType {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, a)
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	default:
		return nil
	}
	if errs := validation.IsValidIPForLegacyField(path, a, true, nil); len(errs) > 0 {
		return errs
	}
	if isIPv6(a) != (addressType == discoveryv1.AddressTypeIPv6) {
		errs = append(errs, field.Invalid(path, a, fmt.Sprintf("must be an %s address", addressType)))
	}
	return append(errs, validateReachableIP(a, path)...)
}

func validateHints(names []string, rule func(string) []string, path *field.Path) (errs field.ErrorList) {
	if len(names) > maxHints {
		return field.ErrorList{field.TooMany(path, len(names), maxHints)}
	}
	for i, name := range names {
		at := path.Index(i).Child("name")
		if slices.Contains(names[:i], name) {
			errs = append(errs, field.Duplicate(at, name))
		}
		errs = append(errs, invalid(at, name, rule(name))...)
	}
	return errs
}

func validateSlicePorts(ports []discoveryv1.EndpointPort, path *field.Path) (errs field.ErrorList) {
	if len(ports) > maxEndpointPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxEndpointPorts)}
	}
	names := map[string]bool{}
	for i, p := range ports {
		at, name := path.Index(i), *p.Name // has a default
		if name != "" {
			errs = append(errs, invalid(at.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		errs = append(errs, supported(at.Child("protocol"), p.Protocol, protocols()...)...)
		errs = append(errs, validateAppProtocol(p.AppProtocol, at)...)
	}
	return errs
}
