package conformance_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// obstacle is what one plugin, or the schema, has against an object that is made for it.
type obstacle struct {
	name            string
	spec, container string // of a Pod; "": a label of the name is what it minds
	says            string // a part of its refusal
}

// obstacles of Pods, in no order: which of two is told says which plugin comes first.
var obstacles = []obstacle{
	{name: "quota", spec: `"activeDeadlineSeconds":5,`, says: "exceeded quota"},
	{name: "limits", container: `"resources":{"limits":{"cpu":"2"}},`, says: "maximum cpu usage per Container"},
	{name: "account", spec: `"serviceAccountName":"none",`, says: `serviceaccount "none" not found`},
	{name: "priority", spec: `"priorityClassName":"none",`, says: "no PriorityClass with name none"},
	{name: "runtime", spec: `"runtimeClassName":"none",`, says: `RuntimeClass "none" not found`},
	{name: "security", spec: `"hostNetwork":true,`, says: "violates PodSecurity"},
	{name: "invalid", spec: `"restartPolicy":"Sometimes",`, says: "restartPolicy: Unsupported value"},
	{name: "mutating-policy", says: "'mutating-policy'"},
	{name: "deny-mutating", says: "deny-mutating.example.com"},
	{name: "policy", says: "'policy'"},
	{name: "deny-validating", says: "deny-validating.example.com"},
}

const (
	orderPath = "/api/v1/namespaces/ordered"
	ordereds  = "/apis/conformance.example.com/v1/namespaces/ordered/ordereds"
)

// hindered is a Pod, or with another form what it has, with some obstacles.
func hindered(form string, all ...obstacle) string {
	labels, spec, container := `"hindered":"yes"`, "", ""
	for _, o := range all {
		if spec, container = spec+o.spec, container+o.container; o.spec+o.container == "" {
			labels += fmt.Sprintf(`,"%s":"yes"`, o.name)
		}
	}
	return strings.NewReplacer("LABELS", labels, "SPEC", spec, "CONTAINER", container).Replace(form)
}

// noted is a patch of an object that is noted in its managedFields.
const noted = `{"metadata":{"annotations":{"a":"b"}}}`

const hinderedPod = `{"metadata":{"name":"p","labels":{LABELS}},"spec":{SPEC"containers":[{CONTAINER"name":"c","image":"i"}]}}`

// VAL-023 VAL-027: the plugins come in the order of kube-apiserver's: of each two that refuse a write, the same one is told, and
// webhooks and policies see what the same others have made of an object before.
func testOrder(t *testing.T, p *pair) {
	h := &hooks{seen: map[string][]any{}}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(h.Close)
	p.prepareOrder(t, h)
	for _, o := range obstacles {
		p.settleOn(t, dryRun(orderPath+"/pods", hindered(hinderedPod, o)), func(a answer) bool { return strings.Contains(nested[string](a.body, "message"), o.says) })
	}
	p.settleOn(t, dryRun(orderPath+"/pods", hindered(hinderedPod)), func(a answer) bool {
		return nested[string](a.body, "metadata", "annotations", "seen-by-policy") != "" && nested[string](a.body, "metadata", "labels", "by") != ""
	})
	p.settleOn(t, dryRun(ordereds, `{"apiVersion":"conformance.example.com/v1","kind":"Ordered","metadata":{"name":"new","labels":{"mutating-policy":"yes"}},"spec":{"size":1}}`),
		func(a answer) bool { return strings.Contains(nested[string](a.body, "message"), "'mutating-policy'") })
	h.take("here")
	h.take("upstream")
	pairs := func(all []obstacle, send func(...obstacle)) {
		for i, one := range all {
			send(one)
			for _, other := range all[i+1:] {
				send(one, other)
			}
		}
	}
	pairs(obstacles, func(all ...obstacle) {
		p.do(t, "POST "+orderPath+"/pods", "", hindered(hinderedPod, all...))
	})
	// What any kind may meet with: of others than Pods each create exceeds the quota besides.
	general := []obstacle{{name: "mutating-policy"}, {name: "deny-mutating"}, {name: "policy"}, {name: "deny-validating"}, {name: "invalid", spec: "INVALID"}}
	for _, form := range []struct{ path, body, invalid, valid string }{
		{orderPath + "/configmaps", `{"metadata":{"name":"NAME","labels":{LABELS}},"data":{"SPEC":"x"}}`, "a b", "a"},
		{ordereds, `{"apiVersion":"conformance.example.com/v1","kind":"Ordered","metadata":{"name":"NAME","labels":{LABELS}},"spec":{"size":SPEC}}`, `"x"`, "1"},
	} {
		body := func(all ...obstacle) string {
			text := hindered(form.body, all...)
			if strings.Contains(text, "INVALID") {
				return strings.Replace(text, "INVALID", form.invalid, 1)
			}
			return strings.NewReplacer(`"":"x"`, `"`+form.valid+`":"x"`, `"size":}`, `"size":`+form.valid+`}`).Replace(text)
		}
		pairs(general, func(all ...obstacle) {
			p.do(t, "POST "+form.path, "", strings.Replace(body(all...), "NAME", "new", 1))
			p.do(t, "PATCH "+form.path+"/old", asMerge, strings.Replace(body(all...), `"name":"NAME",`, "", 1))
		})
	}
	for _, name := range []string{"deny-keep-mutating", "deny-keep", "keep", "all"} {
		p.do(t, "DELETE "+orderPath+"/configmaps/"+name, "", "")
	}
	p.do(t, "DELETE "+orderPath+"/configmaps?labelSelector=keep", "", "")
	h.take("here")
	h.take("upstream")
	p.testSeen(t, h)
}

