package conformance_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// violation is a property for which one admission plugin or the validation rejects an object.
type violation struct {
	name            string
	spec, container string // fields of a Pod; if both are "", the violation is a label with its name
	message         string // part of the error message
}

// violations lists violations of Pods. A Pod with two of them gets the error of the plugin that runs first.
var violations = []violation{
	{name: "quota", spec: `"activeDeadlineSeconds":5,`, message: "exceeded quota"},
	{name: "limits", container: `"resources":{"limits":{"cpu":"2"}},`, message: "maximum cpu usage per Container"},
	{name: "account", spec: `"serviceAccountName":"none",`, message: `serviceaccount "none" not found`},
	{name: "priority", spec: `"priorityClassName":"none",`, message: "no PriorityClass with name none"},
	{name: "runtime", spec: `"runtimeClassName":"none",`, message: `RuntimeClass "none" not found`},
	{name: "security", spec: `"hostNetwork":true,`, message: "violates PodSecurity"},
	{name: "invalid", spec: `"restartPolicy":"Sometimes",`, message: "restartPolicy: Unsupported value"},
	{name: "mutating-policy", message: "'mutating-policy'"},
	{name: "deny-mutating", message: "deny-mutating.example.com"},
	{name: "policy", message: "'policy'"},
	{name: "deny-validating", message: "deny-validating.example.com"},
}

const (
	orderPath    = "/api/v1/namespaces/ordered"
	orderedsPath = "/apis/conformance.example.com/v1/namespaces/ordered/ordereds"
)

// withViolations returns a manifest made from template that has the violations.
func withViolations(template string, all ...violation) string {
	labels, spec, container := `"selected":"yes"`, "", ""
	for _, v := range all {
		if spec, container = spec+v.spec, container+v.container; v.spec+v.container == "" {
			labels += fmt.Sprintf(`,"%s":"yes"`, v.name)
		}
	}
	return strings.NewReplacer("LABELS", labels, "SPEC", spec, "CONTAINER", container).Replace(template)
}

// annotate is a merge patch that adds an annotation. knownDifferences recognizes requests by this patch.
const annotate = `{"metadata":{"annotations":{"a":"b"}}}`

const podTemplate = `{"metadata":{"name":"p","labels":{LABELS}},"spec":{SPEC"containers":[{CONTAINER"name":"c","image":"i"}]}}`

// testOrder checks that the admission plugins run in kube-apiserver's order. If two plugins reject a write, both
// servers return the error of the same plugin. The objects that webhooks and policies receive contain the changes
// of the same plugins (VAL-023 VAL-027).
func testOrder(t *testing.T, p *pair) {
	h := &hooks{reviews: map[string][]any{}}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(h.Close)
	p.prepareOrder(t, h)
	for _, v := range violations {
		p.waitForResponse(t, dryRun(orderPath+"/pods", withViolations(podTemplate, v)), func(a response) bool {
			return strings.Contains(nested[string](a.body, "message"), v.message)
		})
	}
	p.waitForResponse(t, dryRun(orderPath+"/pods", withViolations(podTemplate)), func(a response) bool {
		return nested[string](a.body, "metadata", "annotations", "seen-by-policy") != "" &&
			nested[string](a.body, "metadata", "labels", "by") != ""
	})
	p.waitForResponse(t, dryRun(orderedsPath,
		`{"apiVersion":"conformance.example.com/v1","kind":"Ordered","metadata":{"name":"new","labels":{"mutating-policy":"yes"}},"spec":{"size":1}}`),
		func(a response) bool { return strings.Contains(nested[string](a.body, "message"), "'mutating-policy'") })
	h.takeReviews("trellis")
	h.takeReviews("upstream")
	pairs := func(all []violation, send func(...violation)) {
		for i, one := range all {
			send(one)
			for _, other := range all[i+1:] {
				send(one, other)
			}
		}
	}
	pairs(violations, func(all ...violation) {
		p.do(t, "POST "+orderPath+"/pods", "", withViolations(podTemplate, all...))
	})
	// These violations apply to any kind. Each create of a kind other than Pod also exceeds the quota.
	general := []violation{
		{name: "mutating-policy"}, {name: "deny-mutating"}, {name: "policy"}, {name: "deny-validating"},
		{name: "invalid", spec: "INVALID"},
	}
	for _, kind := range []struct{ path, body, invalid, valid string }{
		{orderPath + "/configmaps", `{"metadata":{"name":"NAME","labels":{LABELS}},"data":{"SPEC":"x"}}`, "a b", "a"},
		{orderedsPath, `{"apiVersion":"conformance.example.com/v1","kind":"Ordered","metadata":{"name":"NAME","labels":{LABELS}},"spec":{"size":SPEC}}`, `"x"`, "1"},
	} {
		body := func(all ...violation) string {
			text := withViolations(kind.body, all...)
			if strings.Contains(text, "INVALID") {
				return strings.Replace(text, "INVALID", kind.invalid, 1)
			}
			replacer := strings.NewReplacer(`"":"x"`, `"`+kind.valid+`":"x"`, `"size":}`, `"size":`+kind.valid+`}`)
			return replacer.Replace(text)
		}
		pairs(general, func(all ...violation) {
			p.do(t, "POST "+kind.path, "", strings.Replace(body(all...), "NAME", "new", 1))
			p.do(t, "PATCH "+kind.path+"/old", asMerge, strings.Replace(body(all...), `"name":"NAME",`, "", 1))
		})
	}
	for _, name := range []string{"deny-keep-mutating", "deny-keep", "keep", "all"} {
		p.do(t, "DELETE "+orderPath+"/configmaps/"+name, "", "")
	}
	p.do(t, "DELETE "+orderPath+"/configmaps?labelSelector=keep", "", "")
	h.takeReviews("trellis")
	h.takeReviews("upstream")
	p.testReviews(t, h)
}

