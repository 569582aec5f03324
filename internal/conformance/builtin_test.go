package conformance_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

// testBuiltin compares the usual operations on one object of each built-in kind.
func testBuiltin(t *testing.T, p *pair) {
	data, err := os.ReadFile("../kinds/testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p.do(t, "POST /api/v1/namespaces", asYAML, `{apiVersion: v1, kind: Namespace, metadata: {name: ns}}`)
	p.do(t, "POST /api/v1/namespaces/ns/serviceaccounts", asYAML,
		`{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	replacer, done := placeholders(t), map[string]bool{}
	for _, text := range strings.Split(string(data), "\n---\n")[1:] {
		var o object
		text = replacer.Replace(text)
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		t.Run(nested[string](o, "apiVersion")+"/"+nested[string](o, "kind"), func(t *testing.T) {
			delete(o, "stringData") // Secrets with stringData are tested below
			collection, resource := p.collection(t, o)
			done[resource] = true
			p.exerciseBuiltin(t, collection, o)
		})
	}
	const secret = `{apiVersion: v1, kind: Secret, metadata: {name: strings}, data: {k: AAE=}, stringData: {s: t}}`
	p.do(t, "POST /api/v1/namespaces/ns/secrets", asYAML, secret)
	p.do(t, "PATCH /api/v1/namespaces/ns/secrets/strings?fieldManager=a", asApply, secret)
	p.do(t, "PATCH /api/v1/namespaces/ns/secrets/strings?fieldManager=a&force=true", asApply, secret)
	p.do(t, "PATCH /api/v1/namespaces/ns/secrets/bad?fieldManager=a", asApply,
		`{apiVersion: v1, kind: Secret, metadata: {name: bad}, data: {k: no base64}}`)
	for _, text := range serviceManifests {
		p.do(t, "POST /api/v1/namespaces/ns/services", asYAML, text)
	}
	p.table(t, "/api/v1/namespaces/ns/services")
	for _, path := range slices.Sorted(maps.Keys(reviews)) {
		p.send(t, request{method: http.MethodPost, path: "/apis/" + path, contentType: asYAML, body: reviews[path],
			header: http.Header{
				"Impersonate-User": {"jane"}, "Impersonate-Group": {"system:masters"}, "Impersonate-Extra-Team": {"a"},
			}})
		done["/apis/"+notResource.ReplaceAllString(path, "")] = true
	}
	p.do(t, "POST /api/v1/namespaces/ns/bindings", asYAML,
		`{apiVersion: v1, kind: Binding, metadata: {name: none}, target: {kind: Node, name: n}}`)
	done["/api/v1/bindings"] = true
	p.components(t)
	done[components] = true
	for _, name := range p.servedResources(t) {
		if !done[name] {
			t.Errorf("no test of %s: add an object to ../kinds/testdata/objects.yaml, or a review to reviews", name)
		}
	}
}

const components = "/api/v1/componentstatuses"

// components compares the ComponentStatus of etcd. The other components do not run in this test.
func (p *pair) components(t *testing.T) {
	const store = "?fieldSelector=metadata.name%3Detcd-0"
	for path, view := range map[string]string{components + "/etcd-0": "PartialObjectMetadata",
		components + store: "PartialObjectMetadataList"} {
		p.get(t, path)
		p.table(t, path)
		for _, accept := range []string{"application/yaml", "application/vnd.kubernetes.protobuf",
			"application/json;as=" + view + ";v=v1;g=meta.k8s.io",
			"application/vnd.kubernetes.protobuf;as=" + view + ";v=v1;g=meta.k8s.io"} {
			p.send(t, request{method: http.MethodGet, path: path, accept: accept})
		}
	}
	for _, line := range []string{
		"GET " + components + "?labelSelector=a%3Db",
		"GET " + components + "?fieldSelector=metadata.name%3Dnone",
		"GET " + components + "?fieldSelector=a%3Db",
		"GET " + components + store + "&limit=1&resourceVersion=99999999",
		"GET " + components + store + "&watch=true",
		"GET " + components + "?labelSelector=,,",
		"GET " + components + "/none",
		"GET " + components + "/etcd-0/status",
		"GET " + components + "/etcd-0?resourceVersion=a",
		"GET /api/v1/watch/componentstatuses",
		"GET /api/v1/watch/componentstatuses/etcd-0",
		"GET /api/v1/namespaces/ns/componentstatuses",
		"POST " + components,
		"DELETE " + components,
		"DELETE " + components + "/etcd-0",
		"PUT " + components + "/etcd-0", "PATCH " + components + "/etcd-0",
	} {
		p.do(t, line, "", "")
	}
}

// notResource matches the namespace and the query in the path of a review. The rest of the path is the resource.
var notResource = regexp.MustCompile(`namespaces/ns/|\?.*`)

// servedResources returns the paths of all resources in discovery, such as "/apis/apps/v1/deployments". It leaves out
// CRDs, which testCRDs compares, and custom resources.
func (p *pair) servedResources(t *testing.T) (all []string) {
	t.Helper()
	versions := []string{"/api/v1"}
	for _, g := range nested[[]any](p.discoveryDocument(t, "/apis", "").body, "groups") {
		for _, v := range nested[[]any](g, "versions") {
			if gv := nested[string](v, "groupVersion"); !strings.Contains(gv, "example.com/") &&
				!strings.HasPrefix(gv, "apiextensions.k8s.io/") {
				versions = append(versions, "/apis/"+gv)
			}
		}
	}
	for _, path := range versions {
		for _, r := range nested[[]any](p.discoveryDocument(t, path, "").body, "resources") {
			if name := nested[string](r, "name"); !strings.Contains(name, "/") {
				all = append(all, path+"/"+name)
			}
		}
	}
	return all
}

// placeholders returns a replacer for the placeholders of certificates and certificate requests in objects.yaml.
func placeholders(t *testing.T) *strings.Replacer {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "jane"}
	request, err1 := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	stub, err2 := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	certificate, err3 := x509.CreateCertificate(rand.Reader, root, root, public, key)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return strings.NewReplacer(`"@request"`, base64.StdEncoding.EncodeToString(block("CERTIFICATE REQUEST", request)),
		`"@stub"`, base64.StdEncoding.EncodeToString(stub), `"@certificate"`,
		text(string(block("CERTIFICATE", certificate))))
}

// collection returns the path of the collection that contains o. served is the entry of this collection in
// servedResources.
func (p *pair) collection(t *testing.T, o object) (path, served string) {
	t.Helper()
	path = "/apis/" + nested[string](o, "apiVersion")
	if !strings.Contains(path[len("/apis/"):], "/") {
		path = "/api/" + nested[string](o, "apiVersion")
	}
	a, err := p.trellis.send(t.Context(), request{method: http.MethodGet, path: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range nested[[]any](a.body, "resources") {
		if name := nested[string](r, "name"); nested[string](r, "kind") == nested[string](o, "kind") &&
			!strings.Contains(name, "/") {
			served = path + "/" + name
			if nested[bool](r, "namespaced") {
				path += "/namespaces/" + nested[string](o, "metadata", "namespace")
			}
			return path + "/" + name, served
		}
	}
	t.Fatalf("%s is not served at %s", nested[string](o, "kind"), path)
	return "", ""
}

const asPartial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// modified applies the function change to a copy of o and returns the copy as JSON.
func modified(o object, change func(o, metadata object)) string {
	var c object
	if err := json.Unmarshal([]byte(text(o)), &c); err != nil {
		panic(err) // text has returned invalid JSON
	}
	change(c, c["metadata"].(object))
	return text(c)
}

// exerciseBuiltin compares invalid writes, reads, updates, patches, applies and the deletion of o.
func (p *pair) exerciseBuiltin(t *testing.T, collection string, o object) {
	for _, body := range invalidBuiltins(o) {
		p.do(t, "POST "+collection+"?dryRun=All&fieldValidation=Strict", "", body)
	}
	body, one := text(o), collection+"/"+nested[string](o, "metadata", "name")
	p.do(t, "POST "+collection+"?dryRun=All", "", body)
	p.do(t, "POST "+collection, "", body)
	if nested[string](o, "kind") == "APIService" { // a controller writes its condition
		p.waitFor(t, one, func(a response) bool { return len(nested[[]any](a.body, "status", "conditions")) > 0 })
	}
	p.get(t, one)
	p.table(t, one)
	p.send(t, request{method: "GET", path: one, accept: asPartial})
	p.table(t, collection+"?fieldSelector=metadata.name%3D"+nested[string](o, "metadata", "name"))
	p.do(t, "PUT "+one, "", modified(o, func(_, m object) { m["labels"] = object{"put": "yes"} }))
	p.do(t, "PUT "+one, "", modified(o, func(_, m object) { m["resourceVersion"] = "1" }))
	for _, body := range invalidBuiltins(o)[1:] {
		p.do(t, "PUT "+one+"?dryRun=All", "", body)
	}
	p.do(t, "PUT "+one+"/status", "", body)
	p.get(t, one+"/status")
	p.do(t, "PATCH "+one+"/status", asMerge, `{"metadata":{"annotations":{"status":"yes"}}}`)
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"labels":{"merge":"yes"}}}`)
	p.do(t, "PATCH "+one, asStrategic, `{"metadata":{"labels":{"strategic":"yes"},"$setElementOrder/finalizers":[]}}`)
	p.do(t, "PATCH "+one, asJSONPatch, `[{"op":"add","path":"/metadata/annotations","value":{"json":"yes"}}]`)
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"labels":{"a b":"c"}}}`)
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, modified(o,
		func(_, m object) { m["labels"] = object{"apply": "a"} }))
	p.do(t, "PATCH "+one+"?fieldManager=b", asApply, modified(o,
		func(_, m object) { m["labels"] = object{"apply": "b"} }))
	p.do(t, "PATCH "+one+"?fieldManager=b&force=true", asApply,
		modified(o, func(_, m object) { m["labels"] = object{"apply": "b"} }))
	p.get(t, one+"/scale")
	p.table(t, one+"/scale")
	p.do(t, "PATCH "+one+"/scale", asMerge, `{"spec":{"replicas":3}}`)
	p.get(t, collection+"?labelSelector=apply%3Db")
	p.do(t, "DELETE "+one+"?dryRun=All", "", "")
	p.do(t, "DELETE "+one, "", `{"propagationPolicy":"Background"}`)
	if kind := nested[string](o, "kind"); kind == "Namespace" || kind == "ServiceCIDR" {
		return // its finalizer stays, as kube-controller-manager does not run
	}
	p.do(t, "DELETE "+one, "", `{"gracePeriodSeconds":0}`)
	p.get(t, one)
}

// invalidBuiltins returns variants of o: with an invalid name, without content, with an unknown field, and with an
// invalid label. In the other variants, one field has a wrong type or is empty.
func invalidBuiltins(o object) []string {
	all := []string{
		modified(o, func(_, m object) { m["name"] = "Not/Valid" }),
		modified(o, func(o, _ object) {
			maps.DeleteFunc(o, func(k string, _ any) bool {
				return k != "apiVersion" && k != "kind" && k != "metadata"
			})
		}),
		modified(o, func(o, _ object) { o["unknown"] = 1 }),
		modified(o, func(_, m object) { m["labels"] = object{"k": 7} }),
	}
	for _, field := range slices.Sorted(maps.Keys(o)) {
		if field != "apiVersion" && field != "kind" && field != "metadata" {
			all = append(all, modified(o, func(o, _ object) { o[field] = wrongType(o[field]) }),
				modified(o, func(o, _ object) { o[field] = emptyValue(o[field]) }))
		}
	}
	return all
}

// wrongType returns a value whose type differs from that of v.
func wrongType(v any) any {
	if _, ok := v.(string); ok {
		return object{"wrong": "type"}
	}
	return "wrong type"
}

// emptyValue returns an empty value of the same type as v. For a number, it returns -1.
func emptyValue(v any) any {
	switch v.(type) {
	case object:
		return object{}
	case []any:
		return []any{object{}}
	case string:
		return ""
	}
	return -1
}

var serviceManifests = []string{
	`{apiVersion: v1, kind: Service, metadata: {name: cluster}, spec: {selector: {a: b}, ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: node}, spec: {type: NodePort, ports: [{port: 80, name: a}, {port: 81, name: b}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: balanced}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: outside}, spec: {clusterIP: 192.168.1.1, ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: low}, spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: six}, spec: {ipFamilies: [IPv6], ports: [{port: 80}]}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: dual}, spec: {ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]}}`,
}

var reviews = map[string]string{
	"authentication.k8s.io/v1/selfsubjectreviews":                          `{apiVersion: authentication.k8s.io/v1, kind: SelfSubjectReview}`,
	"authentication.k8s.io/v1/tokenreviews":                                `{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: unknown}}`,
	"authorization.k8s.io/v1/selfsubjectaccessreviews":                     `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {resourceAttributes: {verb: get, resource: pods}}}`,
	"authorization.k8s.io/v1/subjectaccessreviews":                         `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: jane, resourceAttributes: {verb: get, resource: pods}}}`,
	"authorization.k8s.io/v1/subjectaccessreviews?dryRun=All":              `{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {nonResourceAttributes: {verb: get, path: /livez}}}`,
	"authorization.k8s.io/v1/namespaces/ns/localsubjectaccessreviews":      `{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview, metadata: {namespace: ns}, spec: {user: jane, resourceAttributes: {verb: get, resource: pods, namespace: other}}}`,
	"authorization.k8s.io/v1/selfsubjectrulesreviews":                      `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectRulesReview, spec: {namespace: ns}}`,
	"authorization.k8s.io/v1/selfsubjectaccessreviews?fieldManager=a":      `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {}}`,
	"authorization.k8s.io/v1/selfsubjectaccessreviews?fieldValidation=Bad": `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {}}`,
}
