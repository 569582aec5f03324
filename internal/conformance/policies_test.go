package conformance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/testserver"
)

const policiesPath = "/apis/admissionregistration.k8s.io/v1/"

// TestPolicies checks that both servers validate and mutate custom and built-in objects in the same way by
// admission policies. Codes, reasons, messages, warnings and objects are equal. policyCases covers each field of a
// policy, and randomPolicies combines the fields at random (VAL-027).
func TestPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	// No controller creates ServiceAccounts here.
	upstream := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24",
		"--disable-admission-plugins=ServiceAccount")
	p := &pair{
		trellis:  newServer(t, "trellis", testserver.Start(t).Config),
		upstream: newServer(t, "upstream", upstream),
		known:    knownDifferences(),
	}
	p.do(t, "POST /api/v1/namespaces", asYAML,
		`{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: red}}}`)
	p.do(t, "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", asYAML, carCRD)
	p.waitFor(t, "/apis/police.example.com/v2/namespaces/ns/cars", isServed)
	p.createParams(t)
	for i, c := range policyCases {
		p.createPolicy(t, i, c)
	}
	random := randomPolicies(rand.New(rand.NewPCG(15, 27)))
	for i, c := range random {
		p.createPolicy(t, len(policyCases)+i, c)
	}
	p.waitForPolicies(t)
	for i, c := range append(policyCases, random...) {
		p.runPolicyCase(t, i, c)
	}
	t.Logf("%d requests, %d with equal responses", p.sent, p.equal)
}

// policyCase is a policy with its binding and test objects. The policy selects the objects by a label with the
// number of the case.
type policyCase struct {
	mutates       bool
	spec, binding string // additional fields in the spec of the policy and of the binding
	objects       []string
	patches       []string // merge patches of the first object; a subresource such as /scale may precede the patch
	requests      []string // further requests as "METHOD path body"; ONE stands for the first object's name
}

const carCRD = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: cars.police.example.com}, spec: {group: police.example.com,
 scope: Namespaced, names: {plural: cars, singular: car, kind: Car, listKind: CarList}, versions: [
 {name: v1, served: true, storage: true, subresources: {status: {}, scale: {specReplicasPath: .spec.wheels, statusReplicasPath: .status.wheels}}, schema: {openAPIV3Schema: &s {type: object, properties: {
   spec: {type: object, properties: {wheels: {type: integer, default: 4}, color: {type: string}, tags: {type: array, items: {type: string}},
     parts: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, weight: {type: integer, default: 1}}}}}},
   status: {type: object, properties: {wheels: {type: integer}}}}}}},
 {name: v2, served: true, storage: false, subresources: {status: {}, scale: {specReplicasPath: .spec.wheels, statusReplicasPath: .status.wheels}}, schema: {openAPIV3Schema: *s}}]}}`

func (p *pair) createParams(t *testing.T) {
	for _, body := range []string{
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: low, labels: {param: both}}, data: {max: "3", color: red}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: high, labels: {param: both}}, data: {max: "9", color: blue}}`,
	} {
		p.do(t, "POST /api/v1/namespaces/ns/configmaps", asYAML, body)
		p.do(t, "POST /api/v1/namespaces/default/configmaps", asYAML, body)
	}
	p.do(t, "POST /apis/police.example.com/v2/namespaces/ns/cars", asYAML,
		`{apiVersion: police.example.com/v2, kind: Car, metadata: {name: param}, spec: {wheels: 6}}`)
}

// createPolicy creates the policy of a case and its binding. By default, the policy matches the objects with the
// label of the case.
func (p *pair) createPolicy(t *testing.T, i int, c policyCase) {
	kind, plural := "ValidatingAdmissionPolicy", "validatingadmissionpolicies"
	binding := "validationActions: [Deny]"
	if c.mutates {
		kind, plural, binding = "MutatingAdmissionPolicy", "mutatingadmissionpolicies", "matchResources: {}"
	}
	if c.binding != "" {
		binding = c.binding
	}
	if !strings.Contains(c.spec, "resourceRules") {
		c.spec = `matchConstraints: {` + caseSelector(i) +
			`, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: ["*"]}]}, ` + c.spec
	}
	c.spec = strings.ReplaceAll(c.spec, "LABELLED", caseSelector(i))
	if c.mutates && !strings.Contains(c.spec, "reinvocationPolicy") {
		c.spec += ", reinvocationPolicy: Never"
	}
	p.do(t, "POST "+policiesPath+plural, asYAML,
		fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %s, metadata: {name: p%d}, spec: {%s}}`, kind,
			i, c.spec))
	p.do(t, "POST "+policiesPath+strings.Replace(plural, "policies", "policybindings", 1), asYAML,
		fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sBinding, metadata: {name: b%d}, spec: {policyName: p%[2]d, %s}}`, kind, i, binding))
}

