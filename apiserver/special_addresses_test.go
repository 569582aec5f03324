package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/fixture/dns"
)

// rebound counts the DNS queries for rebinds.example.com. The responses to the first two contain an ordinary address.
// Later responses contain a loopback address.
var rebound atomic.Int64

// TestMain sets a resolver with host names that resolve to this machine. No test changes the resolver while a server
// runs.
func TestMain(m *testing.M) {
	net.DefaultResolver = dns.Resolver(func(name string) netip.Addr {
		switch name {
		case "loopback4.example.com.":
			return netip.MustParseAddr("127.0.0.1")
		case "loopback6.example.com.":
			return netip.IPv6Loopback()
		case "mapped.example.com.":
			return netip.MustParseAddr("::ffff:127.0.0.1")
		case "link.example.com.":
			return netip.MustParseAddr("169.254.169.254")
		case "metadata.example.com.":
			return netip.MustParseAddr("fd00:ec2::254")
		case "rebinds.example.com.":
			if rebound.Add(1) > 2 { // a lookup has two queries, one for each IP family
				return netip.MustParseAddr("127.0.0.1")
			}
			return netip.MustParseAddr("192.0.2.1")
		}
		return netip.Addr{}
	})
	os.Exit(m.Run())
}

// countingListener is a listener on all addresses of this machine that counts connections.
type countingListener struct {
	port      int
	accepted  atomic.Int64
	connected chan struct{} // receives a value after a connection
}

func newCountingListener(t *testing.T) *countingListener {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &countingListener{port: l.Addr().(*net.TCPAddr).Port, connected: make(chan struct{}, 1)}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_ = conn.Close()
			s.accepted.Add(1)
			select {
			case s.connected <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

// specialHosts lists notations of loopback, link-local, multicast and metadata addresses that API objects may contain.
var specialHosts = []string{
	"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0",
	"::", "169.254.169.254", "fe80::1", "224.0.0.1", "239.1.2.3", "ff02::1", "ff0e::1",
	"100.100.100.200", "fd00:ec2::254", "192.0.0.192", "168.63.129.16", "64:ff9b::6464:64c8",
	"2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0", "localhost", "localhost.", "a.localhost",
	"metadata.google.internal",
	"loopback4.example.com", "loopback6.example.com", "mapped.example.com", "link.example.com", "metadata.example.com",
	"rebinds.example.com",
}

// dialEnv is a test environment with a server and a listener. API objects make the server connect to the listener.
type dialEnv struct {
	*testing.T
	url      string
	config   *rest.Config
	client   *http.Client
	listener *countingListener

	services int    // number of created Services
	service  string // name of the last Service
}

// do sends a request with the administrator's certificate and returns the status code and the body of the response.
// headers have the form "Name: value".
func (d *dialEnv) do(method, path, text string, headers ...string) (int, string) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, d.url+path, strings.NewReader(text))
	if err != nil {
		d.Fatal(err)
	}
	r.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json",
		false: "application/json"}[method == "PATCH"])
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := d.client.Do(r)
	if err != nil {
		d.Fatal(err)
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(resp.Body)
	if err != nil {
		d.Fatal(err)
	}
	return resp.StatusCode, string(response)
}

// must sends a request and fails the test if the request fails.
func (d *dialEnv) must(method, path, text string) {
	d.Helper()
	if code, response := d.do(method, path, text); code/100 != 2 {
		d.Fatalf("%s %s: %d %s", method, path, code, response)
	}
}

// create creates an object. It returns false if validation rejects the object.
func (d *dialEnv) create(collection, text string) (ok bool) {
	d.Helper()
	code, response := d.do("POST", collection, text)
	if code != http.StatusCreated && code != http.StatusUnprocessableEntity {
		d.Fatalf("%s: %d %s: %s", collection, code, response, text)
	}
	return code == http.StatusCreated
}

const (
	coreOfDefault   = "/api/v1/namespaces/default"
	services        = coreOfDefault + "/services"
	pods            = coreOfDefault + "/pods"
	slicesOfDefault = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	apiServices     = "/apis/apiregistration.k8s.io/v1/apiservices"
	crds            = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	validatingHooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	mutatingHooks   = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
)