// testReviews compares the reviews that webhooks get for objects that other plugins change. The policy "note" copies
// fields of the Pod that it receives into an annotation.
func (p *pair) testReviews(t *testing.T, h *hooks) {
	const pods = orderPath + "/pods"
	for _, r := range []request{
		{method: "POST", path: pods, body: withViolations(podTemplate)},
		{method: "POST", path: pods, body: strings.Replace(withViolations(podTemplate), `"p"`, `"q"`, 1),
			contentType: asYAML},
		{method: "PATCH", path: pods + "/p", body: annotate, contentType: asMerge}, // a webhook's patch changes nothing
		{method: "PATCH", path: pods + "/p", body: annotate, contentType: asMerge},
		{method: "PATCH", path: pods + "/p", body: `{"metadata":{"labels":{"by":null}}}`, contentType: asMerge},
		{method: "PATCH", path: orderPath + "/configmaps/old", body: `{"metadata":{"labels":{"selected":"yes"}}}`,
			contentType: asMerge},
		// The last plugin, ResourceQuota, rejects this Pod.
		{method: "POST", path: pods,
			body: strings.Replace(withViolations(podTemplate, violations[0]), `"p"`, `"r"`, 1)},
		{method: "POST", path: pods + "/p/binding",
			body: `{"metadata":{"name":"p","labels":{"selected":"yes"}},"target":{"kind":"Node","name":"labelled"}}`},
		{method: "DELETE", path: orderPath + "/configmaps/old"},
	} {
		p.upstream.waitForWatchCache(t, r.path)
		p.send(t, r)
		got, want := h.takeReviews("trellis"), h.takeReviews("upstream")
		if len(want) == 0 {
			t.Errorf("%s %s: got no call of a webhook by kube-apiserver", r.method, r.path)
		}
		for _, d := range compareValues("reviews", any(got), any(want)) {
			if !p.isKnown(r, d) {
				t.Errorf("%s %s %.300s\n%s", r.method, r.path, r.body, d)
			}
		}
	}
}