// caseSelector returns the selector for the objects of a case.
func caseSelector(i int) string { return fmt.Sprintf(`objectSelector: {matchLabels: {case: "%d"}}`, i) }

// waitForPolicies blocks until kube-apiserver applies the policies and their parameters. It creates one more policy
// of each kind and waits for their effects.
func (p *pair) waitForPolicies(t *testing.T) {
	const last = 9999
	p.createPolicy(t, last, policyCase{spec: `validations: [{expression: "false"}]`})
	p.createPolicy(t, last, policyCase{mutates: true,
		spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data', value: {'mutated': 'yes'}}]"}}]`})
	probe := request{method: http.MethodPost, path: "/api/v1/namespaces/ns/configmaps?dryRun=All", contentType: asYAML,
		body: fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: probe, labels: {case: "%d"}}}`, last)}
	if a, err := p.trellis.send(t.Context(), probe); err != nil || a.code != 422 {
		t.Errorf("write that the policy denies: got %v, %v, want code 422 as soon as the binding is created", a, err)
	}
	binding := policiesPath + "validatingadmissionpolicybindings/b9999"
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			a, err := p.upstream.send(ctx, probe)
			return a.code == 422, err
		})
	if err != nil {
		t.Fatal(err)
	}
	p.do(t, "DELETE "+binding, "", "")
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			a, err := p.upstream.send(ctx, probe)
			return nested[string](a.body, "data", "mutated") == "yes", err
		})
	if err != nil {
		t.Fatal(err)
	}
	p.send(t, probe)
}

// runPolicyCase compares the requests of a case.
func (p *pair) runPolicyCase(t *testing.T, i int, c policyCase) {
	collection := func(o string) string {
		switch {
		case strings.Contains(o, "kind: Car"):
			version := "v1"
			if strings.Contains(o, "example.com/v2") {
				version = "v2"
			}
			return "/apis/police.example.com/" + version + "/namespaces/ns/cars"
		case strings.Contains(o, "kind: Deployment"):
			return "/apis/apps/v1/namespaces/ns/deployments"
		case strings.Contains(o, "kind: Event"):
			if strings.Contains(o, "events.k8s.io") {
				return "/apis/events.k8s.io/v1/namespaces/ns/events"
			}
			return "/api/v1/namespaces/ns/events"
		case strings.Contains(o, "kind: Namespace"):
			return "/api/v1/namespaces"
		case strings.Contains(o, "kind: Pod"):
			return "/api/v1/namespaces/ns/pods"
		}
		return "/api/v1/namespaces/ns/configmaps"
	}
	for n, o := range c.objects {
		name := fmt.Sprintf("o%d-%d", i, n)
		o = strings.Replace(o, "METADATA", fmt.Sprintf(`metadata: {name: %s, labels: {case: "%d"}}`, name, i), 1)
		o = strings.Replace(o, "GENERATED",
			fmt.Sprintf(`metadata: {generateName: %s-, labels: {case: "%d"}}`, name, i), 1)
		p.do(t, "POST "+collection(o), asYAML, o)
		if n > 0 {
			continue
		}
		for _, patch := range c.patches {
			sub, patch, _ := strings.Cut(patch, "{")
			p.do(t, "PATCH "+collection(o)+"/"+name+sub, asMerge, "{"+patch)
		}
		for _, r := range c.requests {
			line, body, found := strings.Cut(strings.ReplaceAll(r, "ONE", name), " {")
			if found {
				body = "{" + body
			}
			p.do(t, line, "", body)
		}
		p.do(t, "DELETE "+collection(o)+"/"+name, "", "")
		p.get(t, collection(o)+"/"+name)
	}
}

const (
	aMap    = `{apiVersion: v1, kind: ConfigMap, METADATA, data: {a: "5", color: red}}`
	aCar    = `{apiVersion: police.example.com/v1, kind: Car, METADATA, spec: {color: red, tags: [x, z], parts: [{name: door, weight: 7}]}}`
	aCarV2  = `{apiVersion: police.example.com/v2, kind: Car, METADATA, spec: {wheels: 3, color: blue}}`
	aDeploy = `{apiVersion: apps/v1, kind: Deployment, METADATA, spec: {replicas: 3, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`
	somePod = `{apiVersion: v1, kind: Pod, METADATA, spec: {automountServiceAccountToken: false, containers: [{name: c, image: "i:1", resources: {limits: {cpu: 1500m}}}]}}`
	anEvent = `{apiVersion: v1, kind: Event, METADATA, involvedObject: {namespace: ns, name: x, kind: Pod}, reason: Tested, message: hello}`
	aNew    = `{apiVersion: events.k8s.io/v1, kind: Event, METADATA, regarding: {namespace: ns, name: x, kind: Pod}, reason: Tested, note: hello, action: a, type: Normal, reportingController: c, reportingInstance: i, eventTime: "2026-01-01T00:00:00.000000Z"}`
	aSpace  = `{apiVersion: v1, kind: Namespace, METADATA}`
)

var objects = []string{aMap, aCar, aCarV2, aDeploy, somePod}

var policyCases = []policyCase{
	{spec: `validations: [{expression: "false"}]`, objects: []string{aMap, aCar, aCarV2, aDeploy, somePod, aSpace,
		anEvent}},
	{spec: `validations: [{expression: "has(object.nothing) || object.metadata.name == ''", message: "  it has a name  "}]`, objects: objects},
	{spec: `validations: [{expression: "object.data.a == '4'", messageExpression: "'a is ' + object.data.a", reason: Forbidden}]`, objects: []string{aMap}},
	{spec: `validations: [{expression: "object.data.a == '4'", messageExpression: "string(object.data.missing)", message: other, reason: RequestEntityTooLarge}]`, objects: []string{aMap}},
	{spec: `validations: [{expression: "object.spec.missing == 4", reason: RequestEntityTooLarge}]`, objects: objects},
	{spec: `failurePolicy: Ignore, validations: [{expression: "object.spec.missing == 4"}]`, objects: objects},
	{spec: `variables: [{name: w, expression: "object.spec.wheels"}, {name: more, expression: "variables.w + 1"}], validations: [{expression: "variables.more < 5", messageExpression: "'wheels: ' + string(variables.w)"}]`,
		objects: []string{aCar, aCarV2}, patches: []string{`{"spec":{"wheels":2}}`}},
	{spec: `variables: [{name: w, expression: "object.missing"}], validations: [{expression: "variables.w < 5"}]`,
		objects: []string{aCar}},
	{spec: `matchConditions: [{name: blue, expression: "object.spec.color == 'blue'"}], validations: [{expression: "false"}]`, objects: []string{aCar, aCarV2, aMap}},
	{spec: `matchConditions: [{name: wrong, expression: "object.missing == 1"}], failurePolicy: Ignore, validations: [{expression: "false"}]`, objects: []string{aCar}},
	{spec: `validations: [{expression: "false", message: warned}]`, binding: `validationActions: [Warn, Audit]`,
		objects: objects},
	{spec: `validations: [{expression: "false", message: one}, {expression: "1 == 2"}]`,
		binding: `validationActions: [Warn]`, objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "int(object.data.a) < int(params.data.max)", messageExpression: "'at most ' + params.data.max"}]`,
		binding: `validationActions: [Deny], paramRef: {name: low, parameterNotFoundAction: Deny}`,
		objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "params.kind == 'ConfigMap' && params.apiVersion == 'v1' && params.metadata.name == 'x'"}]`,
		binding: `validationActions: [Deny], paramRef: {name: low, namespace: default, parameterNotFoundAction: Deny}`,
		objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "object.data.color == params.data.color", messageExpression: "'not ' + params.data.color"}]`,
		binding: `validationActions: [Deny], paramRef: {selector: {matchLabels: {param: both}}, parameterNotFoundAction: Deny}`, objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "false"}]`,
		binding: `validationActions: [Deny], paramRef: {name: none, parameterNotFoundAction: Deny}`,
		objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "false"}]`,
		binding: `validationActions: [Deny], paramRef: {name: none, parameterNotFoundAction: Allow}`,
		objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "params == null"}, {expression: "params != null"}]`, objects: []string{aMap}},
	{spec: `paramKind: {apiVersion: police.example.com/v2, kind: Car}, validations: [{expression: "object.spec.wheels == params.spec.wheels && params.apiVersion == 'x'", messageExpression: "params.apiVersion + params.kind + string(params.spec.wheels)"}]`,
		binding: `validationActions: [Deny], paramRef: {name: param, parameterNotFoundAction: Deny}`,
		objects: []string{aCar, aMap}},
	{spec: `paramKind: {apiVersion: police.example.com/v3, kind: Car}, validations: [{expression: "true"}]`,
		binding: `validationActions: [Deny], paramRef: {name: param, parameterNotFoundAction: Deny}`,
		objects: []string{aCar}},
	{spec: `paramKind: {apiVersion: v1, kind: Namespace}, validations: [{expression: "params.metadata.labels.team == 'blue'", messageExpression: "string(params.metadata.labels.team)"}]`,
		binding: `validationActions: [Deny], paramRef: {name: ns, parameterNotFoundAction: Deny}`,
		objects: []string{aCar}},
	{spec: `paramKind: {apiVersion: v1, kind: Namespace}, validations: [{expression: "true"}]`,
		binding: `validationActions: [Deny], paramRef: {name: ns, namespace: ns, parameterNotFoundAction: Deny}`,
		objects: []string{aCar}},
	{spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "true"}]`,
		binding: `validationActions: [Deny], paramRef: {name: low, parameterNotFoundAction: Deny}`,
		objects: []string{aSpace}},
	{spec: `validations: [{expression: "namespaceObject.metadata.labels.team == 'blue'", messageExpression: "namespaceObject.metadata.name + namespaceObject.metadata.labels.team + string(has(namespaceObject.spec))"}]`, objects: objects},
	{spec: `validations: [{expression: "namespaceObject == null"}, {expression: "request.namespace == ''", messageExpression: "request.namespace"}]`, objects: []string{aSpace}},
	{spec: `validations: [{expression: "authorizer.group('').resource('pods').namespace('ns').check('get').allowed() && authorizer.requestResource.check('custom').reason() == 'x'"}]`, objects: objects},
	{spec: `validations: [{expression: "request.operation == 'X'", messageExpression: "request.operation + ' ' + request.kind.kind + request.kind.version + ' ' + request.resource.resource + request.resource.version + ' ' + request.name + ' ' + request.namespace + ' ' + request.userInfo.username + string(request.dryRun) + request.subResource"}]`,
		objects: append(objects, aSpace)},
	{spec: `validations: [{expression: "oldObject == null || oldObject.spec.wheels <= object.spec.wheels", message: fewer}]`, objects: []string{aCar}, patches: []string{`{"spec":{"wheels":5}}`, `{"spec":{"wheels":1}}`}},
	{spec: `matchConstraints: {LABELLED, matchPolicy: Exact, resourceRules: [{apiGroups: [police.example.com], apiVersions: [v2], operations: ["*"], resources: [cars]}]}, validations: [{expression: "false"}]`, objects: []string{aCar, aCarV2}},
	{spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: [police.example.com], apiVersions: [v2], operations: [CREATE], resources: [cars]}]}, validations: [{expression: "false", messageExpression: "object.apiVersion + request.kind.version + request.requestKind.version"}]`, objects: []string{aCar, aCarV2}},
	{spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: [events.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [events]}]}, validations: [{expression: "false", messageExpression: "string(object.note) + object.apiVersion"}]`, objects: []string{anEvent, aNew}},
	{spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [configmaps]}]}, validations: [{expression: "object != null", messageExpression: "string(oldObject.data.a)"}]`, objects: []string{aMap}},
	{spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [UPDATE], resources: ["*/status"]}]}, validations: [{expression: "object.status.wheels == oldObject.status.wheels"}]`, objects: []string{aCar}, patches: []string{`{"spec":{"wheels":5}}`, `/status{"status":{"wheels":5}}`}},
	{spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"], scope: Cluster}]}, validations: [{expression: "false"}]`, objects: []string{aCar, aSpace}},
	{spec: `matchConstraints: {LABELLED, excludeResourceRules: [{apiGroups: [""], apiVersions: ["*"], operations: ["*"], resources: [configmaps]}], resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["CREATE"], resources: ["*"]}]}, validations: [{expression: "false"}]`, objects: objects},
	{spec: `matchConstraints: {LABELLED, namespaceSelector: {matchLabels: {team: blue}}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["CREATE"], resources: ["*"]}]}, validations: [{expression: "false"}]`, objects: []string{aMap, aSpace}},
	{spec: `matchConstraints: {LABELLED, namespaceSelector: {matchLabels: {team: red}}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["CREATE"], resources: ["*"], resourceNames: [o36-0]}]}, validations: [{expression: "false"}]`, objects: []string{aMap, aMap}},
	{spec: `validations: [{expression: "false"}]`,
		binding: `validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {team: blue}}}`,
		objects: []string{aMap}},
	{spec: `validations: [{expression: "false"}]`,
		binding: `validationActions: [Deny], matchResources: {resourceRules: [{apiGroups: ["apps"], apiVersions: ["*"], operations: ["CREATE"], resources: ["deployments"]}]}`, objects: objects},
	{spec: `validations: [{expression: "[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, [0,1,2,3,4,5,6,7,8,9].all(f, a + b + c + d + e + f >= 0))))))"}]`, objects: []string{aMap}},
	{spec: `auditAnnotations: [{key: who, valueExpression: "request.userInfo.username"}, {key: wrong, valueExpression: "string(object.missing)"}]`, objects: []string{aMap}},
	{spec: `validations: [{expression: "quantity(object.spec.containers[0].resources.limits.cpu).isLessThan(quantity('1'))", messageExpression: "object.spec.containers[0].resources.limits.cpu + string(has(object.status)) + string(has(object.spec.containers[0].resources))"}]`, objects: []string{somePod}},
	{spec: `validations: [{expression: "false", messageExpression: "string(has(object.metadata.creationTimestamp)) + string(has(object.metadata.uid)) + string(has(object.status)) + string(has(object.metadata.managedFields)) + object.metadata.name"}]`, objects: append(objects, aSpace)},
	{spec: `validations: [{expression: "size(object.metadata.name) > 100", messageExpression: "string(object.metadata.generateName)"}]`, binding: `validationActions: [Warn]`, objects: []string{`{apiVersion: v1, kind: ConfigMap, GENERATED}`}},

	{spec: `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [pods/binding, pods/eviction, serviceaccounts/token]}]}, matchConditions: [{name: not, expression: "request.name != 'mutated'"}], validations: [{expression: "false", messageExpression: "request.kind.kind + request.kind.group + request.resource.resource + request.subResource + ' ' + request.name + request.namespace + ' ' + request.operation + ' ' + string(object.kind) + (request.subResource == 'token' ? '' : string(object.metadata.name))"}]`,
		objects: []string{somePod}, requests: []string{
			`POST /api/v1/namespaces/ns/pods/ONE/binding {"apiVersion":"v1","kind":"Binding","metadata":{"name":"ONE"},"target":{"kind":"Node","name":"n"}}`,
			`POST /api/v1/namespaces/ns/pods/ONE/eviction {"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"ONE"}}`,
			`POST /api/v1/namespaces/ns/serviceaccounts {"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"bot"}}`,
			`POST /api/v1/namespaces/ns/serviceaccounts/bot/token {"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"]}}`,
		}},
	{mutates: true, spec: `matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [pods/binding]}]}, matchConditions: [{name: only, expression: "request.name == 'mutated'"}], mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/target/name', value: 'other'}, JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': object.kind}}]"}}]`,
		objects: []string{aMap}, requests: []string{
			`POST /api/v1/namespaces/ns/pods {"apiVersion":"v1","kind":"Pod","metadata":{"name":"mutated"},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i:1"}]}}`,
			`POST /api/v1/namespaces/ns/pods/mutated/binding {"apiVersion":"v1","kind":"Binding","metadata":{"name":"mutated"},"target":{"kind":"Node","name":"n"}}`,
			`GET /api/v1/namespaces/ns/pods/mutated`,
		}},
	{spec: `validations: [{expression: "oldObject == null || !has(object.data.b) || object.data.b != oldObject.data.a", messageExpression: "request.operation + string(object.metadata.resourceVersion == oldObject.metadata.resourceVersion) + string(has(object.metadata.managedFields))"}]`,
		objects: []string{`{apiVersion: v1, kind: ConfigMap, METADATA, data: {a: b}}`},
		patches: []string{`{"data":{"b":"c"}}`, `{"data":{"b":"b"}}`}, requests: []string{
			`PUT /api/v1/namespaces/ns/configmaps/ONE {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"ONE","labels":{"case":"46"}},"data":{"a":"b","b":"b"}}`,
			`DELETE /api/v1/namespaces/ns/configmaps?labelSelector=case%3D46 {"apiVersion":"v1","kind":"DeleteOptions"}`,
		}},

	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': 'policy'}}]"}}]`, objects: append(objects, aSpace, anEvent, aNew)},
	{mutates: true, spec: `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'by': object.metadata.name}}}"}}]`, objects: append(objects, aSpace, anEvent)},
	{mutates: true, spec: `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{wheels: 8, parts: [Object.spec.parts{name: 'roof'}]}}"}}]`, objects: []string{aCar, aCarV2, aMap}, patches: []string{`{"spec":{"wheels":5}}`}},
	{mutates: true, spec: `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{nothing: 8}}"}}]`, objects: objects},
	{mutates: true, spec: `failurePolicy: Ignore, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{nothing: 8}}"}}]`, objects: objects},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/spec/nothing', value: 'x'}]"}}]`, objects: objects},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/spec/replicas', value: 'x'}]"}}]`, objects: []string{aDeploy, aCar}},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'test', path: '/spec/color', value: 'red'}, JSONPatch{op: 'replace', path: '/spec/color', value: 'green'}]"}}]`, objects: []string{aCar, aCarV2}},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/spec/wheels'}, JSONPatch{op: 'add', path: '/spec/parts/-', value: Object.spec.parts{name: 'roof'}}]"}}, {patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'wheels': string(object.spec.wheels)}}]"}}]`, objects: []string{aCar}},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/spec/wheels', value: 'many'}]"}}]`, objects: []string{aCar}},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/metadata/name', value: 'other'}]"}}]`, objects: []string{aCar, aMap}},
	{mutates: true, spec: `variables: [{name: old, expression: "has(object.spec.color) ? object.spec.color : 'none'"}], matchConditions: [{name: c, expression: "object.spec.color != 'blue'"}], mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{color: variables.old + '!'}}"}}]`, objects: []string{aCar, aCarV2}},
	{mutates: true, spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'p': params.data.color + string(has(params.kind))}}}"}}]`,
		binding: `paramRef: {name: low, parameterNotFoundAction: Deny}`, objects: []string{aCar, aMap, aSpace}},
	{mutates: true, spec: `paramKind: {apiVersion: v1, kind: ConfigMap}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'p': params.data.color}}}"}}]`,
		binding: `paramRef: {name: none, parameterNotFoundAction: Deny}`, objects: []string{aCar}},
	{mutates: true, spec: `paramKind: {apiVersion: police.example.com/v2, kind: Car}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{wheels: params.spec.wheels}, metadata: Object.metadata{annotations: {'p': params.kind}}}"}}]`,
		binding: `paramRef: {name: param, parameterNotFoundAction: Deny}`, objects: []string{aCar}},
	{mutates: true, spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: [police.example.com], apiVersions: [v2], operations: [CREATE], resources: [cars]}]}, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/spec/color', value: object.apiVersion}]"}}]`, objects: []string{aCar, aCarV2}},
	{mutates: true, spec: `matchConstraints: {LABELLED, resourceRules: [{apiGroups: [events.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [events]}]}, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/note', value: object.apiVersion}]"}}]`, objects: []string{anEvent, aNew}},
	{mutates: true, spec: `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'sidecar', image: 's'}]}}}}"}}]`, objects: []string{aDeploy}},
	{mutates: true, spec: `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.wrong{template: 1}}"}}]`, objects: []string{aDeploy}},
	{mutates: true, spec: `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/missing'}]"}}]`, objects: objects},
	{mutates: true, spec: `failurePolicy: Ignore, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/apiVersion', value: 'foo/v9'}]"}}]`, objects: []string{aCar}},
	{mutates: true, spec: `matchConstraints: {resourceRules: [{apiGroups: [apps, police.example.com], apiVersions: [v1], operations: [UPDATE], resources: ["*/scale"]}]}, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'replace', path: '/spec/replicas', value: 7}]"}}]`,
		objects: []string{aDeploy}, patches: []string{`/scale{"spec":{"replicas":2}}`}},
	{spec: `matchConstraints: {resourceRules: [{apiGroups: [apps, police.example.com], apiVersions: [v1], operations: [UPDATE], resources: ["*/scale"]}]}, validations: [{expression: "object.spec.replicas < oldObject.spec.replicas + 3", messageExpression: "object.kind + string(object.spec.replicas) + string(oldObject.spec.replicas)"}]`,
		objects: []string{aDeploy, aCar}, patches: []string{`/scale{"spec":{"replicas":20}}`,
			`/scale{"spec":{"replicas":5}}`}},
}

