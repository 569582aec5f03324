package policy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/policy"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// env is an engine with policies. It records the warnings and audit annotations of the last request.
type env struct {
	*fixture.Env
	plugins  admission.Plugins
	warnings []string
	audit    map[string]string
	decoded  int // number of decoded params
}

func newEnv(t testing.TB) *env {
	e := &env{Env: fixture.Open(t, kinds.Config{Authorizer: allow}), audit: map[string]string{}}
	catalog := func() *catalog.Catalog { return e.Live.Load() }
	e.plugins = policy.Plugins(policy.Config{
		Head: e.Store.Head, Catalog: catalog, Objects: e, Authorizer: allow,
	})
	e.Engine.Admission = e.plugins
	e.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns}}`)
	return e
}

// allowAll is an authorizer that allows all requests.
type allowAll struct{ authorizer.Authorizer }

func (allowAll) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

var allow = allowAll{}

// Get implements policy.Objects.
func (e *env) Get(ctx context.Context, v *resource.Version, namespace, name string) (policy.Object, error) {
	o, err := e.Engine.Get(ctx, verb.Target{Version: v, Namespace: namespace, Name: name}, "")
	return e.countDecodes(o), err
}

// countDecodes returns o as a policy.Object that counts in e.decoded how often it is decoded.
func (e *env) countDecodes(o record.Object) policy.Object {
	return policy.Object{Record: o.Record, Tree: func() (object.Tree, error) {
		e.decoded++
		return o.Tree()
	}}
}

// List implements policy.Objects.
func (e *env) List(ctx context.Context, v *resource.Version, namespace string,
	selector labels.Selector) (all []policy.Object, err error) {
	list, err := e.Engine.List(ctx, verb.Target{Version: v, Namespace: namespace}, read.ListOptions{
		Labels: selector,
	})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		all = append(all, e.countDecodes(o))
	}
	return all, nil
}

// target returns the target and the body of a request with an object.
func (e *env) target(namespace, text string) (verb.Target, verb.Body) {
	e.Helper()
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		e.Fatal(err)
	}
	tree, _, err := object.DecodeJSON(js)
	if err != nil {
		e.Fatal(err)
	}
	for d := range e.Catalog().Definitions() {
		for _, v := range d.Versions {
			if d.Names.Kind != object.String(tree, "kind") || v.APIVersion != object.String(tree, "apiVersion") {
				continue
			}
			if !d.Namespaced {
				namespace = ""
			}
			return verb.Target{Version: v, Namespace: namespace, Name: object.Name(tree)}, verb.Body{
				Tree: tree, Source: js,
			}
		}
	}
	e.Fatal("no such kind: ", text)
	return verb.Target{}, verb.Body{}
}

func (e *env) caller() verb.Caller {
	e.warnings, e.audit = nil, map[string]string{}
	return verb.Caller{User: &user.DefaultInfo{Name: "jane"}, FieldManager: "test", Options: &metav1.CreateOptions{},
		Warn:     func(text string) { e.warnings = append(e.warnings, text) },
		Annotate: func(key, value string) { e.audit[key] = value }}
}

// create creates an object and returns the result.
func (e *env) create(namespace, text string) (object.Tree, error) {
	e.Helper()
	t, body := e.target(namespace, text)
	t.Name = ""
	o, err := e.Create(e.Context(), t, body, e.caller())
	if err != nil {
		return nil, err
	}
	return o.Tree()
}

// write creates or updates an object.
func (e *env) write(namespace, text string) {
	e.Helper()
	t, body := e.target(namespace, text)
	live, err := e.Get(e.Context(), t.Version, t.Namespace, t.Name)
	if apierrors.IsNotFound(err) {
		if _, err := e.create(namespace, text); err != nil {
			e.Fatal(err)
		}
		return
	}
	tree, err := live.Tree()
	if err != nil {
		e.Fatal(err)
	}
	object.SetResourceVersion(body.Tree, object.ResourceVersion(tree))
	if _, _, err := e.Update(e.Context(), t, body, e.caller()); err != nil {
		e.Fatal(err)
	}
}

func (e *env) remove(namespace, text string) {
	e.Helper()
	t, _ := e.target(namespace, text)
	if _, _, err := e.Delete(e.Context(), t, metav1.DeleteOptions{}, e.caller()); err != nil {
		e.Fatal(err)
	}
}

func validating(name, spec string) string {
	return fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy,
		metadata: {name: %s}, spec: {matchConstraints: {resourceRules: [
		{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}, %s}}`, name, spec)
}

