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

// TestCVE201911247 checks that no path through a namespace leads to a custom object of the cluster: not for a user with all rights in
// the namespace, nor for an administrator.
func TestCVE201911247(t *testing.T) {
	w := newWorld(t)
	w.must(http.MethodPost, crds, asJSON, `{"metadata":{"name":"globals.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"globals","kind":"Global"},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	const whole = "/apis/example.com/v1/globals"
	w.must(http.MethodPost, whole, asJSON, `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":"g"},"spec":"as it was"}`)
	w.must(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", asJSON,
		`{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`)
	w.remember()
	const placed = "/apis/example.com/v1/namespaces/default/globals"
	another := `{"apiVersion":"example.com/v1","kind":"Global","metadata":{"name":%q},"spec":"another"}`
	for _, c := range []call{
		{method: http.MethodGet, path: placed}, {method: http.MethodGet, path: placed + "/g"}, {method: http.MethodGet, path: placed + "?watch=1"},
		{method: http.MethodGet, path: placed + "?fieldSelector=metadata.name%3Dg"}, {method: http.MethodGet, path: placed + "/g/status"},
		{method: http.MethodPost, path: placed, contentType: asJSON, body: fmt.Sprintf(another, "new")},
		{method: http.MethodPut, path: placed + "/g", contentType: asJSON, body: fmt.Sprintf(another, "g")},
		{method: http.MethodPut, path: placed + "/g/status", contentType: asJSON, body: fmt.Sprintf(another, "g")},
		{method: http.MethodPatch, path: placed + "/g", contentType: asMerge, body: `{"spec":"another"}`},
		{method: http.MethodPatch, path: placed + "/g?fieldManager=x", contentType: asApply, body: fmt.Sprintf(another, "g")},
		{method: http.MethodDelete, path: placed + "/g"}, {method: http.MethodDelete, path: placed},
	} {
		c.name = c.method + " " + c.path
		if code, data := w.answer(w.http, &c); code != http.StatusNotFound {
			t.Errorf("%s of an administrator: %d %s", c.name, code, data)
		}
		c.header = map[string]string{"Impersonate-User": "jane"}
		if code, data := w.answer(w.http, &c); code != http.StatusNotFound {
			t.Errorf("%s of jane: %d %s", c.name, code, data)
		}
		c.path = strings.Replace(c.path, placed, whole, 1)
		if code, data := w.answer(w.http, &c); code != http.StatusForbidden {
			t.Errorf("%s of jane: %d %s", c.method+" "+c.path, code, data)
		}
	}
	w.unharmed()
}

// TestCVE20213121 checks that malformed protobuf gets 400. Generated decoders took a length that is near the end of the integers for a
// place before the message, and panicked.
func TestCVE20213121(t *testing.T) {
	w := newWorld(t)
	varint := func(n uint64) string { return string(binary.AppendUvarint(nil, n)) }
	field := func(number, wire uint64, rest string) string { return varint(number<<3|wire) + rest }
	bytes := func(number uint64, value string) string { return field(number, 2, varint(uint64(len(value)))+value) }
	var broken []string
	for _, length := range []uint64{1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<63 - 10, 1<<64 - 10, 1<<31 - 1, 1 << 31, 1 << 32, 200} {
		for _, number := range []uint64{1, 2, 3, 100, 1<<29 - 1} {
			broken = append(broken, field(number, 2, varint(length)))
		}
	}
	broken = append(broken, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", field(100, 0, "\xff"), field(100, 1, "1234567"), field(100, 5, "123"), field(100, 6, ""), field(100, 7, ""),
		field(100, 4, ""), strings.Repeat(field(100, 3, ""), 20_000), varint(0), field(0, 2, ""))
	typeMeta := bytes(1, bytes(1, "v1")+bytes(2, "ConfigMap"))
	for i, b := range broken {
		for place, body := range map[string]string{
			"envelope": "k8s\x00" + b, "type": "k8s\x00" + bytes(1, b), "object": "k8s\x00" + typeMeta + bytes(2, b),
			"metadata": "k8s\x00" + typeMeta + bytes(2, bytes(1, b)), "map": "k8s\x00" + typeMeta + bytes(2, bytes(2, b)),
		} {
			c := &call{name: fmt.Sprintf("%d in the %s: %x", i, place, short(b)), method: http.MethodPost, path: maps, contentType: asProtobuf, body: body}
			if code, data := w.answer(w.http, c); code != http.StatusBadRequest && code != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d %s", c.name, code, short(string(data)))
			}
		}
	}
	w.unharmed()
}

