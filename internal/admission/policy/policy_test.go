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
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// world is an engine with policies, and what it has told its caller.
type world struct {
	*fixture.Env
	plugins  admission.Plugins
	warnings []string
	audit    map[string]string
	decoded  int // params
}

func open(t testing.TB) *world {
	w := &world{Env: fixture.Open(t, kinds.Config{Authorizer: allow}), audit: map[string]string{}}
	catalog := func() *resource.Catalog { return w.Live.Load() }
	w.plugins = policy.Plugins(policy.Config{
		Head: w.Store.Head, Catalog: catalog, Objects: w, Authorizer: allow,
	})
	w.Engine.Admission = w.plugins
	w.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns}}`)
	return w
}

// allow is an authorizer.
type everybody struct{ authorizer.Authorizer }

func (everybody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

var allow = everybody{}

// Get implements policy.Objects.
func (w *world) Get(ctx context.Context, v *resource.Version, namespace, name string) (policy.Object, error) {
	o, err := w.Engine.Get(ctx, engine.Target{Version: v, Namespace: namespace, Name: name}, "")
	return w.counted(o), err
}

// counted is an object that counts how often it is decoded.
func (w *world) counted(o engine.Object) policy.Object {
	return policy.Object{Record: o.Record, Tree: func() (object.Tree, error) {
		w.decoded++
		return o.Tree()
	}}
}

// List implements policy.Objects.
func (w *world) List(ctx context.Context, v *resource.Version, namespace string, selector labels.Selector) (all []policy.Object, err error) {
	list, err := w.Engine.List(ctx, engine.Target{Version: v, Namespace: namespace}, engine.ListOptions{Labels: selector})
	if err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		all = append(all, w.counted(o))
	}
	return all, nil
}

// target is where an object belongs, and its body.
func (w *world) target(namespace, text string) (engine.Target, engine.Body) {
	w.Helper()
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		w.Fatal(err)
	}
	tree, _, err := object.DecodeJSON(js)
	if err != nil {
		w.Fatal(err)
	}
	for d := range w.Catalog().Definitions() {
		for _, v := range d.Versions {
			if d.Names.Kind != object.String(tree, "kind") || v.APIVersion != object.String(tree, "apiVersion") {
				continue
			}
			if !d.Namespaced {
				namespace = ""
			}
			return engine.Target{Version: v, Namespace: namespace, Name: object.Name(tree)}, engine.Body{Tree: tree, Source: js}
		}
	}
	w.Fatal("no such kind: ", text)
	return engine.Target{}, engine.Body{}
}

func (w *world) caller() engine.Caller {
	w.warnings, w.audit = nil, map[string]string{}
	return engine.Caller{User: &user.DefaultInfo{Name: "jane"}, FieldManager: "test", Options: &metav1.CreateOptions{},
		Warn:     func(text string) { w.warnings = append(w.warnings, text) },
		Annotate: func(key, value string) { w.audit[key] = value }}
}

// create returns what an object has become.
func (w *world) create(namespace, text string) (object.Tree, error) {
	w.Helper()
	t, body := w.target(namespace, text)
	t.Name = ""
	o, err := w.Create(w.Context(), t, body, w.caller())
	if err != nil {
		return nil, err
	}
	return o.Tree()
}

// write puts an object, whatever is there.
func (w *world) write(namespace, text string) {
	w.Helper()
	t, body := w.target(namespace, text)
	live, err := w.Get(w.Context(), t.Version, t.Namespace, t.Name)
	if apierrors.IsNotFound(err) {
		if _, err := w.create(namespace, text); err != nil {
			w.Fatal(err)
		}
		return
	}
	tree, err := live.Tree()
	if err != nil {
		w.Fatal(err)
	}
	object.SetResourceVersion(body.Tree, object.ResourceVersion(tree))
	if _, _, err := w.Update(w.Context(), t, body, w.caller()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) remove(namespace, text string) {
	w.Helper()
	t, _ := w.target(namespace, text)
	if _, _, err := w.Delete(w.Context(), t, metav1.DeleteOptions{}, w.caller()); err != nil {
		w.Fatal(err)
	}
}

func validating(name, spec string) string {
	return fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: %s}, spec: {matchConstraints: {
		resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}, %s}}`, name, spec)
}

