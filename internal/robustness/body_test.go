package robustness_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	badRequest           = metav1.StatusReasonBadRequest
	entityTooLarge       = metav1.StatusReasonRequestEntityTooLarge
	invalid              = metav1.StatusReasonInvalid
	unsupportedMediaType = metav1.StatusReasonUnsupportedMediaType

	tooLargeMessage = "Request entity too large: limit is 3145728"
	nestingDepth    = 100_000
)

func deepJSON(key string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"deep"},"` + key + `":` +
		strings.Repeat(`{"a":`, nestingDepth) + "1" + strings.Repeat("}", nestingDepth) + "}"
}

func deepYAML() string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: deep}\ndata: " +
		strings.Repeat("[", nestingDepth) + strings.Repeat("]", nestingDepth)
}

// aliasBomb returns YAML whose aliases expand to more than fits in memory (CVE-2019-11253).
func aliasBomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 8), i-1)
	}
	return b.String()
}

// stringAliasBomb returns YAML with few nodes whose aliases expand to about 10 GB of text.
func stringAliasBomb() string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\nx: &a " + strings.Repeat("y", 1<<20) +
		"\nz: [" + strings.Repeat("*a,", 10_000) + "]\n"
}

// gzipped returns n spaces, compressed with gzip.
func gzipped(n int) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.CopyN(z, spaceReader{}, int64(n))
	_ = z.Close()
	return b.Bytes()
}

// spaceReader is an endless stream of spaces.
type spaceReader struct{}

func (spaceReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// unsizedBody returns a body of n spaces. The HTTP client does not know its length and sends it in chunks.
func unsizedBody(n int64) io.Reader { return struct{ io.Reader }{io.LimitReader(spaceReader{}, n)} }

// utf16 encodes s, which must be ASCII, as little-endian UTF-16 with a byte order mark.
func utf16(s string) []byte {
	b := []byte{0xff, 0xfe}
	for i := range len(s) {
		b = append(b, s[i], 0)
	}
	return b
}

// TestMalformedBodies checks the errors for malformed and oversized bodies of a ConfigMap.
func TestMalformedBodies(t *testing.T) {
	f := newFixture(t)
	valid := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`
	for _, c := range []requestCase{
		{name: "empty", contentType: asJSON, body: "", code: 400, reason: badRequest,
			message: "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; " +
				"json parse error: unexpected end of JSON input (<empty>)"},
		{name: "truncated", contentType: asJSON, body: valid[:40], code: 400, reason: badRequest,
			message: "the object provided is unrecognized…"},
		{name: "truncated YAML", contentType: asYAML, body: "a: {b: [", code: 400, reason: badRequest},
		{name: "truncated protobuf", contentType: asProtobuf, body: "k8s\x00\x0a\xff", code: 400, reason: badRequest},
		{name: "protobuf without its prefix", contentType: asProtobuf, body: "\x0a\x00", code: 400, reason: badRequest},
		{name: "not an object", contentType: asJSON, body: "[1,2]", code: 400, reason: badRequest},
		{name: "a boolean", contentType: asJSON, body: "true", code: 400, reason: badRequest},
		{name: "two objects", contentType: asJSON, body: valid + valid, code: 400, reason: badRequest},
		{name: "deep JSON", contentType: asJSON, body: deepJSON("x"), code: 400, reason: badRequest,
			message: "the object provided is unrecognized…"},
		{name: "deep JSON in data", contentType: asJSON, body: deepJSON("data"), code: 400, reason: badRequest},
		{name: "deep brackets", contentType: asJSON, body: strings.Repeat("[", nestingDepth), code: 400,
			reason: badRequest},
		{name: "deep YAML", contentType: asYAML, body: deepYAML(), code: 400, reason: badRequest},
		{name: "huge", contentType: asJSON, body: strings.Repeat(" ", 3<<20+1), code: 413, reason: entityTooLarge,
			message: tooLargeMessage},
		{name: "huge and chunked", contentType: asJSON, body: unsizedBody(4 << 20), code: 413, reason: entityTooLarge,
			message: tooLargeMessage},
		{name: "huge YAML", contentType: asYAML, body: unsizedBody(3<<20 + 1), code: 413, reason: entityTooLarge,
			message: tooLargeMessage},
		{name: "gzip with Content-Encoding", contentType: asJSON, body: gzipped(100 << 20),
			header: map[string]string{"Content-Encoding": "gzip"}, code: 400, reason: badRequest},
		{name: "wrong type", contentType: asJSON,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":1}}`, code: 400,
			reason: badRequest,
			message: `ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into ` +
				"Go struct field ConfigMap.data of type string"},
		{name: "metadata of a wrong type", contentType: asJSON,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":[1]}`, code: 400, reason: badRequest},
		{name: "kind of a wrong type", contentType: asJSON, body: `{"apiVersion":"v1","kind":7}`, code: 400,
			reason: badRequest,
			message: "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; " +
				"json parse error: json: cannot unmarshal number into Go struct field .kind of type string " +
				`({"apiVersion":"v1","kind":7})`},
		{name: "version of a wrong type", contentType: asYAML,
			body: "apiVersion: 1\nkind: ConfigMap\nmetadata: {name: x}", code: 400, reason: badRequest},
		{name: "invalid UTF-8 in a name", contentType: asJSON, body: "{\"metadata\":{\"name\":\"a\xff\"}}", code: 422,
			reason: invalid},
		{name: "UTF-16", contentType: asJSON, body: utf16(valid), code: 400, reason: badRequest},
		{name: "a byte order mark", contentType: asJSON, body: "\ufeff" + valid, code: 400, reason: badRequest},
		{name: "NUL after the object", contentType: asJSON, body: valid + "\x00", code: 400, reason: badRequest},
		{name: "NUL in a string", contentType: asJSON, body: "{\"metadata\":{\"name\":\"a\x00b\"}}", code: 400,
			reason: badRequest},
		{name: "NUL escaped", contentType: asJSON, body: `{"metadata":{"name":"a\u0000b"}}`, code: 422,
			reason: invalid},
		{name: "NUL in YAML", contentType: asYAML, body: "a: \x00", code: 400, reason: badRequest},
		{name: "alias bomb", contentType: asYAML, body: aliasBomb(12), code: 400, reason: badRequest},
		{name: "alias bomb of strings", contentType: asYAML, body: stringAliasBomb(), code: 400, reason: badRequest},
		{name: "alias of itself", contentType: asYAML, body: "a: &a [*a]", code: 400, reason: badRequest},
		{name: "merge of itself", contentType: asYAML, body: "a: &a\n  <<: *a\n", code: 400, reason: badRequest},
		{name: "YAML merge of a list", contentType: asYAML, body: "<<: [1, 2]\n", code: 400, reason: badRequest},
		{name: "YAML map key", contentType: asYAML, body: "? {a: b}\n: c\n", code: 400, reason: badRequest},
		{name: "CBOR", contentType: "application/cbor", body: "\xa0", code: 415, reason: unsupportedMediaType},
		{name: "unknown type", contentType: "text/html", body: valid, code: 415, reason: unsupportedMediaType,
			message: "the body of the request was in an unknown format - accepted media types include: " +
				"application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		{name: "malformed type", contentType: "application/json;;;=", body: valid, code: 415,
			reason: unsupportedMediaType},
		{name: "name and namespace of another", contentType: asJSON,
			body: `{"metadata":{"name":"x","namespace":"kube-system"}}`, code: 400, reason: badRequest,
			message: "the namespace of the provided object does not match the namespace sent on the request"},
		{name: "list for object", contentType: asJSON, body: `{"apiVersion":"v1","kind":"ConfigMapList","items":[]}`,
			code: 400, reason: badRequest},
		{name: "repeated keys", path: configMapsPath + "?fieldValidation=Strict", contentType: asJSON,
			body: `{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}`, code: 400, reason: badRequest},
		{name: "repeated keys in YAML", path: configMapsPath + "?fieldValidation=Strict", contentType: asYAML,
			body: "metadata: {name: x}\ndata: {a: b, a: c}\n", code: 400, reason: badRequest},
		{name: "16,000 equal ports", path: "/api/v1/namespaces/default/pods", contentType: asJSON, code: 422,
			reason: invalid,
			body: `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i",` +
				`"ports":[{"containerPort":80}` +
				strings.Repeat(`,{"containerPort":80}`, 15_999) + `]}]}}`,
			message: `Pod "x" is invalid: spec.containers[*].ports: Too many: 16000: must have at most 1000 items`},
		{name: "30,000 repeated keys", path: configMapsPath + "?fieldValidation=Strict", contentType: asJSON,
			body: `{"metadata":{"name":"x"},"data":{` + strings.Repeat(`"a":"1",`, 30_000) +
				`"a":"2"}}`, code: 400, reason: badRequest},
	} {
		c.method = http.MethodPost
		if c.path == "" {
			c.path = configMapsPath
		}
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}

// TestMalformedCustomBodies checks the errors for malformed and oversized bodies of a custom object.
func TestMalformedCustomBodies(t *testing.T) {
	f := newFixture(t)
	head := `{"apiVersion":"stable.example.com/v1","kind":"CronTab",`
	for _, c := range []requestCase{
		{name: "empty", contentType: asJSON, code: 400, reason: badRequest},
		{name: "deep", contentType: asJSON, body: head + `"spec":` + strings.Repeat(`{"a":`, nestingDepth) + "1" +
			strings.Repeat("}", nestingDepth) + "}", code: 400, reason: badRequest},
		{name: "deep YAML", contentType: asYAML, body: "a: " +
			strings.Repeat("{a: ", nestingDepth) + strings.Repeat("}", nestingDepth), code: 400, reason: badRequest},
		{name: "huge", contentType: asJSON, body: unsizedBody(4 << 20), code: 413, reason: entityTooLarge,
			message: tooLargeMessage},
		{name: "metadata is a list", contentType: asJSON, body: head + `"metadata":[]}`, code: 400, reason: badRequest},
		{name: "labels are a list", contentType: asJSON, body: head + `"metadata":{"name":"x","labels":["a"]}}`,
			code: 400, reason: badRequest},
		{name: "owners are a map", contentType: asJSON, body: head + `"metadata":{"name":"x","ownerReferences":{}}}`,
			code: 400, reason: badRequest},
		{name: "protobuf", contentType: asProtobuf, body: "k8s\x00", code: 415, reason: unsupportedMediaType},
		{name: "alias bomb", contentType: asYAML, body: aliasBomb(12), code: 400, reason: badRequest},
		{name: "kind of another resource", contentType: asJSON,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`, code: 400, reason: badRequest},
		{name: "no kind", contentType: asJSON, body: `{"metadata":{"name":"x"}}`, code: 400, reason: badRequest},
		{name: "no name", contentType: asJSON, body: head + `"metadata":{}}`, code: 422, reason: invalid},
		{name: "name with a slash", contentType: asJSON, body: head + `"metadata":{"name":"a/b"}}`, code: 422,
			reason: invalid},
		{name: "name of 1 MiB", contentType: asJSON, body: head + `"metadata":{"name":"` + strings.Repeat("a", 1<<20) +
			`"}}`, code: 422, reason: invalid},
		{name: "generateName with a slash", contentType: asJSON, body: head + `"metadata":{"generateName":"../"}}`,
			code: 422, reason: invalid},
	} {
		c.method, c.path = http.MethodPost, cronTabsPath
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}

// TestMalformedPatches checks the errors for malformed patches of each type.
func TestMalformedPatches(t *testing.T) {
	f := newFixture(t)
	deepObject := strings.Repeat(`{"a":`, nestingDepth) + "1" + strings.Repeat("}", nestingDepth)
	doubling := `[{"op":"add","path":"/data/b","value":"` + strings.Repeat("x", 1000) +
		`"},{"op":"add","path":"/x","value":{"a":"` + strings.Repeat("x", 1000) + `"}}`
	for i := range 40 {
		doubling += fmt.Sprintf(`,{"op":"copy","from":"/x","path":"/x/c%d"}`, i)
	}
	doubling += "]"
	for _, path := range []string{configMapPath, cronTabPath} {
		for _, c := range []requestCase{
			{name: "deep merge", contentType: asMerge, body: deepObject, code: 400, reason: badRequest},
			{name: "deep merge of known fields", contentType: asMerge,
				body: `{"metadata":{"annotations":` + deepObject + "}}", code: 400, reason: badRequest},
			{name: "deep JSON patch", contentType: asPatch, body: `[{"op":"add","path":"/x","value":` + deepObject +
				"}]", code: 400, reason: badRequest},
			{name: "deep apply", contentType: asApply, body: deepObject, code: 400, reason: badRequest},
			{name: "deep YAML apply", contentType: asApply, body: "a: " +
				strings.Repeat("[", nestingDepth) + strings.Repeat("]", nestingDepth), code: 400, reason: badRequest},
			{name: "apply of an alias bomb", contentType: asApply, body: aliasBomb(12), code: 400, reason: badRequest},
			{name: "empty apply", contentType: asApply, body: "", code: 400, reason: badRequest},
			{name: "apply of a list", contentType: asApply, body: "[1]", code: 400, reason: badRequest},
			{name: "huge merge", contentType: asMerge, body: unsizedBody(4 << 20), code: 413, reason: entityTooLarge,
				message: tooLargeMessage},
			{name: "copies that double the object", contentType: asPatch, body: doubling, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "10,001 operations", contentType: asPatch,
				body: "[" + strings.Repeat(`{"op":"test","path":"/kind","value":1},`, 10_000) +
					`{"op":"remove","path":"/data"}]`, code: 413, reason: entityTooLarge,
				message: "Request entity too large: " +
					"The allowed maximum operations in a JSON patch is 10000, got 10001"},
			{name: "operation on a missing path", contentType: asPatch, body: `[{"op":"remove","path":"/no/where"}]`,
				code: 422, reason: metav1.StatusReasonInvalid},
			{name: "a huge index", contentType: asPatch,
				body: `[{"op":"add","path":"/metadata/managedFields/99999999","value":{}}]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "a negative index", contentType: asPatch,
				body: `[{"op":"add","path":"/metadata/managedFields/-99999999","value":{}}]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "null operation", contentType: asPatch, body: `[null]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "the root tested", contentType: asPatch, body: `[{"op":"test","path":""}]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "the root removed", contentType: asPatch, body: `[{"op":"remove","path":""}]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "the root replaced", contentType: asPatch, body: `[{"op":"replace","path":"","value":[]}]`,
				code: 422, reason: metav1.StatusReasonInvalid},
			{name: "no operation", contentType: asPatch, body: `[{"path":"/x"}]`, code: 422,
				reason: metav1.StatusReasonInvalid},
			{name: "JSON patch is an object", contentType: asPatch, body: `{}`, code: 400, reason: badRequest},
			{name: "null merge", contentType: asMerge, body: "null", code: 400, reason: badRequest},
			{name: "merge is a list", contentType: asMerge, body: "[]", code: 400, reason: badRequest},
			{name: "merge is truncated", contentType: asMerge, body: `{"a":`, code: 400, reason: badRequest,
				message: "invalid JSON patch…"},
			{name: "name by merge", contentType: asMerge, body: `{"metadata":{"name":"other"}}`, code: 400,
				reason: badRequest},
			{name: "uid by merge", contentType: asMerge, body: `{"metadata":{"uid":"other"}}`, code: 422,
				reason: invalid},
			{name: "resourceVersion by merge", contentType: asMerge, body: `{"metadata":{"resourceVersion":"x"}}`,
				code: 500},
			{name: "unknown patch", contentType: "application/x-patch", body: "{}", code: 415,
				reason: unsupportedMediaType},
			{name: "no type", body: "{}", code: 415, reason: unsupportedMediaType},
		} {
			c.method, c.path, c.name = http.MethodPatch, path, c.name+" "+path
			if c.contentType == asApply {
				c.path += "?fieldManager=m"
			}
			f.checkStatus(&c)
		}
	}
	for _, c := range []requestCase{
		{name: "kind nulled", contentType: asMerge, body: `{"apiVersion":null,"kind":null,"metadata":null}`, code: 400,
			reason: badRequest},
		{name: "kind nulled", path: cronTabPath, contentType: asMerge,
			body: `{"apiVersion":null,"kind":null,"metadata":null}`, code: 422, reason: invalid},
		{name: "kind by merge", contentType: asMerge, body: `{"kind":"Secret"}`, code: 422, reason: invalid},
		{name: "kind of a wrong type by merge", contentType: asMerge, body: `{"kind":7}`, code: 422, reason: invalid},
		{name: "kind by merge", path: cronTabPath, contentType: asMerge, body: `{"kind":"Secret"}`, code: 422,
			reason: invalid},
		{name: "kind of a wrong type by merge", path: cronTabPath, contentType: asMerge, body: `{"kind":7}`, code: 422,
			reason: invalid},
		{name: "deep strategic", body: deepObject, code: 400, reason: badRequest},
		{name: "deep strategic of known fields", body: `{"metadata":{"ownerReferences":[` + deepObject + `]}}`,
			code: 400, reason: badRequest},
		{name: "strategic directive", body: `{"$patch":7}`, code: 500},
		{name: "strategic without merge key", body: `{"metadata":{"ownerReferences":[{"name":"x"}]}}`, code: 422,
			reason: invalid},
		{name: "strategic of a wrong type", body: `{"metadata":{"ownerReferences":{"a":1}}}`, code: 422,
			reason: invalid},
		{name: "strategic list of primitives", body: `{"metadata":{"$setElementOrder/finalizers":7}}`, code: 500},
	} {
		c.method = http.MethodPatch
		if c.contentType == "" {
			c.contentType = asStrategic
		}
		if c.path == "" {
			c.path = configMapPath
		}
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}