// testSeen compares what webhooks, and by an annotation what a policy, saw of Pods that all others change.
func (p *pair) testSeen(t *testing.T, h *hooks) {
	const pods = orderPath + "/pods"
	for _, r := range []request{
		{method: "POST", path: pods, body: hindered(hinderedPod)},
		{method: "POST", path: pods, body: strings.Replace(hindered(hinderedPod), `"p"`, `"q"`, 1), contentType: asYAML},
		{method: "PATCH", path: pods + "/p", body: noted, contentType: asMerge}, // a webhook's patch changes nothing
		{method: "PATCH", path: pods + "/p", body: noted, contentType: asMerge},
		{method: "PATCH", path: pods + "/p", body: `{"metadata":{"labels":{"by":null}}}`, contentType: asMerge},
		{method: "PATCH", path: orderPath + "/configmaps/old", body: `{"metadata":{"labels":{"hindered":"yes"}}}`, contentType: asMerge},
		{method: "POST", path: pods, body: strings.Replace(hindered(hinderedPod, obstacles[0]), `"p"`, `"r"`, 1)}, // by the last plugin
		{method: "POST", path: pods + "/p/binding", body: `{"metadata":{"name":"p","labels":{"hindered":"yes"}},"target":{"kind":"Node","name":"labelled"}}`},
		{method: "DELETE", path: orderPath + "/configmaps/old"},
	} {
		p.theirs.catchUp(t, r.path)
		p.send(t, r)
		ours, theirs := h.take("here"), h.take("upstream")
		if len(theirs) == 0 {
			t.Errorf("%s %s: no webhook has seen it", r.method, r.path)
		}
		for _, d := range compareValues("reviews", any(ours), any(theirs)) {
			if !p.isKnown(r, d) {
				t.Errorf("%s %s %.300s\n%s", r.method, r.path, r.body, d)
			}
		}
	}
}