// behindService has a function for each kind of object that can point a Service to a host. Each function creates a
// new Service and sets d.service. The circuit breakers of a new Service are closed. It returns false if validation
// rejects the host.
var behindService = map[string]func(d *dialEnv, host string) bool{
	"ExternalName": func(d *dialEnv, host string) bool {
		return d.serve(`"type":"ExternalName","externalName":` + strconv.Quote(host))
	},
	"EndpointSlice": func(d *dialEnv, host string) bool {
		family := "FQDN"
		if a, err := netip.ParseAddr(host); err == nil {
			family = map[bool]string{true: "IPv4", false: "IPv6"}[a.Is4()]
		}
		return d.serve(fmt.Sprintf(`"clusterIP":"None","ports":[{"port":%d}]`, d.listener.port)) &&
			d.create(slicesOfDefault, fmt.Sprintf(`{"metadata":{"name":%[1]q,"labels":{"kubernetes.io/service-name":%[1]q}},
			"addressType":%[2]q,"ports":[{"name":"","port":%[3]d}],"endpoints":[{"addresses":[%[4]q],"targetRef":{"kind":"Pod","namespace":"default","name":"p"}}]}`, d.service, family, d.listener.port, host))
	},
	"Endpoints": func(d *dialEnv, host string) bool {
		return d.serve(fmt.Sprintf(`"clusterIP":"None","ports":[{"port":%d}]`, d.listener.port)) &&
			d.create(coreOfDefault+"/endpoints", fmt.Sprintf(`{"metadata":{"name":%q,
			"labels":{"endpointslice.kubernetes.io/skip-mirror":"true"}},"subsets":[{"addresses":[{"ip":%q}],"ports":[{"port":%d}]}]}`, d.service, host, d.listener.port))
	},
}