func mutating(name, spec string) string {
	return strings.Replace(strings.Replace(validating(name, spec), "Validating", "Mutating", 1), "spec: {", "spec: {reinvocationPolicy: IfNeeded, ", 1)
}

func binding(kind, name, spec string) string {
	return fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: %sAdmissionPolicyBinding, metadata: {name: %s}, spec: {policyName: %[2]s, %s}}`, kind, name, spec)
}

const configMap = `{apiVersion: v1, kind: ConfigMap, metadata: {generateName: a-}, data: {a: "1"}}`

// wantRefused creates an object that is refused for this reason.
func (w *world) wantRefused(why string) {
	w.Helper()
	if _, err := w.create("ns", configMap); err == nil || !strings.Contains(err.Error(), why) {
		w.Errorf("got %v, want %s", err, why)
	}
}

func (w *world) wantAllowed() object.Tree {
	w.Helper()
	o, err := w.create("ns", configMap)
	if err != nil {
		w.Error(err)
	}
	return o
}

// VAL-027: a policy judges the next write once its write and that of a binding have been answered, changed as it was changed, and none
// after it has gone, or its binding has.
func TestInForceAtOnce(t *testing.T) {
	w := open(t)
	never := validating("never", `validations: [{expression: "false"}]`)
	bound := binding("Validating", "never", `validationActions: [Deny]`)
	w.write("", never)
	w.wantAllowed()
	w.write("", bound)
	w.wantRefused("ValidatingAdmissionPolicy 'never' with binding 'never' denied request: failed expression: false")
	w.write("", validating("never", `validations: [{expression: "false", message: changed}]`))
	w.wantRefused("denied request: changed")
	w.write("", binding("Validating", "never", `validationActions: [Warn]`))
	w.wantAllowed()
	if want := "Validation failed for ValidatingAdmissionPolicy 'never' with binding 'never': changed"; len(w.warnings) != 1 || w.warnings[0] != want {
		t.Errorf("warnings: %q", w.warnings)
	}
	w.write("", bound)
	w.remove("", never)
	w.wantAllowed()
	w.write("", never)
	w.wantRefused("denied")
	w.remove("", bound)
	w.wantAllowed()
}

// VAL-027: a param counts as it is stored, of a built-in kind and of a custom one that comes later than the policy.
func TestParamsAtOnce(t *testing.T) {
	w := open(t)
	param := `{apiVersion: v1, kind: ConfigMap, metadata: {name: max}, data: {a: "%d"}}`
	w.write("ns", fmt.Sprintf(param, 1))
	w.write("", validating("max", `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "object.data.a <= params.data.a", messageExpression: "'at most ' + params.data.a"}]`))
	w.write("", binding("Validating", "max", `validationActions: [Deny], paramRef: {name: max, parameterNotFoundAction: Deny}`))
	w.wantAllowed()
	w.write("ns", fmt.Sprintf(param, 0))
	w.wantRefused("denied request: at most 0")
	w.remove("ns", param)
	w.wantRefused("no params found for policy binding with `Deny` parameterNotFoundAction")
	w.remove("", binding("Validating", "max", ""))

	w.write("", validating("limit", `paramKind: {apiVersion: example.com/v1, kind: Limit}, validations: [{expression: "int(object.data.a) < params.spec.max"}]`))
	w.write("", binding("Validating", "limit", `validationActions: [Deny], paramRef: {selector: {}, parameterNotFoundAction: Allow}`))
	w.wantRefused("failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Limit'")
	w.write("", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: limits.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: limits, kind: Limit}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`)
	w.wantAllowed()
	w.write("ns", `{apiVersion: example.com/v1, kind: Limit, metadata: {name: a}, spec: {max: 2}}`)
	w.wantAllowed()
	w.write("ns", `{apiVersion: example.com/v1, kind: Limit, metadata: {name: b}, spec: {max: 1}}`)
	w.wantRefused("failed expression")
}

// VAL-027: what a policy may cost is limited.
func TestCostLimit(t *testing.T) {
	w := open(t)
	loop := "object.data.all(k, true)"
	for i := range 6 {
		loop = fmt.Sprintf("[0,1,2,3,4,5,6,7,8,9].all(x%d, %s)", i, loop)
	}
	w.write("", validating("loop", `validations: [{expression: "`+loop+`"}]`))
	w.write("", binding("Validating", "loop", `validationActions: [Deny]`))
	w.wantRefused("resulted in error: operation cancelled: actual cost limit exceeded")
}

