package egress

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestDialer checks that a Dialer calls Cluster for Services, nodes and Pods, and ControlPlane for hosts of URLs.
// Both may be tunnels. CNV-074 KON-011
func TestDialer(t *testing.T) {
	var dialed string
	dialFunc := func(name string) func(context.Context, string, string) (net.Conn, error) {
		return func(_ context.Context, network, address string) (net.Conn, error) {
			dialed = name + network + " " + address
			return nil, errors.New("dialed")
		}
	}
	d := &Dialer{
		Cluster:      dialFunc("cluster: "),
		ControlPlane: dialFunc("control plane: "),
		Resolve: func(_ context.Context, namespace, name string, port int32) (string, error) {
			if name == "none" {
				return "", errors.New("none")
			}
			ip := map[string]string{"v4": "10.1.2.3", "v6": "2001:db8::1", "name": "example.com"}[name]
			return net.JoinHostPort(ip, strconv.Itoa(int(port))), nil
		},
	}
	to := func(service string) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialService(ctx, Service{"n", service, 443})
		}
	}
	for _, c := range []struct {
		dial               func(context.Context, string, string) (net.Conn, error)
		address, want, err string
	}{
		{to("v4"), "", "cluster: tcp 10.1.2.3:443", "dialed"},
		{to("v6"), "", "cluster: tcp [2001:db8::1]:443", "dialed"},
		{to("name"), "", "cluster: tcp example.com:443", "dialed"},
		{to("none"), "", "", "none"},
		{d.DialNode, "10.1.2.3:1", "cluster: tcp 10.1.2.3:1", "dialed"},
		{d.DialContext, "127.0.0.1:1", "control plane: tcp 127.0.0.1:1", "dialed"},
		{new(Dialer).DialContext, "127.0.0.1:0", "", "refused"},
	} {
		dialed = ""
		if _, err := c.dial(t.Context(), "tcp", c.address); dialed != c.want || err == nil ||
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("dialed %q, want %q: %v", dialed, c.want, err)
		}
	}
	if _, err := new(Dialer).DialService(t.Context(), Service{"n", "s", 1}); err == nil ||
		!strings.Contains(err.Error(), "n/s") {
		t.Errorf("without Resolve: %v", err)
	}
}

// TestDialsEnd checks that a dial ends after dialTimeout, or earlier with the caller's context.
func TestDialsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Dialer{ControlPlane: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		for _, c := range []struct{ timeout, want time.Duration }{{time.Hour, dialTimeout},
			{time.Second, time.Second}} {
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			began := time.Now()
			if _, err := d.DialContext(ctx, "tcp", "192.0.2.1:1"); err == nil || time.Since(began) != c.want {
				t.Errorf("dial ended after %s: %v", time.Since(began), err)
			}
			cancel()
		}
	})
}

// TestServiceReconnects checks that a request to a Service uses HTTP/1.1 and the host name of the Service, and
// that each connection resolves an endpoint. Once the endpoints have changed, the next request uses a new
// connection. CNV-040 CNV-042
func TestServiceReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newDestination(t, "s.n.svc", writes(ok))
		fresh := newDestination(t, "s.n.svc", writes(ok))
		fresh.certificate = old.certificate
		var generation atomic.Uint64
		var disconnected atomic.Int64
		dialer := &Dialer{
			Resolve: func(_ context.Context, namespace, name string, port int32) (string, error) {
				return map[bool]string{true: "old:1", false: "fresh:1"}[generation.Load() == 0], nil
			},
			Cluster: func(ctx context.Context, network, address string) (net.Conn, error) {
				return map[string]*destination{"old:1": old, "fresh:1": fresh}[address].dial(ctx, network, address)
			},
			Generation: func(string, string) func() uint64 { return generation.Load },
		}
		transport, err := dialer.NewTransport(Options{Service: &Service{"n", "s", 443}, CABundle: old.ca,
			MaxBytes: 1000, Disconnected: func() { disconnected.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		defer transport.Close()
		client := &caller{t, transport, nil}
		for range 3 {
			if _, _, err := client.call(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		generation.Store(1)
		for range 3 {
			if _, _, err := client.call(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if old.open.Load() != 0 {
			t.Error("the connection to the old endpoint is still open")
		}
		if old.dials.Load() != 1 || fresh.dials.Load() != 1 || old.requests.Load() != 3 || fresh.requests.Load() != 3 ||
			disconnected.Load() != 0 {
			t.Errorf("%d requests to the old endpoint, %d to the new one; %d connections broke", old.requests.Load(),
				fresh.requests.Load(), disconnected.Load())
		}
	})
}
