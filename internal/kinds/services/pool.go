// Package services allocates the addresses and node ports of Services.
package services

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const servicePrefix = "/registry/services/specs/"

// DefaultRange returns kube-apiserver's default range of cluster IPs, 10.0.0.0/24.
func DefaultRange() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 24) }

// DefaultNodePorts returns kube-apiserver's default range of node ports, 30000-32767.
func DefaultNodePorts() utilnet.PortRange { return utilnet.PortRange{Base: 30000, Size: 2768} }

// ServerIP returns the cluster IP of the API server, which is the first address in a range of cluster IPs.
func ServerIP(r netip.Prefix) string { return r.Masked().Addr().Next().String() }

var (
	errFull      = errors.New("range is full")
	errTakenIP   = errors.New("provided IP is already allocated")
	errOutside   = errors.New("the provided network does not match the current range")
	errTakenPort = errors.New("provided port is already allocated")
)

// Pool allocates the addresses and node ports of Services.
type Pool struct {
	head   func() *storage.Snapshot
	ranges []netip.Prefix // one for each configured family
	ports  utilnet.PortRange
}

// NewPool returns a Pool for the stored objects that head returns. Without ranges, it uses DefaultRange. The zero value
// of ports means DefaultNodePorts.
func NewPool(head func() *storage.Snapshot, ranges []netip.Prefix, ports utilnet.PortRange) Pool {
	p := Pool{head, ranges, ports}
	if len(p.ranges) == 0 {
		p.ranges = []netip.Prefix{DefaultRange()}
	}
	if p.ports.Size == 0 {
		p.ports = DefaultNodePorts()
	}
	return p
}

func (p Pool) has(family core.IPFamily) bool {
	return slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool { return familyOf(r.Addr().String()) == family })
}

// nodePortSet is a set of node ports. The allocated ports are recorded only in the stored Services. When a Service
// with a new node port is committed, a commit guard therefore checks that no other Service has changed.
type nodePortSet map[int32]bool

func (t nodePortSet) add(s *corev1.ServiceSpec) {
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			t[p.NodePort] = true
		}
	}
	if s.HealthCheckNodePort != 0 {
		t[s.HealthCheckNodePort] = true
	}
}

func (t nodePortSet) addStored(rec *storage.Record) {
	if !bytes.Contains(rec.Value, []byte(`odePort":`)) {
		return // most Services have no node ports
	}
	raw, _ := object.Field(rec.Value, "spec")
	var spec corev1.ServiceSpec
	if json.Unmarshal(raw, &spec) == nil {
		t.add(&spec)
	}
}

// specOf returns the spec of a Service as its Go type. v is a tree of that type.
func specOf(v any) *corev1.ServiceSpec {
	spec := new(corev1.ServiceSpec)
	if t, ok := v.(object.Tree); ok {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(t, spec) // cannot fail for a tree of the type
	}
	return spec
}

// nodePortsOfOthers returns the node ports of all Services except the one at key.
func nodePortsOfOthers(snap *storage.Snapshot, key string) nodePortSet {
	ports := nodePortSet{}
	for rec := range snap.Walk(servicePrefix, "") {
		if rec.Key != key {
			ports.addStored(rec)
		}
	}
	return ports
}

func serviceKey(namespace, name string) string { return servicePrefix + namespace + "/" + name }

// Guards returns commit guards for a Service with new node ports. They fail if another Service acquires one of these
// ports before the commit.
func (p Pool) Guards(_ context.Context, obj object.Tree) []storage.Guard {
	fresh, before := nodePortSet{}, nodePortSet{}
	fresh.add(specOf(object.At(obj, "spec")))
	if len(fresh) == 0 {
		return nil
	}
	snap, key := p.head(), serviceKey(object.Namespace(obj), object.Name(obj))
	if rec := snap.Get(key); rec != nil {
		before.addStored(rec)
	}
	for port := range before {
		delete(fresh, port)
	}
	if len(fresh) == 0 {
		return nil
	}
	others := nodePortsOfOthers(snap, key)
	for port := range fresh {
		if others[port] {
			return []storage.Guard{{Key: servicePrefix, Revision: 1}} // fails, because no such key exists
		}
	}
	return []storage.Guard{{Key: servicePrefix, Prefix: true, Revision: snap.Revision()}}
}
