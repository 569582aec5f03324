package specialip

import (
	"strings"
	"testing"
)

// spellings maps hosts to a part of the error of Check. "" means that Check accepts the address.
var spellings = map[string]string{
	// Loopback.
	"127.0.0.1": "loopback", "127.255.255.254": "loopback", "::1": "loopback", "0:0:0:0:0:0:0:1": "loopback",
	"[::1]":     "loopback",
	"localhost": "loopback", "localhost.": "loopback", "LocalHost": "loopback", "a.b.localhost": "loopback",
	"a.localhost.":          "loopback",
	"localhost.localdomain": "loopback", "ip6-localhost": "loopback",
	// The notations of inet_aton.
	"2130706433": "loopback", "017700000001": "loopback", "0x7f000001": "loopback", "0177.0.0.1": "loopback",
	"0x7f.1": "loopback",
	"127.1":  "loopback", "127.0.1": "loopback", "0X7F.0.0x0.01": "loopback", "127.1.": "loopback",
	"2852039166": "link-local",
	"0xa9fea9fe": "link-local", "0251.0376.0251.0376": "link-local", "0": "unspecified", "0x0": "unspecified",
	"1": "unspecified",
	// IPv4 in IPv6.
	"::ffff:127.0.0.1": "loopback", "::ffff:7f00:1": "loopback", "::127.0.0.1": "embeds 127.0.0.1",
	"::ffff:0:127.0.0.1": "embeds 127.0.0.1",
	"64:ff9b::7f00:1":    "embeds 127.0.0.1", "64:ff9b::169.254.169.254": "embeds 169.254.169.254",
	"64:ff9b:1:7f00:0:100::": "embeds 127.0.0.1",
	"64:ff9b:1::7f00:1":      "embeds", "2002:7f00:1::": "embeds 127.0.0.1",
	"2002:a9fe:a9fe::1": "embeds 169.254.169.254",
	"2001:0:7f00:1::1":  "embeds 127.0.0.1", "2001:0:102:304:0:0:80ff:fffe": "embeds 127.0.0.1",
	"2001:db8::5efe:127.0.0.1":  "embeds 127.0.0.1",
	"2001:db8::200:5efe:7f00:1": "embeds 127.0.0.1", "::ffff:100.100.100.200": "metadata",
	"64:ff9b::6464:64c8": "metadata",
	// Unspecified, link-local, multicast, broadcast.
	"": "unspecified", "0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "::": "unspecified",
	"::ffff:0.0.0.0":  "unspecified",
	"169.254.169.254": "link-local", "169.254.170.2": "link-local", "fe80::1": "link-local",
	"fe80::1%eth0": "link-local", "fe80::a9fe:a9fe%1": "link-local",
	"224.0.0.1": "multicast", "239.255.255.255": "multicast", "ff02::1": "multicast", "ff02::1%eth0": "multicast",
	"255.255.255.255": "not a unicast",
	// Metadata services.
	"100.100.100.200": "metadata", "168.63.129.16": "metadata", "192.0.0.192": "metadata", "fd00:ec2::254": "metadata",
	"fd00:ec2:0::0254":   "metadata",
	"fd00:ec2::254%eth0": "metadata", "fd20:ce::254": "metadata", "fd00:c1::a9fe:a9fe": "metadata",
	"fd00:42::42":              "metadata",
	"metadata.google.internal": "link-local", "metadata.google.internal.": "link-local", "instance-data": "link-local",
	"1684301000": "metadata",
	// Ordinary addresses.
	"10.0.0.1": "", "192.168.1.1": "", "172.16.0.1": "", "100.64.0.1": "", "203.0.113.7": "", "2001:db8::1": "",
	"fd00::1": "", "64:ff9b::a00:1": "",
	"2002:a00:1::1": "", "::ffff:10.0.0.1": "", "10.1": "", "167772161": "", "240.0.0.1": "",
}

// TestSpellings checks that Check rejects each special address in each spelling that Parse accepts, and no other
// address.
func TestSpellings(t *testing.T) {
	for host, want := range spellings {
		addr, ok := Parse(host)
		if !ok {
			t.Errorf("%q is not parsed as an address", host)
			continue
		}
		switch err := Check(addr); {
		case want == "" && err != nil:
			t.Errorf("%q: %v", host, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got error %v, want %q", host, err, want)
		}
	}
}

// TestNamesNeedALookup checks that Parse leaves host names to the DNS resolver.
func TestNamesNeedALookup(t *testing.T) {
	for _, host := range []string{"example.com", "localhost.example.com", "notlocalhost", "1.2.3.4.5", "256.0.0.1",
		"127.0.0.0x", "0b1", "0o1", "1_0", "4294967296", "127..1", "08", "-1", "+1", "a.1"} {
		if addr, ok := Parse(host); ok {
			t.Errorf("%q is parsed as %s", host, addr)
		}
	}
}
