package conformance_test

import (
	"net/http"
	"strings"
	"testing"
)

const (
	configMaps    = "/api/v1/namespaces/conformance/configmaps"
	configMap     = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","labels":{"a":"b"}},"data":{"k":"v"}}`
	staleRevision = `{"metadata":{"resourceVersion":"1"}}`
)

// testErrors compares the errors for invalid requests, queries, patches, pages and deletions, and for forbidden
// requests.
func testErrors(t *testing.T, p *pair) {
	p.do(t, "POST "+configMaps, "", configMap)
	for _, r := range invalidRequests {
		p.send(t, r)
	}
	for _, q := range invalidQueries {
		p.get(t, configMaps+"?"+q)
	}
	for _, q := range []string{"fieldManager=" + strings.Repeat("x", 129), "fieldManager=a%00b", "dryRun=some",
		"dryRun=All", "fieldValidation=Often", "pretty=1"} {
		p.do(t, "POST "+configMaps+"?"+q, "", strings.Replace(configMap, "one", "two", 1))
		p.do(t, "PUT "+configMaps+"/one?"+q, "", configMap)
		p.do(t, "PATCH "+configMaps+"/one?"+q, asMerge, `{"data":{"x":"y"}}`)
	}
	testPatches(t, p)
	testPaging(t, p)
	testDeletions(t, p)
	testForbidden(t, p)
}

// testPatches compares patches that change the kind, contain wrong types, or write integers as floats.
func testPatches(t *testing.T, p *pair) {
	const deployments = "/apis/apps/v1/namespaces/conformance/deployments"
	p.do(t, "POST "+deployments, asYAML,
		`{apiVersion: apps/v1, kind: Deployment, metadata: {name: patched}, spec: {replicas: 1, selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}}`)
	for _, path := range []string{configMaps + "/one", deployments + "/patched", deployments + "/patched/scale",
		deployments + "/patched/status"} {
		for _, contentType := range []string{asMerge, asStrategic} {
			for _, body := range []string{
				`{"kind":"Secret"}`, `{"kind":"Deployment"}`, `{"apiVersion":"apps/v1"}`, `{"apiVersion":"v9"}`,
				`{"apiVersion":"a/b/c"}`, `{"kind":7}`,
				`{"metadata":{"labels":"invalid"}}`, `{"metadata":"invalid"}`, `{"metadata":{"labels":["a"]}}`,
				`{"metadata":{"generation":99999999999999999999}}`,
				`{"metadata":{"ownerReferences":"a"}}`, `{"metadata":{"ownerReferences":[7]}}`,
				`{"metadata":{"finalizers":{"a":"b"}}}`, `{"metadata":{"resourceVersion":7}}`,
				`{"spec":{"replicas":2.0}}`, `{"spec":{"replicas":"2"}}`, `{"spec":{"replicas":2.5}}`, `{"spec":"x"}`,
				`{"spec":{"template":{"spec":{"containers":"x"}}}}`,
				`{"spec":{"template":{"spec":{"containers":[{"name":"a","ports":7}]}}}}`,
			} {
				p.do(t, "PATCH "+path+"?dryRun=All", contentType, body)
			}
		}
	}
	apply := func(spec string) string {
		return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"patched"},"spec":` + spec + `}`
	}
	for _, spec := range []string{`{"replicas":2.0}`, `{"replicas":2e0}`, `{"replicas":2.5}`, `{"replicas":1e99}`,
		`{"replicas":-0.0}`, `{"replicas":"2"}`, `[]`} {
		p.do(t, "PATCH "+deployments+"/patched?dryRun=All&force=true&fieldManager=a", asApply, apply(spec))
	}
	p.do(t, "PATCH "+deployments+"/patched?dryRun=All&fieldManager=a", asApply,
		apply(`{"minReadySeconds":3,"replicas":7,"selector":{"matchLabels":{"a":"c"}},"template":{"spec":{"containers":[{"name":"a","image":"c"}],"hostname":"x"}}}`))
	p.do(t, "POST /api/v1/namespaces/conformance/serviceaccounts", asYAML,
		`{apiVersion: v1, kind: ServiceAccount, metadata: {name: bound}}`)
	for _, ref := range []string{`{}`, `{"kind":"Pod"}`, `{"name":"x"}`,
		`{"kind":"Pod","apiVersion":"v1","name":"none"}`, `{"kind":"ConfigMap","apiVersion":"v1","name":"one"}`} {
		p.do(t, "POST /api/v1/namespaces/conformance/serviceaccounts/bound/token", "",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"boundObjectRef":`+ref+`}}`)
	}
	for _, accept := range []string{"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
		"application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList"} {
		p.send(t, request{method: "GET", path: "/apis", accept: accept})
		p.send(t, request{method: "GET", path: "/apis", accept: accept + ",application/json"})
	}
	p.do(t, "DELETE "+deployments+"/patched", "", "")
}

