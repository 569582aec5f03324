package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	endpoints "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/apis/core"
)

// service returns the URL of a random Pod behind a port of a Service. id contains the port's number or name.
func (p *Proxy) service(ctx context.Context, namespace, id string) (*url.URL, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if number, err := strconv.ParseInt(port, 10, 64); err == nil {
		if port, err = p.portName(ctx, namespace, name, number); err != nil {
			return nil, err
		}
	}
	var all []*discoveryv1.EndpointSlice
	for raw := range p.config.Slices(namespace, name) {
		slice := &discoveryv1.EndpointSlice{}
		if err := json.Unmarshal(raw, slice); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		all = append(all, slice)
	}
	host, err := endpoints.RandomEndpoint(name, all, port, p.config.Family,
		func(e *discoveryv1.Endpoint) bool { return p.isOfPod(ctx, namespace, e) })
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: scheme, Host: host}, nil
}

// portName returns the name of the port with the given number.
func (p *Proxy) portName(ctx context.Context, namespace, name string, number int64) (string, error) {
	obj, err := p.config.Get(ctx, "services", namespace, name)
	if err != nil {
		return "", err
	}
	all := obj.(*core.Service).Spec.Ports
	i := slices.IndexFunc(all, func(p core.ServicePort) bool { return int64(p.Port) == number })
	if i < 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
	}
	return all[i].Name, nil
}

// isOfPod reports whether an endpoint has an address of the Pod that it refers to. Users that may write EndpointSlices
// must not be able to reach other addresses (CVE-2021-25740).
func (p *Proxy) isOfPod(ctx context.Context, namespace string, e *discoveryv1.Endpoint) bool {
	if e.TargetRef == nil || e.TargetRef.Namespace != namespace || len(e.Addresses) == 0 {
		return false
	}
	obj, err := p.config.Get(ctx, "pods", namespace, e.TargetRef.Name)
	if err != nil {
		return false
	}
	pod, ok := obj.(*core.Pod)
	return ok && slices.ContainsFunc(pod.Status.PodIPs, func(ip core.PodIP) bool { return ip.IP == e.Addresses[0] })
}