func mutating(name, spec string) string {
	policy := strings.Replace(validating(name, spec), "Validating", "Mutating", 1)
	return strings.Replace(policy, "spec: {", "spec: {reinvocationPolicy: IfNeeded, ", 1)
}

func binding(kind, name, spec string) string {
	return fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicyBinding,
		metadata: {name: %s}, spec: {policyName: %[2]s, %s}}`, kind, name, spec)
}

const configMap = `{apiVersion: v1, kind: ConfigMap, metadata: {generateName: a-}, data: {a: "1"}}`

// wantDenied checks that the creation of an object is denied with a message.
func (e *env) wantDenied(message string) {
	e.Helper()
	if _, err := e.create("ns", configMap); err == nil || !strings.Contains(err.Error(), message) {
		e.Errorf("got %v, want %s", err, message)
	}
}

func (e *env) wantAllowed() object.Tree {
	e.Helper()
	o, err := e.create("ns", configMap)
	if err != nil {
		e.Error(err)
	}
	return o
}

// TestInForceAtOnce checks that writes and deletions of policies and bindings are in force as soon as they have
// returned. VAL-027
func TestInForceAtOnce(t *testing.T) {
	e := newEnv(t)
	never := validating("never", `validations: [{expression: "false"}]`)
	bound := binding("Validating", "never", `validationActions: [Deny]`)
	e.write("", never)
	e.wantAllowed()
	e.write("", bound)
	e.wantDenied("ValidatingAdmissionPolicy 'never' with binding 'never' denied request: failed expression: false")
	e.write("", validating("never", `validations: [{expression: "false", message: changed}]`))
	e.wantDenied("denied request: changed")
	e.write("", binding("Validating", "never", `validationActions: [Warn]`))
	e.wantAllowed()
	want := "Validation failed for ValidatingAdmissionPolicy 'never' with binding 'never': changed"
	if len(e.warnings) != 1 || e.warnings[0] != want {
		t.Errorf("got warnings %q, want %q", e.warnings, want)
	}
	e.write("", bound)
	e.remove("", never)
	e.wantAllowed()
	e.write("", never)
	e.wantDenied("denied")
	e.remove("", bound)
	e.wantAllowed()
}

// TestParamsAtOnce checks that policies use the latest stored params, of a built-in kind and of a custom kind that is
// created after the policy. VAL-027
func TestParamsAtOnce(t *testing.T) {
	e := newEnv(t)
	param := `{apiVersion: v1, kind: ConfigMap, metadata: {name: max}, data: {a: "%d"}}`
	e.write("ns", fmt.Sprintf(param, 1))
	e.write("", validating("max", `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [
		{expression: "object.data.a <= params.data.a", messageExpression: "'at most ' + params.data.a"}]`))
	e.write("", binding("Validating", "max",
		`validationActions: [Deny], paramRef: {name: max, parameterNotFoundAction: Deny}`))
	e.wantAllowed()
	e.write("ns", fmt.Sprintf(param, 0))
	e.wantDenied("denied request: at most 0")
	e.remove("ns", param)
	e.wantDenied("no params found for policy binding with `Deny` parameterNotFoundAction")
	e.remove("", binding("Validating", "max", ""))

	e.write("", validating("limit", `paramKind: {apiVersion: example.com/v1, kind: Limit}, validations: [
		{expression: "int(object.data.a) < params.spec.max"}]`))
	e.write("", binding("Validating", "limit",
		`validationActions: [Deny], paramRef: {selector: {}, parameterNotFoundAction: Allow}`))
	e.wantDenied("failed to configure policy: failed to find resource referenced by paramKind: " +
		"'example.com/v1, Kind=Limit'")
	e.write("", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
		metadata: {name: limits.example.com}, spec: {group: example.com, scope: Namespaced, names: {plural: limits, kind: Limit}, versions: [
		{name: v1, served: true, storage: true, schema:
		{openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`)
	e.wantAllowed()
	e.write("ns", `{apiVersion: example.com/v1, kind: Limit, metadata: {name: a}, spec: {max: 2}}`)
	e.wantAllowed()
	e.write("ns", `{apiVersion: example.com/v1, kind: Limit, metadata: {name: b}, spec: {max: 1}}`)
	e.wantDenied("failed expression")
}