// serve creates the next Service.
func (d *dialEnv) serve(spec string) (ok bool) {
	d.Helper()
	d.services++
	d.service = fmt.Sprintf("s%d", d.services)
	return d.create(services, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{%s}}`, d.service, spec))
}

// clientConfig returns the client configuration of a webhook behind the Service.
func (d *dialEnv) clientConfig() string {
	return fmt.Sprintf(`"service":{"namespace":"default","name":%q,"port":%d}`, d.service, d.listener.port)
}

// callsService has the requests that make the server connect to the Service.
var callsService = map[string]func(d *dialEnv) (int, string){
	"validating webhook": func(d *dialEnv) (int, string) { return d.admitted(validatingHooks, d.clientConfig()) },
	"mutating webhook":   func(d *dialEnv) (int, string) { return d.admitted(mutatingHooks, d.clientConfig()) },
	"conversion webhook": func(d *dialEnv) (int, string) { return d.converted(d.clientConfig()) },
	"APIService": func(d *dialEnv) (code int, response string) {
		d.do("DELETE", apiServices+"/v1.a.example.com", "")
		d.must("POST", apiServices, fmt.Sprintf(`{"metadata":{"name":"v1.a.example.com"},"spec":{"group":"a.example.com","version":"v1","groupPriorityMinimum":1000,
			"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":%q,"port":%d}}}`, d.service, d.listener.port))
		eventually(d.T, "await the check of the APIService", func(context.Context) bool {
			_, response = d.do("GET", apiServices+"/v1.a.example.com", "")
			return strings.Contains(response, "FailedDiscoveryCheck")
		})
		code, _ = d.do("GET", "/apis/a.example.com/v1/things", "")
		return code, response
	},
}

// admitted creates a ConfigMap that a webhook reviews.
func (d *dialEnv) admitted(configurations, clientConfig string) (int, string) {
	d.Helper()
	d.must("POST", configurations, `{"metadata":{"name":"hook"},"webhooks":[{"name":"hook.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":5,
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}],"clientConfig":{`+clientConfig+`}}]}`)
	defer d.must("DELETE", configurations+"/hook", "")
	return d.do("POST", coreOfDefault+"/configmaps?dryRun=All", `{"metadata":{"name":"m"}}`)
}

// converted reads a Host that a webhook converts.
func (d *dialEnv) converted(clientConfig string) (int, string) {
	d.Helper()
	d.must("PATCH", crds+"/hosts.example.com", `{"spec":{"conversion":{"webhook":{"clientConfig":{`+clientConfig+
		`}}}}}`)
	return d.do("GET", "/apis/example.com/v2/namespaces/default/hosts/h", "")
}

// callsNode has the request paths that make the server connect to the node n, the Pod p or the Service.
var callsNode = map[string]func(d *dialEnv) string{
	"log":            func(*dialEnv) string { return pods + "/p/log" },
	"log without CA": func(*dialEnv) string { return pods + "/p/log?insecureSkipTLSVerifyBackend=true" },
	"exec":           func(*dialEnv) string { return pods + "/p/exec?command=true&stdout=true" },
	"attach":         func(*dialEnv) string { return pods + "/p/attach?stdout=true" },
	"portforward":    func(*dialEnv) string { return pods + "/p/portforward" },
	"node proxy":     func(*dialEnv) string { return "/api/v1/nodes/n/proxy/healthz" },
	"node proxy, port": func(d *dialEnv) string {
		return fmt.Sprintf("/api/v1/nodes/http:n:%d/proxy/x",
			d.listener.port)
	},
	"node proxy, TLS": func(d *dialEnv) string {
		return fmt.Sprintf("/api/v1/nodes/https:n:%d/proxy/x",
			d.listener.port)
	},
	"Pod proxy":      func(d *dialEnv) string { return fmt.Sprintf("%s/p:%d/proxy/x", pods, d.listener.port) },
	"Pod proxy, TLS": func(d *dialEnv) string { return fmt.Sprintf("%s/https:p:%d/proxy/x", pods, d.listener.port) },
	"Service proxy": func(d *dialEnv) string {
		return fmt.Sprintf("%s/%s:%d/proxy/x", services, d.service,
			d.listener.port)
	},
}

// newDialEnv starts a server and creates a node n with a Pod p, and a CRD with a conversion webhook.
func newDialEnv(t *testing.T, c apiserver.Config) *dialEnv {
	t.Helper()
	s := start(t, c)
	config := s.ClientConfig()
	config.NextProtos = []string{"http/1.1"} // required for upgrades
	by, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	d := &dialEnv{T: t, url: s.URL(), config: config, client: by, listener: newCountingListener(t)}
	d.must("POST", crds, fmt.Sprintf(strings.Replace(hostCRD, `"caBundle":%q,`, "", 1), d.listener.port))
	d.must("POST", "/apis/example.com/v1/namespaces/default/hosts",
		`{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`)
	// the controller may have created it already
	d.do("POST", coreOfDefault+"/serviceaccounts", `{"metadata":{"name":"default"}}`)
	d.must("POST", "/api/v1/nodes", `{"metadata":{"name":"n"}}`)
	d.must("POST", pods, `{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	return d
}

// refused checks that the response reports that the address is not allowed.
func (d *dialEnv) refused(what, host string, code int, response string) {
	d.Helper()
	known := func(why string) bool { return strings.Contains(response, why) }
	if code < 400 || !known("cannot connect to ") && !known("address not allowed") && !known("no such host") {
		d.Errorf("%s at %q: %d %s", what, host, code, response)
	}
}

// TestClusterLeadsToNoSpecialAddress checks that no host in a Service, an EndpointSlice, Endpoints, a Node or a Pod
// makes the server connect to its own machine, a link-local address or a metadata service. This holds for every
// feature that connects. The server must check an address when it dials the address. The address of a host name can
// change after an earlier check. (CVE-2020-8562 CVE-2021-25737 CVE-2022-3294)
func TestClusterLeadsToNoSpecialAddress(t *testing.T) {
	d := newDialEnv(t, apiserver.Config{})
	for _, host := range specialHosts {
		for how, lead := range behindService {
			for what, call := range callsService {
				rebound.Store(2) // these features look up the name once
				if lead(d, host) {
					code, response := call(d)
					d.refused(what+" by "+how, host, code, response)
				}
			}
		}
		d.nodeAt(host)
		for what, path := range callsNode {
			for _, headers := range [][]string{nil, {"Connection: Upgrade", "Upgrade: SPDY/3.1"}} {
				rebound.Store(0)
				if !strings.Contains(what, "node proxy") { // the other features resolve a name only when they connect
					rebound.Store(2)
				}
				if _, err := netip.ParseAddr(host); err != nil &&
					(strings.HasPrefix(what, "Pod") || strings.HasPrefix(what, "Service")) {
					continue // the address of a Pod is never a host name
				}
				code, response := d.do("GET", path(d), "", headers...)
				if what == "Service proxy" && strings.Contains(response, "no endpoints available") || headers == nil &&
					strings.Contains(response, "Upgrade request required") {
					continue // the EndpointSlice was rejected, or the path accepts only upgrades
				}
				d.refused(what, host, code, response)
			}
		}
	}
	if n := d.listener.accepted.Load(); n > 0 {
		t.Errorf("%d connections reached this machine", n)
	}
}

// nodeAt sets the address of the node to host. If host is an IP address, it also sets the address of the Pod and of a
// Service of the Pod.
func (d *dialEnv) nodeAt(host string) {
	d.Helper()
	d.must("PATCH", "/api/v1/nodes/n/status",
		fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`, host, d.listener.port))
	if _, err := netip.ParseAddr(host); err != nil {
		return
	}
	if code, response := d.do("PATCH", pods+"/p/status",
		fmt.Sprintf(`{"status":{"podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, host)); code != http.StatusOK &&
		code != http.StatusUnprocessableEntity {
		d.Fatalf("a Pod at %s: %d %s", host, code, response)
	}
	behindService["EndpointSlice"](d, host)
}

// TestLocalServiceByFlag checks that a Service in --allow-local-services may refer to a host name that resolves to a
// loopback address. It tests each kind of call. The flag permits no other special address, no other Service and no
// EndpointSlice.
func TestLocalServiceByFlag(t *testing.T) {
	var c apiserver.Config
	for i := range 40 { // more than the test creates
		c.LocalServices = append(c.LocalServices, fmt.Sprintf("default/s%d", i))
	}
	d := newDialEnv(t, c)
	for what, call := range callsService {
		for _, host := range []string{"localhost", "127.0.0.1", "loopback4.example.com"} {
			before := d.listener.accepted.Load()
			behindService["ExternalName"](d, host)
			_, response := call(d)
			t.Logf("%s at %s: %s", what, host, response)
			// The response can arrive before the listener has counted the connection.
			within(t, func() bool { return d.listener.accepted.Load() > before })
		}
	}
	before := d.listener.accepted.Load()
	for what, call := range callsService {
		for _, host := range []string{"169.254.169.254", "metadata.example.com", "0.0.0.0"} {
			behindService["ExternalName"](d, host)
			code, response := call(d)
			d.refused(what, host, code, response)
		}
		if !behindService["EndpointSlice"](d, "loopback4.example.com") {
			t.Fatal("an EndpointSlice with host names is rejected")
		}
		code, response := call(d)
		d.refused(what+" by EndpointSlice", "loopback4.example.com", code, response)
	}
	if d.listener.accepted.Load() > before {
		t.Error("a connection reached this machine")
	}
}

// TestErrorNamesTheFlag checks that the error about a host name that resolves to a loopback address contains the flag
// that permits the name.
func TestErrorNamesTheFlag(t *testing.T) {
	d := newDialEnv(t, apiserver.Config{LocalServices: []string{"other/s1", "default/s2"}})
	behindService["ExternalName"](d, "localhost")
	for what, call := range callsService {
		if _, response := call(d); !strings.Contains(response, "--allow-local-services=default/s1") {
			t.Errorf("%s: %s", what, response)
		}
	}
}

// TestURLsMayBeLocal checks that a URL in a webhook configuration, a CRD, a flag or a configuration file may have a
// loopback address, as in kube-apiserver.
func TestURLsMayBeLocal(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	kubeconfig := func(name string, to *countingListener) string {
		return file(name, `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://localhost:`+
			strconv.Itoa(to.port)+`"}}],
users: [{name: a}], contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}`)
	}
	tokens, decisions, issuer := newCountingListener(t), newCountingListener(t), newCountingListener(t)
	c := apiserver.Config{Controllers: []string{"clusterrole-aggregation-controller"}}
	c.Authentication.Webhook.ConfigFile, c.Authentication.Webhook.Version = kubeconfig("tokens", tokens), "v1"
	c.Authorization.Modes = []string{"RBAC", "Webhook"}
	c.Authorization.Webhook.ConfigFile, c.Authorization.Webhook.Version = kubeconfig("decisions", decisions), "v1"
	c.Authentication.ConfigFile = file("authn", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt: [{issuer: {url: "https://localhost:%d", audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ""}}}]
`, issuer.port))
	d := newDialEnv(t, c)
	reached := func(what string, by *countingListener) {
		t.Helper()
		select {
		case <-by.connected:
		case <-time.After(time.Minute):
			t.Errorf("%s does not reach this machine", what)
		}
	}
	reached("a JWT issuer", issuer)
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(d.config))
	if err != nil {
		t.Fatal(err)
	}
	(&dialEnv{T: t, url: d.url, client: anonymous}).do("GET", "/api/v1/pods", "", "Authorization: Bearer unknown")
	reached("a webhook for tokens", tokens)
	d.do("GET", "/api/v1/pods", "", "Impersonate-User: jane")
	reached("a webhook that authorizes", decisions)
	for _, host := range []string{"127.0.0.1", "localhost", "loopback4.example.com"} {
		url := fmt.Sprintf(`"url":"https://%s:%d/"`, host, d.listener.port)
		d.converted(`"service":null,` + url)
		reached("a webhook that converts at "+host, d.listener)
		d.admitted(validatingHooks, url)
		reached("a webhook that admits at "+host, d.listener)
	}
}
