package selector

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/egressselector"
)

const (
	grpc    = "{name: cluster, connection: {proxyProtocol: GRPC, transport: {" + overUDS + "}}}"
	connect = "{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {" + overUDS + "}}}"
	direct  = "connection: {proxyProtocol: Direct}"
	secured = "tlsConfig: {caBundle: DIR/ca.crt, clientCert: DIR/admin.crt, clientKey: DIR/admin.key}"
)

// TestFile checks that each version of the configuration selects dialers for the cluster, etcd and the control
// plane. Connections to other destinations are direct. Upstream accepts the same files, except those of group
// apiserver.config.k8s.io. KON-002 KON-003 KON-012
func TestFile(t *testing.T) {
	f := newFolder(t)
	for _, c := range []struct{ version, selections, want string }{
		{"apiserver.k8s.io/v1beta1", grpc, "cluster"},
		{"apiserver.k8s.io/v1alpha1", grpc, "cluster"},
		{"apiserver.config.k8s.io/v1beta1", grpc, "cluster"},
		{"apiserver.k8s.io/v1beta1", strings.Replace(grpc, "cluster", "master", 1), "controlplane"},
		{"apiserver.config.k8s.io/v1beta1", strings.Replace(connect, "cluster", "master", 1), "controlplane"},
		{"apiserver.k8s.io/v1beta1", strings.Replace(connect, "cluster", "ControlPlane", 1), "controlplane"},
		{"apiserver.k8s.io/v1beta1", connect + ", " + strings.Replace(connect, "cluster", "etcd", 1), "etcd cluster"},
		{"apiserver.k8s.io/v1beta1", "{name: cluster, " + direct + "}", ""},
		{"apiserver.k8s.io/v1beta1", "", ""},
	} {
		file := f.file("egress.yaml", "apiVersion: "+c.version+
			"\nkind: EgressSelectorConfiguration\negressSelections: ["+c.selections+"]\n")
		s, err := Open(file)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		var got []string
		for _, to := range []egressselector.EgressType{egressselector.ControlPlane, egressselector.Etcd,
			egressselector.Cluster} {
			if s.Dialer(to) != nil {
				got = append(got, to.String())
			}
			configured := s.Dialer(to) != nil || to == egressselector.Cluster &&
				strings.Contains(c.selections, "Direct")
			if dialer, err := s.Lookup(to.AsNetworkContext()); (dialer != nil) != configured || err != nil {
				t.Errorf("%+v: Lookup of %s returns a dialer: %t, %v", c, to, dialer != nil, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: got dialers for %q", c, got)
		}
		upstream, err := egressselector.ReadEgressSelectorConfiguration(file)
		if err == nil {
			err = egressselector.ValidateEgressSelectorConfiguration(upstream).ToAggregate()
		}
		if old := strings.HasPrefix(c.version, "apiserver.config."); (err != nil) != old {
			t.Errorf("%+v: error of upstream: %v", c, err)
		}
	}
	if s, err := Open(""); err != nil || s.Dialer(egressselector.Cluster) != nil {
		t.Errorf("no file: %v", err)
	}
}

// TestMistakes checks that the error lists all mistakes of a file with their fields, and that TCP requires TLS.
// KON-004 KON-007 KON-008 KON-012
func TestMistakes(t *testing.T) {
	f := newFolder(t)
	f.file("bad", "nothing")
	one := func(name, connection string) string { return "{name: " + name + ", connection: {" + connection + "}}" }
	const transport = "egressSelections[0].connection.transport"
	for selections, want := range map[string]string{
		one("node", "proxyProtocol: Direct"):  `egressSelections[0].name: Unsupported value: "node": supported values: "cluster", "controlplane", "etcd"`,
		one("cluster", "proxyProtocol: http"): `egressSelections[0].connection.proxyProtocol: Unsupported value: "http": supported values: "Direct", "GRPC", "HTTPConnect"`,
		one("cluster", ""):                    `egressSelections[0].connection.proxyProtocol: Unsupported value: ""`,
		grpc + ", " + grpc:                    `egressSelections[1].name: Duplicate value: "cluster"`,
		strings.Replace(grpc, "cluster", "master", 1) + ", " +
			strings.Replace(grpc, "cluster", "controlplane",
				1): `egressSelections[1].name: Duplicate value: "controlplane"`,
		one("cluster", "proxyProtocol: GRPC"):                                                                   transport + `: Required value: proxyProtocol GRPC requires uds or tcp`,
		one("cluster", "proxyProtocol: HTTPConnect"):                                                            transport + `: Required value: proxyProtocol HTTPConnect requires uds or tcp`,
		one("cluster", "proxyProtocol: HTTPConnect, transport: {}"):                                             transport + `: Required value`,
		one("cluster", "proxyProtocol: Direct, transport: {}"):                                                  transport + `: Forbidden`,
		one("cluster", "proxyProtocol: GRPC, transport: {uds: {}}"):                                             transport + `.uds.udsName: Required value`,
		one("cluster", "proxyProtocol: GRPC, transport: {uds: {udsName: a}, tcp: {url: 'https://a:1'}}"):        transport + `: Invalid value: "uds, tcp"`,
		one("cluster", "proxyProtocol: HTTPConnect, transport: {uds: {udsName: a}, tcp: {url: 'https://a:1'}}"): transport + `: Invalid value: "uds, tcp"`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'http://a:1'}}"):                            transport + `.tcp.url: Invalid value: "http://a:1": must be https://host:port, because a tunnel over TCP requires TLS`,
		one("cluster", "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a:1'}}"):                     transport + `.tcp.url: Invalid value`,
		one("cluster", "proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://'}}"):                       transport + `.tcp.url: Invalid value`,
		one("cluster", `proxyProtocol: HTTPConnect, transport: {tcp: {url: "https://a:x"}}`):                    transport + `.tcp.url: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:99999', "+secured+
			"}}"): transport + `.tcp.url: Invalid value: "https://a:99999": the port must be between 1 and 65535`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:0', "+secured+
			"}}"): transport + `.tcp.url: Invalid value: "https://a:0": the port`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1/b', "+secured+
			"}}"): transport + `.tcp.url: Invalid value: "https://a:1/b": must be https://host:port without user, path, query or fragment`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1?b=c', "+secured+
			"}}"): transport + `.tcp.url: Invalid value: "https://a:1?b=c": must be`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://b:secret@a:1', "+secured+
			"}}"): transport + `.tcp.url: Invalid value: "https://b:xxxxx@a:1": must be`,
		one("cluster", "proxyProtocol: GRPC, transport: {uds: {udsName: /"+strings.Repeat("a", 200)+
			"}}"): transport + `.uds.udsName: Invalid value: "/` + strings.Repeat("a", 200) + `": has 201 bytes`,
		one("cluster", "proxyProtocol: GRPC, transport: {uds: {udsName: DIR}}"): transport +
			`.uds.udsName: Invalid value: "` + f.dir + `": is not a socket: must be the path`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1'}}"): transport +
			`.tcp.tlsConfig: Required value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientKey: "+
			"DIR/admin.key}}}"): transport + `.tcp.tlsConfig.clientCert: Required value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientCert: "+
			"DIR/admin.crt}}}"): transport + `.tcp.tlsConfig.clientKey: Required value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientCert: "+
			"DIR/none, clientKey: DIR/admin.key}}}"): transport + `.tcp.tlsConfig.clientCert: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientCert: "+
			"DIR/admin.crt, clientKey: DIR/none}}}"): transport + `.tcp.tlsConfig.clientKey: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientCert: "+
			"DIR/admin.crt, clientKey: DIR/bad}}}"): transport + `.tcp.tlsConfig.clientCert: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {caBundle: DIR/none, "+
			"clientCert: DIR/admin.crt, clientKey: DIR/admin.key}}}"): transport +
			`.tcp.tlsConfig.caBundle: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {tcp: {url: 'https://a:1', tlsConfig: {caBundle: DIR/bad, "+
			"clientCert: DIR/admin.crt, clientKey: DIR/admin.key}}}"): transport +
			`.tcp.tlsConfig.caBundle: Invalid value`,
		one("cluster", "proxyProtocol: GRPC, transport: {uds: {udsName: a, path: b}}"): `unknown field "egressSelections[0].connection.transport.uds.path"`,
		one("cluster", "proxyProtocol: GRPC, mode: x"):                                 `unknown field "egressSelections[0].connection.mode"`,
		one("node", "proxyProtocol: Direct") + ", " + one("etcd",
			"proxyProtocol: x"): `egressSelections[1].connection.proxyProtocol`,
	} {
		if _, err := f.open(selections); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), f.path("egress.yaml")+": ") {
			t.Errorf("%s:\n%v, want\n%s", selections, err, want)
		}
	}
	for _, protocol := range []string{"GRPC", "HTTPConnect"} { // upstream rejects GRPC over TCP
		if _, err := f.open(one("cluster", "proxyProtocol: "+protocol+", transport: {tcp: {url: 'https://a', "+secured+
			"}}")); err != nil {
			t.Error(err)
		}
	}
	wanted := f.path("egress.yaml") + `: unknown configuration: want "apiVersion: apiserver.k8s.io/v1beta1" and "kind: EgressSelectorConfiguration"`
	for text, want := range map[string]string{
		"apiVersion: apiserver.k8s.io/v1\nkind: EgressSelectorConfiguration":      wanted,
		"apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration": wanted,
		"apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfig":        wanted,
		"kind: EgressSelectorConfiguration":                                       wanted,
		"":                                                                        wanted,
	} {
		if _, err := Open(f.file("egress.yaml", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Open(filepath.Join(f.dir, "none")); err == nil || !strings.Contains(err.Error(), f.path("none")) {
		t.Errorf("missing file: %v", err)
	}
}
