package robustness_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestCVE201911247 checks that a namespaced path never reaches a cluster-scoped custom object. It sends requests as a
// user with all rights in the namespace, and as an administrator.
func TestCVE201911247(t *testing.T) {
	f := newFixture(t)
	f.mustSend(http.MethodPost, crdsPath, asJSON,
		`{"metadata":{"name":"globals.example.com"},"spec":{"group":"example.com","scope":"Cluster",
		"names":{"plural":"globals","kind":"Global"},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	const clusterPath = "/apis/example.com/v1/globals"
	f.mustSend(http.MethodPost, clusterPath, asJSON,
		`{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":"g"},"spec":"original"}`)
	f.mustSend(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", asJSON,
		`{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",
		"name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`)
	f.recordState()
	const namespacedPath = "/apis/example.com/v1/namespaces/default/globals"
	objectFormat := `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":%q},"spec":"changed"}`
	for _, c := range []requestCase{
		{method: http.MethodGet, path: namespacedPath},
		{method: http.MethodGet, path: namespacedPath + "/g"},
		{method: http.MethodGet, path: namespacedPath + "?watch=1"},
		{method: http.MethodGet, path: namespacedPath + "?fieldSelector=metadata.name%3Dg"},
		{method: http.MethodGet, path: namespacedPath + "/g/status"},
		{method: http.MethodPost, path: namespacedPath, contentType: asJSON, body: fmt.Sprintf(objectFormat, "new")},
		{method: http.MethodPut, path: namespacedPath + "/g", contentType: asJSON,
			body: fmt.Sprintf(objectFormat, "g")},
		{method: http.MethodPut, path: namespacedPath + "/g/status", contentType: asJSON,
			body: fmt.Sprintf(objectFormat, "g")},
		{method: http.MethodPatch, path: namespacedPath + "/g", contentType: asMerge, body: `{"spec":"changed"}`},
		{method: http.MethodPatch, path: namespacedPath + "/g?fieldManager=x", contentType: asApply,
			body: fmt.Sprintf(objectFormat, "g")},
		{method: http.MethodDelete, path: namespacedPath + "/g"},
		{method: http.MethodDelete, path: namespacedPath},
	} {
		c.name = c.method + " " + c.path
		if code, data := f.do(f.client, &c); code != http.StatusNotFound {
			t.Errorf("%s by an administrator: got %d %s, want 404", c.name, code, data)
		}
		c.header = map[string]string{"Impersonate-User": "jane"}
		if code, data := f.do(f.client, &c); code != http.StatusNotFound {
			t.Errorf("%s by jane: got %d %s, want 404", c.name, code, data)
		}
		c.path = strings.Replace(c.path, namespacedPath, clusterPath, 1)
		if code, data := f.do(f.client, &c); code != http.StatusForbidden {
			t.Errorf("%s %s by jane: got %d %s, want 403", c.method, c.path, code, data)
		}
	}
	f.checkUnchanged()
}

// TestCVE20213121 checks that malformed protobuf gets 400 or 422. A generated decoder adds a length in the message
// to an offset. If the sum overflows to a negative index, a vulnerable decoder panics.
func TestCVE20213121(t *testing.T) {
	f := newFixture(t)
	varint := func(n uint64) string { return string(binary.AppendUvarint(nil, n)) }
	field := func(number, wire uint64, rest string) string { return varint(number<<3|wire) + rest }
	bytes := func(number uint64, value string) string { return field(number, 2, varint(uint64(len(value)))+value) }
	var broken []string
	for _, length := range []uint64{1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<63 - 10, 1<<64 - 10, 1<<31 - 1, 1 << 31, 1 << 32,
		200} {
		for _, number := range []uint64{1, 2, 3, 100, 1<<29 - 1} {
			broken = append(broken, field(number, 2, varint(length)))
		}
	}
	broken = append(broken, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", field(100, 0, "\xff"),
		field(100, 1, "1234567"), field(100, 5, "123"), field(100, 6, ""), field(100, 7, ""),
		field(100, 4, ""), strings.Repeat(field(100, 3, ""), 20_000), varint(0), field(0, 2, ""))
	typeMeta := bytes(1, bytes(1, "v1")+bytes(2, "ConfigMap"))
	for i, b := range broken {
		for part, body := range map[string]string{
			"envelope": "k8s\x00" + b, "type": "k8s\x00" + bytes(1, b), "object": "k8s\x00" + typeMeta + bytes(2, b),
			"metadata": "k8s\x00" + typeMeta + bytes(2, bytes(1, b)), "map": "k8s\x00" +
				typeMeta + bytes(2, bytes(2, b)),
		} {
			c := &requestCase{name: fmt.Sprintf("case %d in the %s: %x", i, part, abbreviate(b)),
				method: http.MethodPost, path: configMapsPath, contentType: asProtobuf, body: body}
			if code, data := f.do(f.client, c); code != http.StatusBadRequest &&
				code != http.StatusUnprocessableEntity {
				t.Errorf("%s: got %d %s, want 400 or 422", c.name, code, abbreviate(string(data)))
			}
		}
	}
	f.checkUnchanged()
}

// TestCVE201911254 checks that large YAML with nested or repeated parts is rejected within a minute. Upstream's parser
// took time quadratic in the size.
func TestCVE201911254(t *testing.T) {
	f := newFixture(t)
	f.client.Timeout = time.Minute
	const size = 1 << 20 // small enough that the memory limit does not reject it
	for _, part := range []string{"[", "{", "[a,", "{a,", "- ", "? ", "a: [", "{a: ", "&a ", "*a,", "!!a ", "\"", "'",
		"a:\n", "- a\n", "\n", "#\n", "|\n", "%a\n", "---\n", ",", "[]", "{}", "[a: ", "[? "} {
		for _, before := range []string{"", "[", "{", "a: ["} {
			body := before + strings.Repeat(part, size/len(part))
			c := &requestCase{name: fmt.Sprintf("%q followed by repeated %q", before, part), method: http.MethodPost,
				path: configMapsPath, contentType: asYAML, body: body}
			if code, data := f.do(f.client, c); code/100 != 4 {
				t.Errorf("%s: got %d %s, want 4xx", c.name, code, abbreviate(string(data)))
			}
		}
	}
	f.checkUnchanged()
}

// TestCVE20208552 checks that requests with arbitrary names, methods and media types add no metric series. Otherwise
// clients could grow the metrics without a limit.
func TestCVE20208552(t *testing.T) {
	f := newFixture(t)
	insecure := rest.TLSClientConfig{Insecure: true}
	anonymous, err := rest.HTTPClientFor(&rest.Config{Host: f.server.Config.Host, TLSClientConfig: insecure})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	batch := func() (lines int) {
		for i := range 20 {
			count++
			name := fmt.Sprintf("x%d", count)
			for _, c := range []requestCase{
				{method: http.MethodGet, path: "/" + name},
				{method: http.MethodGet, path: "/api/" + name},
				{method: http.MethodGet, path: "/apis/" + name + "/v1/things"},
				{method: http.MethodGet, path: "/api/v1/namespaces/" + name + "/configmaps/" + name},
				{method: http.MethodGet, path: "/api/v1/" + name},
				{method: http.MethodGet, path: configMapPath + "/" + name},
				{method: http.MethodGet, path: configMapsPath + "?labelSelector=" + name + "&fieldManager=" + name},
				{method: strings.ToUpper(name), path: configMapPath},
				{method: http.MethodPost, path: configMapsPath, contentType: "application/" + name, body: "{}"},
				{method: http.MethodPatch, path: configMapPath + "?dryRun=" + name, contentType: asMerge, body: "{}"},
				{method: http.MethodGet, path: cronTabPath + "/" + name},
				{method: http.MethodGet, path: configMapPath,
					header: map[string]string{"User-Agent": name, "Accept": "application/" + name,
						"Impersonate-User": name}},
			} {
				c.name = fmt.Sprintf("%d %s %s", i, c.method, c.path)
				f.do(f.client, &c)
				f.do(anonymous, &c)
			}
		}
		for _, line := range strings.Split(string(f.mustSend(http.MethodGet, "/metrics", "", "")), "\n") {
			if strings.HasPrefix(line, "apiserver_request") || strings.HasPrefix(line, "apiserver_response") ||
				strings.HasPrefix(line, "apiserver_longrunning") ||
				strings.HasPrefix(line, "apiserver_flowcontrol_request") {
				lines++
			}
		}
		return lines
	}
	first := batch()
	if second := batch(); second != first || first == 0 {
		t.Errorf("got %d metric series after the second batch, want %d as after the first, and more than 0", second,
			first)
	}
}
