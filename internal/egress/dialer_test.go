package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// CNV-074, KON-011: what a Dialer dials, it dials by its functions, which may be tunnels: hosts of URLs as they are named, by the control
// plane's, and Services where they are, nodes and Pods, by the cluster's. An address is judged before.
func TestDialer(t *testing.T) {
	var dialled string
	by := func(way string) func(context.Context, string, string) (net.Conn, error) {
		return func(_ context.Context, network, address string) (net.Conn, error) {
			dialled = way + network + " " + address
			return nil, errors.New("dialled")
		}
	}
	d := &Dialer{
		Cluster: by(""), ControlPlane: by("control plane: "),
		Resolve: func(_ context.Context, namespace, name string, port int32) (string, error) {
			if name == "none" {
				return "", errors.New("none")
			}
			return map[string]string{"v4": "10.1.2.3:8443", "v6": "[2001:db8::1]:8443", "out": "localhost:443", "self": "127.0.0.1:6443", "mapped": "[::ffff:127.0.0.1]:6443", "link": "169.254.169.254:80", "any": "0.0.0.0:1", "many": "224.0.0.1:1"}[name], nil
		},
		Refuse: RefuseSpecial,
	}
	for _, c := range []struct{ service, want, err string }{
		{"v4", "tcp 10.1.2.3:8443", "dialled"},
		{"v6", "tcp [2001:db8::1]:8443", "dialled"},
		{"out", "tcp localhost:443", "dialled"},
		{"none", "", "none"},
		{"self", "", "127.0.0.1 cannot be the address of an endpoint"},
		{"mapped", "", "cannot be"},
		{"link", "", "cannot be"},
		{"any", "", "cannot be"},
		{"many", "", "cannot be"},
	} {
		dialled = ""
		_, err := d.DialService(t.Context(), Service{"n", c.service, 443})
		if dialled != c.want || err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: dialled %q: %v", c.service, dialled, err)
		}
	}
	for want, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"control plane: tcp 127.0.0.1:1": d.DialContext,
		"tcp 127.0.0.1:1":                d.DialKubelet,
		"":                               d.DialOther,
	} {
		dialled = ""
		if _, err := dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil || dialled != want {
			t.Errorf("dialled %q, want %q: %v", dialled, want, err)
		}
	}
	if _, err := new(Dialer).DialService(t.Context(), Service{"n", "s", 1}); err == nil || !strings.Contains(err.Error(), "n/s") {
		t.Errorf("without a way to find Services: %v", err)
	}
	if RefuseSpecial(netip.MustParseAddr("192.168.0.1")) != nil {
		t.Error("a private address is refused")
	}
}

// A dial ends in time, and with who asked for it.
func TestDialsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Dialer{ControlPlane: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		for _, c := range []struct{ patience, want time.Duration }{{time.Hour, dialTimeout}, {time.Second, time.Second}} {
			ctx, cancel := context.WithTimeout(t.Context(), c.patience)
			began := time.Now()
			if _, err := d.DialContext(ctx, "tcp", "192.0.2.1:1"); err == nil || time.Since(began) != c.want {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			cancel()
		}
	})
}

// CNV-040 CNV-042: a Service is called by its own name, over HTTP/1.1, at an endpoint that is found for each connection; and from
// the next request on elsewhere once its endpoints have changed.
func TestServiceIsConnectedToAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newDestination(t, "s.n.svc", says(ok))
		fresh := newDestination(t, "s.n.svc", says(ok))
		fresh.certificate = old.certificate
		var generation atomic.Uint64
		var broke atomic.Int64
		dialer := &Dialer{
			Resolve: func(_ context.Context, namespace, name string, port int32) (string, error) {
				return map[bool]string{true: "old:1", false: "fresh:1"}[generation.Load() == 0], nil
			},
			Cluster: func(ctx context.Context, network, address string) (net.Conn, error) {
				return map[string]*destination{"old:1": old, "fresh:1": fresh}[address].dial(ctx, network, address)
			},
			Generation: func(string, string) func() uint64 { return generation.Load },
		}
		transport, err := dialer.NewTransport(Options{Service: &Service{"n", "s", 443}, CABundle: old.ca, MaxBytes: 1000, Broke: func() { broke.Add(1) }})
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
			t.Error("the connection to the old endpoint is kept")
		}
		if old.dials.Load() != 1 || fresh.dials.Load() != 1 || old.requests.Load() != 3 || fresh.requests.Load() != 3 || broke.Load() != 0 {
			t.Errorf("%d requests to the old endpoint, %d to the new one; %d connections broke", old.requests.Load(), fresh.requests.Load(), broke.Load())
		}
	})
}