// TestCostLimit checks that the evaluation of a policy has a cost limit. VAL-027
func TestCostLimit(t *testing.T) {
	e := newEnv(t)
	loop := "object.data.all(k, true)"
	for i := range 6 {
		loop = fmt.Sprintf("[0,1,2,3,4,5,6,7,8,9].all(x%d, %s)", i, loop)
	}
	e.write("", validating("loop", `validations: [{expression: "`+loop+`"}]`))
	e.write("", binding("Validating", "loop", `validationActions: [Deny]`))
	e.wantDenied("resulted in error: operation cancelled: actual cost limit exceeded")
}

// TestAuditAnnotations checks that the audit record contains audit annotations, and the failures of policies with the
// action Audit. VAL-027
func TestAuditAnnotations(t *testing.T) {
	e := newEnv(t)
	e.write("", validating("log", `auditAnnotations: [{key: user, valueExpression: "request.userInfo.username"}],
		validations: [{expression: "false", message: seen}]`))
	e.write("", binding("Validating", "log", `validationActions: [Audit]`))
	e.wantAllowed()
	if got := e.audit["log/user"]; got != "jane" {
		t.Errorf("got %q of %v", got, e.audit)
	}
	if got, want := e.audit["validation.policy.admission.k8s.io/validation_failure"],
		`[{"message":"seen","policy":"log","binding":"log","expressionIndex":0,"validationActions":["Audit"]}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestReinvocation checks that mutating policies are applied in the order of their names. A policy is applied once more
// if a later policy has changed the object. VAL-027
func TestReinvocation(t *testing.T) {
	e := newEnv(t)
	for name, expression := range map[string]string{
		"a": `Object{data: {"seen": has(object.data.seen) ? object.data.seen + string(has(object.data.b)) : string(has(object.data.b))}}`,
		"b": `Object{data: {"b": "yes"}}`,
	} {
		e.write("", mutating(name,
			`mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: '`+expression+`'}}]`))
		e.write("", binding("Mutating", name, "matchResources: {}"))
	}
	data := e.wantAllowed()["data"].(object.Tree)
	if data["seen"] != "falsetrue" || data["b"] != "yes" || data["a"] != "1" {
		t.Error(data)
	}
}

// TestNamespaceObject checks that expressions use the latest stored Namespace. VAL-027
func TestNamespaceObject(t *testing.T) {
	e := newEnv(t)
	e.write("", validating("labels", `validations: [{expression: "namespaceObject.metadata.labels.team == 'red'"}]`))
	e.write("", binding("Validating", "labels", `validationActions: [Deny]`))
	e.wantDenied("no such key: team")
	e.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: red}}}`)
	e.wantAllowed()
	e.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: blue}}}`)
	e.wantDenied("failed expression")
}

// TestExempt checks that policies do not apply to policies and bindings, which could lock out all users, or to reviews.
func TestExempt(t *testing.T) {
	e := newEnv(t)
	matchAll := strings.NewReplacer(`[""]`, `["*"]`, `[v1]`, `["*"]`, "[CREATE]", `["*"]`, "[configmaps]", `["*/*"]`)
	policy := matchAll.Replace(validating("all", `validations: [{expression: "false"}]`))
	e.write("", policy)
	e.write("", binding("Validating", "all", `validationActions: [Deny]`))
	e.wantDenied("'all'")
	const review = `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview,
		spec: {nonResourceAttributes: {path: /, verb: get}}}`
	if _, err := e.create("", review); err != nil {
		t.Error(err)
	}
	e.write("", strings.Replace(policy, "false", "true", 1))
	e.wantAllowed()
}

// TestHandlesAllocatesNothing checks that Handles does not allocate for a write that no policy matches, even after
// other writes.
func TestHandlesAllocatesNothing(t *testing.T) {
	e := newEnv(t)
	e.addOtherPolicies()
	r, heads := e.request(), e.heads()
	for i := range e.plugins {
		all := policy.Plugins(policy.Config{Head: func() *storage.Snapshot {
			heads[0], heads[1] = heads[1], heads[0]
			return heads[0]
		}})
		p := all[i]
		p.Handles(r)
		if n := testing.AllocsPerRun(100, func() {
			if p.Handles(r) {
				t.Error("the request is handled")
			}
		}); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", p.Name(), n)
		}
	}
}

// heads returns two snapshots that differ by a ConfigMap.
func (e *env) heads() (heads [2]*storage.Snapshot) {
	for i := range heads {
		e.wantAllowed()
		heads[i] = e.Store.Head()
	}
	return heads
}

// BenchmarkHandles measures Handles for a write that none of 100 policies matches, after another write.
func BenchmarkHandles(b *testing.B) {
	e := newEnv(b)
	e.addOtherPolicies()
	r, heads := e.request(), e.heads()
	all := policy.Plugins(policy.Config{Head: func() *storage.Snapshot { return heads[0] }})
	b.ReportAllocs()
	for b.Loop() {
		heads[0], heads[1] = heads[1], heads[0]
		for range 2 { // Admit and Validate
			for _, p := range all {
				p.Handles(r)
			}
		}
	}
}

// request returns a request to create a ConfigMap.
func (e *env) request() *admission.Request {
	v := e.Catalog().Find("", "v1", "configmaps")
	return &admission.Request{
		Operation: admission.Create, Version: v, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Namespace: "ns", Name: "a",
	}
}

// addOtherPolicies creates 100 policies for other resources.
func (e *env) addOtherPolicies() {
	for i := range 50 {
		name := fmt.Sprint("p", i)
		other := strings.NewReplacer("configmaps", fmt.Sprint("secrets", i), `[""]`, `[""]`)
		e.write("", other.Replace(validating(name, `validations: [{expression: "false"}]`)))
		e.write("", binding("Validating", name, `validationActions: [Deny]`))
		e.write("", other.Replace(mutating(name, `mutations: [{patchType: JSONPatch,
			jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/data'}]"}}]`)))
		e.write("", binding("Mutating", name, "matchResources: {}"))
	}
}

