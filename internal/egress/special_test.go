package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trellis-k8s/trellis/internal/fixture/dns"
)

// trap listens at all addresses of this machine. It must not receive connections.
type trap struct {
	port     string
	accepted atomic.Int64
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &trap{port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			s.accepted.Add(1)
			_ = conn.Close()
		}
	}()
	return s
}

// specials lists hosts to which a Dialer must not connect, in many spellings: this machine, its local networks and
// metadata services. The function resolve knows the host names under example.com.
var specials = []string{
	"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0",
	"::", "169.254.169.254",
	"fe80::1%lo", "224.0.0.1", "ff02::1", "100.100.100.200", "fd00:ec2::254", "192.0.0.192", "168.63.129.16",
	"2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0",
	"localhost", "localhost.", "LOCALHOST", "a.localhost", "metadata.google.internal", "",
	"loopback4.example.com", "loopback6.example.com", "mapped.example.com", "link.example.com", "metadata4.example.com",
	"metadata6.example.com", "zero.example.com",
}

// resolve returns a function for withNames that resolves the host names under example.com in specials. The name
// "rebinds.example.com" first resolves to an ordinary address, once for each address family, and then to a
// loopback address.
func resolve(rebound *atomic.Int64) func(string) netip.Addr {
	return func(name string) netip.Addr {
		if name == "rebinds.example.com." {
			if rebound.Add(1) <= 2 {
				return netip.MustParseAddr("192.0.2.1")
			}
			return netip.MustParseAddr("127.0.0.1")
		}
		text, known := map[string]string{
			"loopback4.example.com.": "127.0.0.1", "loopback6.example.com.": "::1",
			"mapped.example.com.": "::ffff:127.0.0.1", "link.example.com.": "169.254.169.254",
			"metadata4.example.com.": "100.100.100.200", "metadata6.example.com.": "fd00:ec2::254",
			"zero.example.com.": "0.0.0.0",
		}[name]
		if !known {
			return netip.Addr{}
		}
		return netip.MustParseAddr(text)
	}
}

// withNames makes the process's DNS resolver call lookup until the test ends.
func withNames(t *testing.T, lookup func(string) netip.Addr) {
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = dns.Resolver(lookup)
}

// TestSpecialAddresses checks that no connection to a Service, a node or a Pod reaches a special address, in any
// spelling. If a host name is dialed, the address to which it resolves at that moment is checked.
func TestSpecialAddresses(t *testing.T) {
	trap, rebound := newTrap(t), &atomic.Int64{}
	withNames(t, resolve(rebound))
	for _, host := range append(specials, "rebinds.example.com") {
		address := net.JoinHostPort(host, trap.port)
		d := &Dialer{Resolve: func(context.Context, string, string, int32) (string, error) { return address, nil }}
		for name, dial := range map[string]func() (net.Conn, error){
			"service": func() (net.Conn, error) { return d.DialService(t.Context(), Service{"n", "s", 443}) },
			"endpoint": func() (net.Conn, error) {
				return d.DialEndpoint(t.Context(), Service{"n", "s", 443}, "tcp", address)
			},
			"node": func() (net.Conn, error) { return d.DialNode(t.Context(), "tcp", address) },
		} {
			if host == "rebinds.example.com" {
				rebound.Store(0)
				if addrs, err := net.DefaultResolver.LookupHost(t.Context(), host); err != nil ||
					addrs[0] != "192.0.2.1" {
					t.Fatalf("first lookup: %q, %v", addrs, err)
				}
			}
			if _, err := dial(); err == nil || !strings.Contains(err.Error(), "cannot connect to ") {
				t.Errorf("%s at %q: %v", name, host, err)
			}
		}
	}
	if n := trap.accepted.Load(); n > 0 {
		t.Errorf("%d connections reached this machine", n)
	}
}

// TestSpecialAddressesThroughTunnel checks that a special address is not dialed through a tunnel, in any spelling.
// Host names under example.com are dialed, because the tunnel resolves them at its far end.
func TestSpecialAddressesThroughTunnel(t *testing.T) {
	var dialed []string
	d := &Dialer{Cluster: func(_ context.Context, _, address string) (net.Conn, error) {
		dialed = append(dialed, address)
		return nil, errDialled
	}}
	for _, host := range specials {
		_, err := d.DialNode(t.Context(), "tcp", net.JoinHostPort(host, "1"))
		if known := strings.HasSuffix(host, ".example.com"); known != errors.Is(err, errDialled) {
			t.Errorf("%q: %v", host, err)
		}
	}
	for _, address := range dialed {
		if !strings.HasSuffix(address, ".example.com:1") {
			t.Errorf("the tunnel was dialed with %s", address)
		}
	}
}

// TestLocalService checks that IsLocal permits loopback addresses for a Service, but no other special addresses. The
// error for another Service contains the flag that permits it.
func TestLocalService(t *testing.T) {
	trap := newTrap(t)
	withNames(t, resolve(nil))
	d := &Dialer{IsLocal: func(namespace, name string) bool { return namespace == "n" && name == "local" }}
	for _, host := range []string{"localhost", "127.0.0.1", "loopback4.example.com", "mapped.example.com"} {
		conn, err := d.DialEndpoint(t.Context(), Service{"n", "local", 443}, "tcp", net.JoinHostPort(host, trap.port))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		_ = conn.Close()
		for _, other := range []Service{{"n", "other", 443}, {"m", "local", 443}} {
			want := "--allow-local-services=" + other.Namespace + "/" + other.Name
			if _, err := d.DialEndpoint(t.Context(), other, "tcp", net.JoinHostPort(host, trap.port)); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v at %s: %v, want %s", other, host, err, want)
			}
		}
	}
	for _, host := range []string{"169.254.169.254", "link.example.com", "metadata6.example.com", "0.0.0.0",
		"fd00:ec2::254", "64:ff9b::7f00:1"} {
		if _, err := d.DialEndpoint(t.Context(), Service{"n", "local", 443}, "tcp",
			net.JoinHostPort(host, trap.port)); err == nil || !strings.Contains(err.Error(), "cannot connect to ") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