// prepareOrder creates the objects that configure the plugins: limits, quotas, policies and webhooks.
func (p *pair) prepareOrder(t *testing.T, h *hooks) {
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	const registration = "/apis/admissionregistration.k8s.io/v1/"
	post("/api/v1/namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: ordered, labels: {hooked: "yes", pod-security.kubernetes.io/enforce: baseline, pod-security.kubernetes.io/warn: restricted}}}`)
	post(orderPath+"/serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	post("/api/v1/nodes", `{apiVersion: v1, kind: Node, metadata: {name: labelled, labels: {topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}}}`)
	post(crdPath, strings.NewReplacer("widgets", "ordereds", "Widget", "Ordered", "wd", "od").Replace(widgets))
	p.waitFor(t, orderedsPath, func(a response) bool { return a.code == 200 })
	post(orderPath+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: old}}`)
	post(orderedsPath, `{apiVersion: conformance.example.com/v1, kind: Ordered, metadata: {name: old}, spec: {size: 1}}`)
	for _, name := range []string{"deny-keep-mutating", "deny-keep", "keep"} {
		post(orderPath+"/configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, labels: {%[1]s: "yes"}}}`, name))
	}
	post(orderPath+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: all, labels: {deny-keep-mutating: "yes", deny-keep: "yes", keep: "yes"}}}`)
	post(orderPath+"/limitranges", `{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: "1"}}]}}`)
	for name, spec := range map[string]string{
		"terminating": `"hard": {"pods": "0"}, "scopes": ["Terminating"]`,
		"objects":     `"hard": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}`,
	} {
		post(orderPath+"/resourcequotas",
			fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: %s}, spec: {%s}}`, name, spec))
	}
	p.do(t, "PATCH "+orderPath+"/resourcequotas/terminating/status", asMerge,
		`{"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}`)
	p.do(t, "PATCH "+orderPath+"/resourcequotas/objects/status", asMerge,
		`{"status": {"hard": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}, "used": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}}}`)
	for _, r := range []struct{ kind, name, match, spec, binding string }{
		{"Validating", "policy", labelConstraints("policy", "CREATE, UPDATE"), `validations: [{expression: "false"}]`,
			"validationActions: [Deny]"},
		{"Validating", "keep", labelConstraints("keep", "DELETE"), `validations: [{expression: "false"}]`,
			"validationActions: [Deny]"},
		{"Mutating", "mutating-policy", labelConstraints("mutating-policy", "CREATE, UPDATE"),
			`reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/nothing'}]"}}]`, "matchResources: {}"},
		{"Mutating", "note", labelConstraints("selected", "CREATE"),
			`reinvocationPolicy: IfNeeded, matchConditions: [{name: pods, expression: "request.resource.resource == 'pods'"}],
mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'seen-by-policy': string(object.spec.priority) + ' ' + string(size(object.spec.tolerations)) + ' ' + object.spec.serviceAccountName +
 ' ' + string(size(object.spec.volumes)) + ' ' + object.spec.containers.map(c, c.name + ':' + string(c.resources.?limits[?'cpu'].orValue('none'))).join(',')}}}"}}]`, "matchResources: {}"},
	} {
		plural := strings.ToLower(r.kind) + "admissionpolic"
		post(registration+plural+"ies", fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicy, metadata: {name: %s}, spec: {matchConstraints: {%s}, %s}}`, r.kind, r.name, r.match, r.spec))
		post(registration+plural+"ybindings",
			fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicyBinding, metadata: {name: %s}, spec: {policyName: %[2]s, %s}}`, r.kind, r.name, r.binding))
	}
	matching := func(name, label, operations string) string {
		return fmt.Sprintf(`%s "admissionReviewVersions":["v1"],"rules":[{"operations":[%s],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}],"reinvocationPolicy":"IfNeeded","objectSelector":{"matchLabels":{"%s":"yes"}},%s`, name, operations, label, inHooked)
	}
	calledOnce := func(hook string) string { return strings.Replace(hook, `"reinvocationPolicy":"IfNeeded",`, "", 1) }
	const writes = `"CREATE","UPDATE"`
	for _, s := range []*server{p.trellis, p.upstream} {
		for collection, body := range map[string]string{
			"mutatingwebhookconfigurations": h.configuration(s.name, "MutatingWebhookConfiguration", "order",
				matching("see", "selected", `"*"`), matching("label", "selected", writes),
				calledOnce(matching("container", "selected", `"CREATE"`)),
				matching("deny-mutating", "deny-mutating", writes), matching("deny-keep-mutating", "deny-keep-mutating",
					`"DELETE"`)),
			"validatingwebhookconfigurations": h.configuration(s.name, "ValidatingWebhookConfiguration", "order",
				calledOnce(matching("look", "selected", `"*"`)),
				calledOnce(matching("deny-validating", "deny-validating", writes)),
				calledOnce(matching("deny-keep", "deny-keep", `"DELETE"`))),
		} {
			if a, err := s.send(t.Context(), request{method: "POST", path: registration + collection,
				body: body}); err != nil || a.code != 201 {
				t.Fatalf("create webhook configuration on %s: got %v (%v), want code 201", s.name, a, err)
			}
		}
	}
}

// labelConstraints returns the match constraints of a policy for objects with a label.
func labelConstraints(label, operations string) string {
	return fmt.Sprintf(`objectSelector: {matchLabels: {%s: "yes"}}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [%s], resources: ["*"]}]`, label, operations)
}