func benchmarkCreate(b *testing.B, prepare func(e *env)) {
	e := newEnv(b)
	prepare(e)
	t, body := e.target("ns", configMap)
	v := t.Version
	t.Name = ""
	caller := e.caller()
	b.ReportAllocs()
	for b.Loop() {
		d, err := v.Type.Decode(body.Source)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := e.Create(b.Context(), t, verb.Body{Tree: d.Tree, Typed: true, Internal: d.Internal},
			caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	b.Run("off", func(b *testing.B) { benchmarkCreate(b, func(e *env) { e.Engine.Admission = nil }) })
	b.Run("none", func(b *testing.B) { benchmarkCreate(b, func(*env) {}) })
	b.Run("100 others", func(b *testing.B) { benchmarkCreate(b, (*env).addOtherPolicies) })
	b.Run("three expressions", func(b *testing.B) {
		benchmarkCreate(b, func(e *env) {
			e.write("", validating("three", `validations: [{expression: "has(object.data.a)"},
				{expression: "object.data.a != '2'"}, {expression: "size(object.metadata.name) < 100"}]`))
			e.write("", binding("Validating", "three", `validationActions: [Deny]`))
		})
	})
	b.Run("mutating", func(b *testing.B) {
		benchmarkCreate(b, func(e *env) {
			e.write("", mutating("m", `mutations: [{patchType: ApplyConfiguration,
				applyConfiguration: {expression: 'Object{data: {"b": "2"}}'}}]`))
			e.write("", binding("Mutating", "m", "matchResources: {}"))
		})
	})
}

// TestParamsAreDecodedOnce checks that a param is decoded once for all evaluations, and again after it has changed.
func TestParamsAreDecodedOnce(t *testing.T) {
	for _, ref := range []string{"name: max", "selector: {matchLabels: {limits: \"yes\"}}"} {
		e := newEnv(t)
		param := `{apiVersion: v1, kind: ConfigMap, metadata: {name: max, labels: {limits: "yes"}}, data: {a: "%d"}}`
		e.write("ns", fmt.Sprintf(param, 1))
		e.write("", validating("max", `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [
			{expression: "params.kind == 'ConfigMap' && object.data.a <= params.data.a", message: too much}]`))
		e.write("", binding("Validating", "max",
			`validationActions: [Deny], paramRef: {`+ref+`, parameterNotFoundAction: Deny}`))
		e.write("", mutating("copy", `paramKind: {apiVersion: v1, kind: ConfigMap},
			mutations: [{patchType: ApplyConfiguration, applyConfiguration:
			{expression: 'Object{data: {"b": string(has(params.kind)) + params.data.a}}'}}]`))
		e.write("", binding("Mutating", "copy", `paramRef: {`+ref+`, parameterNotFoundAction: Deny}`))
		e.decoded = 0
		for range 3 {
			if got := e.wantAllowed()["data"].(object.Tree)["b"]; got != "false1" {
				t.Errorf("got %v from the mutation, want false1", got)
			}
		}
		e.write("ns", fmt.Sprintf(param, 0))
		e.wantDenied("too much")
		e.wantDenied("too much")
		if e.decoded != 5 { // by two policies, by e.write, and by two policies again
			t.Errorf("%s: decoded %d times, want 5", ref, e.decoded)
		}
	}
}