// prepareOrder makes what the plugins go by.
func (p *pair) prepareOrder(t *testing.T, h *hooks) {
	post := func(path, body string) { t.Helper(); p.do(t, "POST "+path, asYAML, body) }
	const registration = "/apis/admissionregistration.k8s.io/v1/"
	post("/api/v1/namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: ordered, labels: {hooked: "yes", pod-security.kubernetes.io/enforce: baseline, pod-security.kubernetes.io/warn: restricted}}}`)
	post(orderPath+"/serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	post("/api/v1/nodes", `{apiVersion: v1, kind: Node, metadata: {name: labelled, labels: {topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}}}`)
	post(crdPath, strings.NewReplacer("widgets", "ordereds", "Widget", "Ordered", "wd", "od").Replace(widgets))
	p.settle(t, ordereds, func(a answer) bool { return a.code == 200 })
	post(orderPath+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: old}}`)
	post(ordereds, `{apiVersion: conformance.example.com/v1, kind: Ordered, metadata: {name: old}, spec: {size: 1}}`)
	for _, name := range []string{"deny-keep-mutating", "deny-keep", "keep"} {
		post(orderPath+"/configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, labels: {%[1]s: "yes"}}}`, name))
	}
	post(orderPath+"/configmaps", `{apiVersion: v1, kind: ConfigMap, metadata: {name: all, labels: {deny-keep-mutating: "yes", deny-keep: "yes", keep: "yes"}}}`)
	post(orderPath+"/limitranges", `{apiVersion: v1, kind: LimitRange, metadata: {name: limits}, spec: {limits: [{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: "1"}}]}}`)
	for name, spec := range map[string]string{
		"terminating": `"hard": {"pods": "0"}, "scopes": ["Terminating"]`,
		"objects":     `"hard": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}`,
	} {
		post(orderPath+"/resourcequotas", fmt.Sprintf(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: %s}, spec: {%s}}`, name, spec))
	}
	p.do(t, "PATCH "+orderPath+"/resourcequotas/terminating/status", asMerge, `{"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}`)
	p.do(t, "PATCH "+orderPath+"/resourcequotas/objects/status", asMerge,
		`{"status": {"hard": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}, "used": {"count/configmaps": "5", "count/ordereds.conformance.example.com": "1"}}}`)
	for _, r := range []struct{ kind, name, match, spec, binding string }{
		{"Validating", "policy", labelOf("policy", "CREATE, UPDATE"), `validations: [{expression: "false"}]`, "validationActions: [Deny]"},
		{"Validating", "keep", labelOf("keep", "DELETE"), `validations: [{expression: "false"}]`, "validationActions: [Deny]"},
		{"Mutating", "mutating-policy", labelOf("mutating-policy", "CREATE, UPDATE"), `reinvocationPolicy: Never, mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/nothing'}]"}}]`, "matchResources: {}"},
		{"Mutating", "note", labelOf("hindered", "CREATE"), `reinvocationPolicy: IfNeeded, matchConditions: [{name: pods, expression: "request.resource.resource == 'pods'"}],
mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{annotations: {'seen-by-policy': string(object.spec.priority) + ' ' + string(size(object.spec.tolerations)) + ' ' + object.spec.serviceAccountName +
 ' ' + string(size(object.spec.volumes)) + ' ' + object.spec.containers.map(c, c.name + ':' + string(c.resources.?limits[?'cpu'].orValue('none'))).join(',')}}}"}}]`, "matchResources: {}"},
	} {
		plural := strings.ToLower(r.kind) + "admissionpolic"
		post(registration+plural+"ies", fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicy, metadata: {name: %s}, spec: {matchConstraints: {%s}, %s}}`, r.kind, r.name, r.match, r.spec))
		post(registration+plural+"ybindings", fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicyBinding, metadata: {name: %s}, spec: {policyName: %[2]s, %s}}`, r.kind, r.name, r.binding))
	}
	labelled := func(name, label, operations string) string {
		return fmt.Sprintf(`%s "admissionReviewVersions":["v1"],"rules":[{"operations":[%s],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}],"reinvocationPolicy":"IfNeeded","objectSelector":{"matchLabels":{"%s":"yes"}},%s`, name, operations, label, inHooked)
	}
	once := func(hook string) string { return strings.Replace(hook, `"reinvocationPolicy":"IfNeeded",`, "", 1) }
	const writes = `"CREATE","UPDATE"`
	for _, s := range []*server{p.ours, p.theirs} {
		for collection, body := range map[string]string{
			"mutatingwebhookconfigurations": h.configuration(s.name, "MutatingWebhookConfiguration", "order", labelled("see", "hindered", `"*"`), labelled("label", "hindered", writes), once(labelled("container", "hindered", `"CREATE"`)),
				labelled("deny-mutating", "deny-mutating", writes), labelled("deny-keep-mutating", "deny-keep-mutating", `"DELETE"`)),
			"validatingwebhookconfigurations": h.configuration(s.name, "ValidatingWebhookConfiguration", "order", once(labelled("look", "hindered", `"*"`)),
				once(labelled("deny-validating", "deny-validating", writes)), once(labelled("deny-keep", "deny-keep", `"DELETE"`))),
		} {
			if a, err := s.send(t.Context(), request{method: "POST", path: registration + collection, body: body}); err != nil || a.code != 201 {
				t.Fatalf("%s: %v %v", s.name, a, err)
			}
		}
	}
}

// labelOf are the constraints of a policy for what has a label.
func labelOf(label, operations string) string {
	return fmt.Sprintf(`objectSelector: {matchLabels: {%s: "yes"}}, resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [%s], resources: ["*"]}]`, label, operations)
}