// TestCVE201911254 checks that large YAML whose parts nest or repeat is refused. Its parser took time that grew with the square of the size.
func TestCVE201911254(t *testing.T) {
	w := newWorld(t)
	w.http.Timeout = time.Minute
	const size = 1 << 20 // so that memory is no reason to refuse it
	for _, part := range []string{"[", "{", "[a,", "{a,", "- ", "? ", "a: [", "{a: ", "&a ", "*a,", "!!a ", "\"", "'", "a:\n", "- a\n", "\n", "#\n", "|\n", "%a\n", "---\n", ",", "[]", "{}", "[a: ", "[? "} {
		for _, before := range []string{"", "[", "{", "a: ["} {
			body := before + strings.Repeat(part, size/len(part))
			c := &call{name: fmt.Sprintf("%q and then %q", before, part), method: http.MethodPost, path: maps, contentType: asYAML, body: body}
			if code, data := w.answer(w.http, c); code/100 != 4 {
				t.Errorf("%s: %d %s", c.name, code, short(string(data)))
			}
		}
	}
	w.unharmed()
}

// TestCVE20208552 checks that requests which clients make up do not add to the metrics: these would grow without an end.
func TestCVE20208552(t *testing.T) {
	w := newWorld(t)
	anonymous := rest.TLSClientConfig{Insecure: true}
	unknown, err := rest.HTTPClientFor(&rest.Config{Host: w.server.Config.Host, TLSClientConfig: anonymous})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	batch := func() (lines int) {
		for i := range 20 {
			made++
			name := fmt.Sprintf("x%d", made)
			for _, c := range []call{
				{method: http.MethodGet, path: "/" + name}, {method: http.MethodGet, path: "/api/" + name}, {method: http.MethodGet, path: "/apis/" + name + "/v1/things"},
				{method: http.MethodGet, path: "/api/v1/namespaces/" + name + "/configmaps/" + name}, {method: http.MethodGet, path: "/api/v1/" + name},
				{method: http.MethodGet, path: victim + "/" + name}, {method: http.MethodGet, path: maps + "?labelSelector=" + name + "&fieldManager=" + name},
				{method: strings.ToUpper(name), path: victim}, {method: http.MethodPost, path: maps, contentType: "application/" + name, body: "{}"},
				{method: http.MethodPatch, path: victim + "?dryRun=" + name, contentType: asMerge, body: "{}"}, {method: http.MethodGet, path: tab + "/" + name},
				{method: http.MethodGet, path: victim, header: map[string]string{"User-Agent": name, "Accept": "application/" + name, "Impersonate-User": name}},
			} {
				c.name = fmt.Sprintf("%d %s %s", i, c.method, c.path)
				w.answer(w.http, &c)
				w.answer(unknown, &c)
			}
		}
		for _, line := range strings.Split(string(w.must(http.MethodGet, "/metrics", "", "")), "\n") {
			if strings.HasPrefix(line, "apiserver_request") || strings.HasPrefix(line, "apiserver_response") || strings.HasPrefix(line, "apiserver_longrunning") || strings.HasPrefix(line, "apiserver_flowcontrol_request") {
				lines++
			}
		}
		return lines
	}
	first := batch()
	if second := batch(); second != first || first == 0 {
		t.Errorf("%d series became %d", first, second)
	}
}
