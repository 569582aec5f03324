package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// The addresses of Services. What is taken is what the stored Services say: there is no other
// book to keep in step. The commit of a Service that takes something new is guarded on all Services.

const servicePrefix = "/registry/services/specs/"

// DefaultServiceRange is kube-apiserver's.
func DefaultServiceRange() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 24) }

// DefaultNodePorts are kube-apiserver's.
func DefaultNodePorts() utilnet.PortRange { return utilnet.PortRange{Base: 30000, Size: 2768} }

// ServiceIP is the address in the range of Services that the API server itself is known by: the first.
func ServiceIP(r netip.Prefix) string { return r.Masked().Addr().Next().String() }

var (
	errFull      = errors.New("range is full")
	errTakenIP   = errors.New("provided IP is already allocated")
	errOutsideIP = errors.New("the provided network does not match the current range")
	errTakenPort = errors.New("provided port is already allocated")
)

// pool is where the addresses of Services come from.
type pool struct {
	head  func() *storage.Snapshot // nil: there is no other Service
	ips   netip.Prefix
	ports utilnet.PortRange
}

func newPool(c Config) pool {
	p := pool{head: c.Head, ips: c.ServiceRange.Masked(), ports: c.NodePorts}
	if !p.ips.IsValid() {
		p.ips = DefaultServiceRange()
	}
	if p.ports.Size == 0 {
		p.ports = DefaultNodePorts()
	}
	return p
}

// taken is what Services hold.
type taken struct {
	ips   map[string]bool
	ports map[int32]bool
}

func newTaken() taken { return taken{ips: map[string]bool{}, ports: map[int32]bool{}} }

func (t taken) add(s *corev1.ServiceSpec) {
	for _, ip := range s.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			t.ips[ip] = true
		}
	}
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			t.ports[p.NodePort] = true
		}
	}
	if s.HealthCheckNodePort != 0 {
		t.ports[s.HealthCheckNodePort] = true
	}
}

func (t taken) addStored(rec *storage.Record) {
	raw, _ := object.Field(rec.Value, "spec")
	var spec corev1.ServiceSpec
	if json.Unmarshal(raw, &spec) == nil {
		t.add(&spec)
	}
}

// specOf is the Go form of the spec of a Service that is about to be stored.
func specOf(v any) *corev1.ServiceSpec {
	spec := new(corev1.ServiceSpec)
	if t, ok := v.(object.Tree); ok {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(t, spec) // it came out of the type
	}
	return spec
}

// heldByOthers is what all Services hold but the one at key.
func heldByOthers(snap *storage.Snapshot, key string) taken {
	held := newTaken()
	for rec := range snap.Walk(servicePrefix, "") {
		if rec.Key != key {
			held.addStored(rec)
		}
	}
	return held
}

func serviceKey(namespace, name string) string { return servicePrefix + namespace + "/" + name }

// guards lets nobody else take what obj takes beyond what it has already.
func (p pool) guards(_ context.Context, obj object.Tree) []storage.Guard {
	if p.head == nil {
		return nil
	}
	snap, key := p.head(), serviceKey(object.Namespace(obj), object.Name(obj))
	fresh, before := newTaken(), newTaken()
	fresh.add(specOf(value(obj, "spec")))
	if rec := snap.Get(key); rec != nil {
		before.addStored(rec)
	}
	for ip := range before.ips {
		delete(fresh.ips, ip)
	}
	for port := range before.ports {
		delete(fresh.ports, port)
	}
	if len(fresh.ips)+len(fresh.ports) == 0 {
		return nil
	}
	if fresh.meets(heldByOthers(snap, key)) {
		return []storage.Guard{stale}
	}
	return []storage.Guard{{Key: servicePrefix, Prefix: true, Revision: snap.Revision()}}
}

func (t taken) meets(other taken) bool {
	for ip := range t.ips {
		if other.ips[ip] {
			return true
		}
	}
	for port := range t.ports {
		if other.ports[port] {
			return true
		}
	}
	return false
}