var invalidRequests = []request{
	// bodies
	{method: "POST", path: configMaps, body: `{`},
	{method: "POST", path: configMaps, body: `[]`},
	{method: "POST", path: configMaps, body: `"x"`},
	{method: "POST", path: configMaps, body: `null`},
	{method: "POST", path: configMaps, body: `{}`},
	{method: "POST", path: configMaps, body: `{"kind":"ConfigMap"}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1"}`},
	{method: "POST", path: configMaps, body: configMap + `x`},
	{method: "POST", path: configMaps, body: configMap + configMap},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"x"}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"a/b/c","kind":"ConfigMap","metadata":{"name":"x"}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":7}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"other"}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","resourceVersion":"1"}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","labels":{"a b":"c"},"annotations":{"/":"c"}}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","ownerReferences":[{"kind":"A"}],"finalizers":["x y"]}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"k":7}}`},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"A_"}}`},
	{method: "POST", path: configMaps, body: `a: [`, contentType: asYAML},
	{method: "POST", path: configMaps, body: "a: 1\na: 2\n", contentType: asYAML},
	{method: "POST", path: configMaps, body: configMap},
	{method: "POST", path: "/api/v1/namespaces/nowhere/configmaps", body: configMap},
	{method: "POST", path: "/api/v1/configmaps", body: configMap},
	{method: "POST", path: configMaps},
	{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"k":"` + strings.Repeat("x", 4<<20) + `"}}`},
	{method: "POST", path: configMaps + "?dryRun=All",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"k":"` +
			strings.Repeat("x", 1<<20) + `"}}`},
	{method: "POST", path: configMaps + "?fieldValidation=Strict",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","extra":1},"more":{"a":1},"data":{"a":"1","a":"2"}}`},
	{method: "POST", path: configMaps + "?fieldValidation=Warn&dryRun=All",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","extra":1},"more":{"a":1},"data":{"a":"1","a":"2"}}`},
	{method: "POST", path: configMaps + "?fieldValidation=Ignore&dryRun=All",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","extra":1},"more":{"a":1}}`},
	// media types
	{method: "POST", path: configMaps, body: configMap, contentType: "text/plain"},
	{method: "POST", path: configMaps, body: configMap, contentType: "application/xml; charset=utf-8"},
	{method: "POST", path: configMaps, body: configMap, contentType: "a/b/c"},
	{method: "PUT", path: configMaps + "/one", body: configMap, contentType: "text/plain"},
	{method: "PATCH", path: configMaps + "/one", body: `{}`, contentType: asJSON},
	{method: "PATCH", path: configMaps + "/one", body: `{}`, contentType: "text/plain"},
	{method: "GET", path: configMaps, accept: "text/html"},
	{method: "GET", path: configMaps + "/one", accept: "image/png"},
	{method: "GET", path: configMaps + "/one", accept: "application/json;as=Nothing;v=v1;g=meta.k8s.io"},
	{method: "GET", path: configMaps + "/one", accept: "application/json;as=Table;v=v2;g=meta.k8s.io"},
	{method: "GET", path: configMaps + "/one", accept: "application/json;as=Table;v=v1beta1;g=meta.k8s.io"},
	{method: "GET", path: configMaps + "/one", accept: "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
	{method: "GET", path: configMaps, accept: "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
	{method: "GET", path: configMaps + "?includeObject=Object", accept: asTable},
	{method: "GET", path: configMaps + "?includeObject=None", accept: asTable},
	{method: "GET", path: configMaps + "?includeObject=Some", accept: asTable},
	{method: "GET", path: configMaps + "/one", accept: asYAML},
	{method: "GET", path: configMaps + "/none", accept: asYAML},
	{method: "GET", path: configMaps + "/none", accept: asTable},
	{method: "GET", path: configMaps + "/one?pretty=true"},
	// patches
	{method: "PATCH", path: configMaps + "/one", body: `{`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `[]`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{}`, contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"replace","path":"/data/none","value":"x"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"test","path":"/data/k","value":"x"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"turn","path":"/data/k","value":"x"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"add","path":"data","value":"x"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"add","path":"/data/a/b/c","value":"x"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"move","from":"/data/none","path":"/data/b"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `[{"op":"remove","path":"/metadata/name"}]`,
		contentType: asJSONPatch},
	{method: "PATCH", path: configMaps + "/one", body: `{"metadata":{"name":"two"}}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{"metadata":{"namespace":"two"}}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{"metadata":{"uid":"two"}}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: staleRevision, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{"kind":"Secret"}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{"data":7}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{"data":7}`, contentType: asStrategic},
	{method: "PATCH", path: configMaps + "/one", body: `{"data":{"$patch":"turn"}}`, contentType: asStrategic},
	{method: "PATCH", path: configMaps + "/one", body: `{"metadata":{"$deleteFromPrimitiveList/finalizers":7}}`,
		contentType: asStrategic},
	{method: "PATCH", path: configMaps + "/none", body: `{}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one", body: `{}`, contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a", body: `{}`, contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a", body: `a: [`, contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a", body: strings.Replace(configMap, "one", "two", 1),
		contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a",
		body:        `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","managedFields":[]}}`,
		contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"data":7}`, contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?fieldManager=a",
		body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"extra":7}`, contentType: asApply},
	{method: "PATCH", path: configMaps + "/one?force=true", body: `{}`, contentType: asMerge},
	{method: "PATCH", path: configMaps + "/one?force=maybe&fieldManager=a", body: configMap, contentType: asApply},
	// updates
	{method: "PUT", path: configMaps + "/one", body: strings.Replace(configMap, "one", "two", 1)},
	{method: "PUT", path: configMaps + "/none", body: strings.Replace(configMap, "one", "none", 1)},
	{method: "PUT", path: configMaps + "/one", body: strings.Replace(configMap, `"name":"one"`,
		`"name":"one","resourceVersion":"1"`, 1)},
	{method: "PUT", path: configMaps + "/one", body: strings.Replace(configMap, `"name":"one"`,
		`"name":"one","resourceVersion":"x"`, 1)},
	{method: "PUT", path: configMaps + "/one", body: strings.Replace(configMap, `"name":"one"`,
		`"name":"one","uid":"x"`, 1)},
	{method: "PUT", path: configMaps + "/one", body: strings.Replace(configMap, `"name":"one"`,
		`"name":"one","namespace":"x"`, 1)},
	{method: "PUT", path: configMaps + "/one", body: `{"apiVersion":"v1","kind":"ConfigMap"}`},
	// paths and methods
	{method: "GET", path: "/nothing"},
	{method: "GET", path: "/api/v2"},
	{method: "GET", path: "/api/v1/nothings"},
	{method: "GET", path: "/api/v1/nothings/x"},
	{method: "GET", path: "/api/v1/namespaces/conformance/nothings"},
	{method: "GET", path: "/apis/nothing.example.com"},
	{method: "GET", path: "/apis/nothing.example.com/v1"},
	{method: "GET", path: "/apis/nothing.example.com/v1/things"},
	{method: "GET", path: "/apis/apps/v7"},
	{method: "GET", path: "/apis/apps/v7/deployments"},
	{method: "GET", path: configMaps + "/one/status"},
	{method: "GET", path: configMaps + "/one/scale"},
	{method: "GET", path: configMaps + "/none"},
	{method: "GET", path: "/api/v1/configmaps/one"},
	{method: "GET", path: "/api/v1/nodes/none"},
	{method: "GET", path: "/api/v1/namespaces/conformance/nodes/none"},
	{method: "POST", path: configMaps + "/one", body: configMap},
	{method: "PUT", path: configMaps, body: configMap},
	{method: "PATCH", path: configMaps, body: `{}`, contentType: asMerge},
	{method: "DELETE", path: "/api/v1/namespaces"},
	{method: "DELETE", path: "/api"},
	{method: "POST", path: "/apis", body: `{}`},
	{method: "POST", path: "/version", body: `{}`},
	{method: "PUT", path: "/apis/apps", body: `{}`},
	{method: "OPTIONS", path: configMaps},
	{method: "TRACE", path: configMaps},
	{method: "BREW", path: configMaps},
	{method: "HEAD", path: configMaps},
	{method: "HEAD", path: configMaps + "/one"},
	{method: "HEAD", path: "/api"},
	{method: "HEAD", path: "/version/"},
	{method: "HEAD", path: "/apis/apps"},
	{method: "HEAD", path: "/apis/apps/v1"},
	{method: "HEAD", path: "/api/v1/nothings"},
	{method: "HEAD", path: "/apis/authorization.k8s.io/v1/subjectaccessreviews"},
	{method: "HEAD", path: "/livez"},
	{method: "POST", path: "/api/v1", body: `{}`},
	{method: "DELETE", path: "/apis/apps/v1"},
	{method: "POST", path: "/api/v2/pods", body: `{}`},
	{method: "POST", path: "/apis/apps/v7", body: `{}`},
	{method: "GET", path: "/apis/apps/v7/a/b/c/d/e/f/g/h"},
	{method: "GET", path: "/livez"},
	{method: "GET", path: "/healthz"},
	{method: "GET", path: "/livez/ping"},
	{method: "GET", path: "/readyz/none"},
}

var invalidQueries = []string{
	"limit=x", "limit=-1", "limit=0", "labelSelector=a%3D%3D%3D", "labelSelector=a+in+(b", "labelSelector=a+in+(b)",
	"labelSelector=!a", "labelSelector=a%3Db,c",
	"fieldSelector=spec.x%3Dy", "fieldSelector=metadata.name%3Done", "fieldSelector=metadata.name!%3Done",
	"fieldSelector=%3D", "fieldSelector=metadata.namespace%3Dconformance",
	"resourceVersion=x", "resourceVersion=-1", "resourceVersion=99999999",
	"resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact",
	"resourceVersionMatch=Other&resourceVersion=1", "resourceVersionMatch=NotOlderThan&resourceVersion=0",
	"resourceVersionMatch=NotOlderThan", "continue=x",
	"continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ", "continue=x&resourceVersion=1", "continue=x&resourceVersion=0",
	"continue=x&resourceVersionMatch=Exact", "watch=x&timeoutSeconds=1", "watch=1&resourceVersion=x",
	"watch=1&resourceVersion=99999999&timeoutSeconds=1", "watch=1&resourceVersionMatch=Exact",
	"watch=1&sendInitialEvents=true", "sendInitialEvents=true",
	"watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=x&timeoutSeconds=1",
	"timeoutSeconds=x", "timeout=x", "timeout=10s", "timeout=-1s", "allowWatchBookmarks=x", "unknown=x", "pretty=x",
	"shardSelector=x",
}

// testPaging compares lists that are read in chunks.
func testPaging(t *testing.T, p *pair) {
	for _, name := range []string{"page-1", "page-2", "page-3"} {
		p.do(t, "POST "+configMaps, asYAML, "{apiVersion: v1, kind: ConfigMap, metadata: {name: "+name+
			", labels: {page: \"y\"}}}")
	}
	p.get(t, configMaps+"?limit=1&labelSelector=page%3Dy")
	p.get(t, configMaps+"?limit=1&continue={continue}")
	p.get(t, configMaps+"?limit=1&resourceVersion=0")
	p.get(t, configMaps+"?limit=1")
	p.get(t, configMaps+"?limit=1&continue={continue}&labelSelector=page%3Dy")
	p.get(t, configMaps+"?limit=1")
	p.get(t, configMaps+"?limit=1&continue={continue}&resourceVersion=5")
	p.get(t, "/api/v1/namespaces/default/configmaps?limit=1&continue={continue}")
	p.send(t, request{method: "GET", path: configMaps + "?limit=2", accept: asTable})
	p.get(t, configMaps+"/page-1")
	p.get(t, configMaps+"?resourceVersion={rv}&resourceVersionMatch=Exact&labelSelector=page%3Dy")
	p.get(t, configMaps+"/page-1?resourceVersion={rv}")
	p.get(t, configMaps+"/page-1?resourceVersion=0")
	p.get(t, configMaps+"/page-1?resourceVersion=x")
}

func testDeletions(t *testing.T, p *pair) {
	for _, q := range []string{"gracePeriodSeconds=x", "gracePeriodSeconds=-5", "propagationPolicy=Often",
		"orphanDependents=true&propagationPolicy=Orphan", "orphanDependents=x", "dryRun=All", "dryRun=x"} {
		p.do(t, "DELETE "+configMaps+"/one?"+q, "", "")
	}
	for _, body := range []string{
		`{`, `[]`, `{"kind":"Pod"}`, `{"kind":"DeleteOptions","apiVersion":"v7"}`,
		`{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`,
		`{"gracePeriodSeconds":"x"}`, `{"propagationPolicy":"x"}`,
		`{"propagationPolicy":"Orphan","orphanDependents":true}`, `{"dryRun":["x"]}`,
		`{"preconditions":{"uid":"x"}}`, `{"preconditions":{"resourceVersion":"1"}}`,
		`{"preconditions":{"uid":"x","resourceVersion":"1"}}`, `{"extra":1}`,
		`{"dryRun":["All"],"ignoreStoreReadErrorWithClusterBreakingPotential":true,"gracePeriodSeconds":0}`,
	} {
		p.do(t, "POST "+configMaps, "", configMap)
		p.do(t, "DELETE "+configMaps+"/one?dryRun=All", "", body)
		p.do(t, "DELETE "+configMaps+"/one", "", strings.Replace(body, "{", `{"dryRun":["All"],`, 1))
	}
	p.do(t, "POST "+configMaps, "", configMap)
	p.do(t, "DELETE "+configMaps+"/none", "", "")
	p.get(t, configMaps+"/page-1")
	p.do(t, "DELETE "+configMaps+"/page-1", "", `{"preconditions":{"uid":"{uid}","resourceVersion":"1"}}`)
	p.do(t, "DELETE "+configMaps+"/page-1", "", `{"preconditions":{"uid":"{uid}","resourceVersion":"{rv}"}}`)
	p.do(t, "DELETE "+configMaps+"?labelSelector=page%3Dy&dryRun=All", "", "")
	p.do(t, "DELETE "+configMaps+"?labelSelector=page%3Dy", "", `{"preconditions":{"uid":"x"}}`)
	p.do(t, "DELETE "+configMaps+"?labelSelector=page%3D%3D%3Dy", "", "")
	p.do(t, "DELETE "+configMaps+"?labelSelector=page%3Dy&limit=1", "", "")
	p.do(t, "PATCH "+configMaps+"/one", asMerge, `{"metadata":{"finalizers":["a.example.com/b"]}}`)
	p.do(t, "DELETE "+configMaps+"/one", "", "")
	p.do(t, "DELETE "+configMaps+"/one", "", "")
	p.do(t, "PATCH "+configMaps+"/one", asMerge, `{"metadata":{"finalizers":["a.example.com/b","c.example.com/d"]}}`)
	p.do(t, "PUT "+configMaps+"/one", "", configMap)
	p.get(t, configMaps+"/one")
}

// testForbidden compares requests of a user without permissions, of impersonated users and of anonymous clients.
func testForbidden(t *testing.T, p *pair) {
	jane := http.Header{"Impersonate-User": {"jane"}}
	for _, r := range []request{
		{method: "GET", path: configMaps},
		{method: "GET", path: configMaps + "/one"},
		{method: "POST", path: configMaps, body: configMap},
		{method: "GET", path: "/apis/apps/v1/deployments"},
		{method: "GET", path: "/api/v1/nodes/x"},
		{method: "GET", path: "/metrics"},
		{method: "GET", path: "/api"},
		{method: "GET", path: "/logs"},
		{method: "GET", path: "/apis/nothing.example.com/v1/things"},
		{method: "DELETE", path: configMaps},
		{method: "PUT", path: "/apis/apps/v1/namespaces/a/deployments/b/status", body: "{}"},
	} {
		r.header = jane
		p.send(t, r)
	}
	for _, h := range []http.Header{
		{"Impersonate-Group": {"g"}}, {"Impersonate-User": {"system:serviceaccount:a:b"}},
		{"Impersonate-User": {"system:anonymous"}},
		{"Impersonate-User": {"jane"}, "Impersonate-Group": {"system:masters"}}, {"Impersonate-Uid": {"7"}},
	} {
		p.send(t, request{method: "GET", path: configMaps + "/one", header: h})
	}
	p.send(t, request{method: "GET", path: configMaps, anonymous: true})
	p.send(t, request{method: "GET", path: configMaps, anonymous: true,
		header: http.Header{"Authorization": {"Bearer unknown"}}})
	p.send(t, request{method: "GET", path: "/livez", anonymous: true})
}