// VAL-027: audit annotations, and what was found by policies that only audit, are in the audit record.
func TestAuditAnnotations(t *testing.T) {
	w := open(t)
	w.write("", validating("who", `auditAnnotations: [{key: user, valueExpression: "request.userInfo.username"}], validations: [{expression: "false", message: seen}]`))
	w.write("", binding("Validating", "who", `validationActions: [Audit]`))
	w.wantAllowed()
	if got := w.audit["who/user"]; got != "jane" {
		t.Errorf("got %q of %v", got, w.audit)
	}
	if got, want := w.audit["validation.policy.admission.k8s.io/validation_failure"],
		`[{"message":"seen","policy":"who","binding":"who","expressionIndex":0,"validationActions":["Audit"]}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// VAL-027: policies change an object one after the other, by name; one that was asked before another changed it is asked again, once.
func TestReinvocation(t *testing.T) {
	w := open(t)
	for name, expression := range map[string]string{
		"a": `Object{data: {"seen": has(object.data.seen) ? object.data.seen + string(has(object.data.b)) : string(has(object.data.b))}}`,
		"b": `Object{data: {"b": "yes"}}`,
	} {
		w.write("", mutating(name, `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: '`+expression+`'}}]`))
		w.write("", binding("Mutating", name, "matchResources: {}"))
	}
	data := w.wantAllowed()["data"].(object.Tree)
	if data["seen"] != "falsetrue" || data["b"] != "yes" || data["a"] != "1" {
		t.Error(data)
	}
}

// VAL-027: what expressions get of a namespace is what it is now.
func TestNamespaceObject(t *testing.T) {
	w := open(t)
	w.write("", validating("labels", `validations: [{expression: "namespaceObject.metadata.labels.team == 'red'"}]`))
	w.write("", binding("Validating", "labels", `validationActions: [Deny]`))
	w.wantRefused("no such key: team")
	w.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: red}}}`)
	w.wantAllowed()
	w.write("", `{apiVersion: v1, kind: Namespace, metadata: {name: ns, labels: {team: blue}}}`)
	w.wantRefused("failed expression")
}

// Nobody can lock himself out by a policy, and what a cluster asks itself is not judged.
func TestExempt(t *testing.T) {
	w := open(t)
	everything := strings.NewReplacer(`[""]`, `["*"]`, `[v1]`, `["*"]`, "[CREATE]", `["*"]`, "[configmaps]", `["*/*"]`).Replace(validating("all", `validations: [{expression: "false"}]`))
	w.write("", everything)
	w.write("", binding("Validating", "all", `validationActions: [Deny]`))
	w.wantRefused("'all'")
	if _, err := w.create("", `{apiVersion: authorization.k8s.io/v1, kind: SelfSubjectAccessReview, spec: {nonResourceAttributes: {path: /, verb: get}}}`); err != nil {
		t.Error(err)
	}
	w.write("", strings.Replace(everything, "false", "true", 1))
	w.wantAllowed()
}