// randomPolicies returns policies that combine random expressions and settings.
func randomPolicies(r *rand.Rand) (all []policyCase) {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	some := func(n int, part func() string) string {
		parts := make([]string, 1+r.IntN(n))
		for i := range parts {
			parts[i] = part()
		}
		return strings.Join(parts, ", ")
	}
	text := func() string {
		return pick("object.metadata.name", "request.operation", "object.kind", "string(size(object.metadata.name))",
			"variables.v0", "object.spec.color", "object.data.color", "namespaceObject.metadata.labels.team")
	}
	truth := func() string {
		a, b := text(), pick(text(), "'red'", "'CREATE'", "''")
		return pick(a+" == "+b, a+" != "+b, "has(object.spec)", "has(object.spec.wheels) && object.spec.wheels > 3",
			"!has(object.data)", "object.metadata.labels.all(k, k != 'x')", "oldObject == null", "true")
	}
	for range 60 {
		c := policyCase{mutates: r.IntN(3) == 0, objects: objects,
			patches: []string{`{"metadata":{"annotations":{"a":"b"}}}`}}
		c.spec = fmt.Sprintf(`failurePolicy: %s, variables: [{name: v0, expression: "%s"}]`, pick("Fail", "Ignore"),
			pick("object.metadata.name", "string(object.metadata.labels.size())", "object.spec.color"))
		if r.IntN(3) == 0 {
			c.spec += `, matchConditions: [{name: m, expression: "` +
				strings.ReplaceAll(truth(), "variables.v0", "request.name") + `"}]`
		}
		if c.mutates {
			c.spec += `, mutations: [` + some(2, func() string {
				if r.IntN(2) == 0 {
					return `{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: '` + pick("add", "replace") +
						`', path: '/` + pick("metadata/annotations", "metadata/labels") + `', value: {'k': ` + text() +
						`}}]"}}`
				}
				return `{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'` + pick("a", "b") + `': ` + text() + `}}}"}}`
			}) + `]`
		} else {
			c.spec += `, validations: [` + some(3, func() string {
				return `{expression: "` + truth() + `"` + pick("", ", message: m",
					`, messageExpression: "string(`+text()+`)"`) + pick("", ", reason: Forbidden") + `}`
			}) + `]`
			c.binding = `validationActions: [` + pick("Deny", "Warn", "Audit", "Warn, Audit", "Deny, Audit") + `]`
		}
		all = append(all, c)
	}
	return all
}