// What no policy may match costs no allocation, whatever else is written meanwhile.
func TestHandlesAllocatesNothing(t *testing.T) {
	w := open(t)
	w.hundred()
	r, heads := w.request(), w.heads()
	for i := range w.plugins {
		all := policy.Plugins(policy.Config{Head: func() *storage.Snapshot { heads[0], heads[1] = heads[1], heads[0]; return heads[0] }})
		p := all[i]
		p.Handles(r)
		if n := testing.AllocsPerRun(100, func() {
			if p.Handles(r) {
				t.Error("it is handled")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", p.Name(), n)
		}
	}
}

// heads are two states that differ by a ConfigMap.
func (w *world) heads() (heads [2]*storage.Snapshot) {
	for i := range heads {
		w.wantAllowed()
		heads[i] = w.Store.Head()
	}
	return heads
}

// BenchmarkHandles is what a write that no policy may match pays for each of 100, and after another write.
func BenchmarkHandles(b *testing.B) {
	w := open(b)
	w.hundred()
	r, heads := w.request(), w.heads()
	all := policy.Plugins(policy.Config{Head: func() *storage.Snapshot { return heads[0] }})
	b.ReportAllocs()
	for b.Loop() {
		heads[0], heads[1] = heads[1], heads[0]
		for range 2 { // for either stage
			for _, p := range all {
				p.Handles(r)
			}
		}
	}
}

// request is to create a ConfigMap.
func (w *world) request() *admission.Request {
	v := w.Catalog().Find("", "v1", "configmaps")
	return &admission.Request{Operation: admission.Create, Version: v, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "ns", Name: "a"}
}

// hundred policies are there, of other resources.
func (w *world) hundred() {
	for i := range 50 {
		name := fmt.Sprint("p", i)
		other := strings.NewReplacer("configmaps", fmt.Sprint("secrets", i), `[""]`, `[""]`)
		w.write("", other.Replace(validating(name, `validations: [{expression: "false"}]`)))
		w.write("", binding("Validating", name, `validationActions: [Deny]`))
		w.write("", other.Replace(mutating(name, `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/data'}]"}}]`)))
		w.write("", binding("Mutating", name, "matchResources: {}"))
	}
}

func benchmarkCreate(b *testing.B, prepare func(w *world)) {
	w := open(b)
	prepare(w)
	t, body := w.target("ns", configMap)
	v := t.Version
	t.Name = ""
	caller := w.caller()
	b.ReportAllocs()
	for b.Loop() {
		d, err := v.Type.Decode(body.Source)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.Create(b.Context(), t, engine.Body{Tree: d.Tree, Typed: true, Internal: d.Internal}, caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	b.Run("off", func(b *testing.B) { benchmarkCreate(b, func(w *world) { w.Engine.Admission = nil }) })
	b.Run("none", func(b *testing.B) { benchmarkCreate(b, func(*world) {}) })
	b.Run("100 others", func(b *testing.B) { benchmarkCreate(b, (*world).hundred) })
	b.Run("three expressions", func(b *testing.B) {
		benchmarkCreate(b, func(w *world) {
			w.write("", validating("three", `validations: [{expression: "has(object.data.a)"}, {expression: "object.data.a != '2'"}, {expression: "size(object.metadata.name) < 100"}]`))
			w.write("", binding("Validating", "three", `validationActions: [Deny]`))
		})
	})
	b.Run("mutating", func(b *testing.B) {
		benchmarkCreate(b, func(w *world) {
			w.write("", mutating("m", `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{data: {"b": "2"}}'}}]`))
			w.write("", binding("Mutating", "m", "matchResources: {}"))
		})
	})
}

// A param that has not changed is decoded once, however many objects are judged by it, and one that has, anew.
func TestParamsAreDecodedOnce(t *testing.T) {
	for _, ref := range []string{"name: max", "selector: {matchLabels: {limits: \"yes\"}}"} {
		w := open(t)
		param := `{apiVersion: v1, kind: ConfigMap, metadata: {name: max, labels: {limits: "yes"}}, data: {a: "%d"}}`
		w.write("ns", fmt.Sprintf(param, 1))
		w.write("", validating("max", `paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "params.kind == 'ConfigMap' && object.data.a <= params.data.a", message: too much}]`))
		w.write("", binding("Validating", "max", `validationActions: [Deny], paramRef: {`+ref+`, parameterNotFoundAction: Deny}`))
		w.write("", mutating("copy", `paramKind: {apiVersion: v1, kind: ConfigMap}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{data: {"b": string(has(params.kind)) + params.data.a}}'}}]`))
		w.write("", binding("Mutating", "copy", `paramRef: {`+ref+`, parameterNotFoundAction: Deny}`))
		w.decoded = 0
		for range 3 {
			if got := w.wantAllowed()["data"].(object.Tree)["b"]; got != "false1" {
				t.Errorf("a mutation has %v of the param", got)
			}
		}
		w.write("ns", fmt.Sprintf(param, 0))
		w.wantRefused("too much")
		w.wantRefused("too much")
		if w.decoded != 5 { // by write(), and by both kinds of policies before and after it
			t.Errorf("%s: decoded %d times", ref, w.decoded)
		}
	}
}
