package webhook_test

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDenied checks that a webhook can deny all kinds of writes, and that the client receives its Status. VAL-023
func TestDenied(t *testing.T) {
	fx := newFixture(t)
	fx.must("POST", widgets, widget("a", `{"replicas":1}`))
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": []any{
		rule("*", "example.com", "*", "widgets/*"), rule("*", "example.com", "*", "widgets"),
		rule("*", "apiextensions.k8s.io", "*", "customresourcedefinitions"),
	}}))
	fx.handle("guard", deny("not today"))
	const message = `admission webhook "guard.example.com" denied the request: not today`
	for _, c := range []struct{ method, path, body string }{
		{"POST", widgets, widget("b", `{}`)},
		{"PATCH", widgets + "/a", `{"spec":{"color":"red"}}`},
		{"PATCH", widgets + "/a/status", `{"status":{"phase":"on"}}`},
		{"PATCH", widgets + "/a/scale", `{"spec":{"replicas":2}}`},
		{"DELETE", widgets + "/a", ""},
		{"DELETE", widgets, ""},
		{"POST", crds, strings.NewReplacer("widgets", "gadgets", "Widget", "Gadget").Replace(widgetCRD)},
		{"PATCH", crds + "/widgets.example.com", `{"metadata":{"labels":{"a":"b"}}}`},
	} {
		out := fx.do(c.method, c.path, c.body)
		if out.code != 400 || out.at("message") != message || out.at("status") != "Failure" {
			t.Errorf("%s %s: got %d %s, want 400 %s", c.method, c.path, out.code, out, message)
		}
	}
	fx.handle("guard", respond(admissionv1.AdmissionResponse{
		Result: &metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict},
	}))
	if out := fx.do("POST", widgets, widget("b", `{}`)); out.code != 409 || out.at("reason") != "Conflict" ||
		out.at("message") != `admission webhook "guard.example.com" denied the request: Conflict` {
		t.Errorf("%d %s", out.code, out)
	}
	fx.handle("guard", nil)
	fx.must("POST", widgets, widget("b", `{}`))
	if out := fx.must("GET", widgets+"/a", ""); out.at("spec.replicas") != 1. {
		t.Errorf("a denied write changed the object: %s", out)
	}
}

// TestInForceAtOnce checks that a configuration is in force when its write has returned, and no longer in force when
// its deletion has returned.
func TestInForceAtOnce(t *testing.T) {
	fx := newFixture(t)
	fx.handle("guard", deny("no"))
	for range 20 {
		fx.must("POST", validatings, text(tree{
			"metadata": tree{"name": "guard"}, "webhooks": []tree{fx.hook("guard", nil)},
		}))
		fx.mustFail(t, "POST", widgets, widget("a", `{}`), 400, "denied the request: no")
		fx.must("PATCH", validatings+"/guard", text(tree{"webhooks": []tree{fx.hook("other", nil)}}))
		fx.must("POST", widgets, widget("a", `{}`))
		fx.must("DELETE", validatings+"/guard", "")
		fx.must("DELETE", widgets+"/a", "")
	}
	if paths := fx.calledPaths(); paths != strings.TrimSpace(strings.Repeat("guard other ", 20)) {
		t.Error(paths)
	}
}

// TestExempt checks that webhooks are not called for webhook configurations or for authentication and authorization
// reviews. Otherwise a webhook could lock out all users.
func TestExempt(t *testing.T) {
	fx := newFixture(t)
	fx.handle("guard", deny("no"))
	fx.must("POST", validatings, text(tree{
		"metadata": tree{"name": "guard"}, "webhooks": []tree{
			fx.hook("guard", tree{"rules": []any{rule("*", "*", "*", "*/*")}}),
		},
	}))
	fx.must("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		`{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
	fx.must("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`)
	fx.mustFail(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"x"}}`, 400, "denied")
	fx.must("PATCH", validatings+"/guard", `{"metadata":{"labels":{"a":"b"}}}`)
	fx.must("DELETE", validatings+"/guard", "")
}

// TestWarnings checks that the warnings of webhooks reach the client.
func TestWarnings(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", nil))
	fx.configure(t, mutatings, "change", fx.hook("change", nil))
	fx.handle("guard", respond(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"second"}}))
	fx.handle("change", respond(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"first"}}))
	if out := fx.must("POST", widgets, widget("a", `{}`)); !reflect.DeepEqual(out.warnings,
		[]string{"first", "second"}) {
		t.Errorf("%q", out.warnings)
	}
}

// TestDefaultsAfterPatch checks that a patched object has the defaults of the version that the webhook received.
// DEF-009
func TestDefaultsAfterPatch(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "change", fx.hook("change", tree{
		"rules": []any{rule("CREATE", "example.com", "v2", "widgets")},
	}))
	fx.configure(t, validatings, "guard", fx.hook("guard", nil))
	fx.handle("change", patch(`[{"op":"add","path":"/spec/box","value":{}}]`))
	out := fx.must("POST", widgets2, strings.Replace(widget("a", `{}`), "v1", "v2", 1))
	if out.at("spec.box.two") != "from v2" {
		t.Errorf("the default of v2 is missing: %s", out)
	}
	seen := fx.take()
	if len(seen) != 2 || at(seen[0], "kind.version") != "v2" || at(seen[0], "object.apiVersion") != "example.com/v2" ||
		at(seen[1], "kind.version") != "v1" || at(seen[1], "object.spec.box.two") != "from v2" {
		t.Error(text(seen))
	}
	fx.must("POST", widgets, widget("b", `{}`))
	if out := fx.must("GET", widgets+"/b", ""); out.at("spec.box.one") != "from v1" {
		t.Errorf("the default of v1 is missing: %s", out)
	}
	fx.handle("change", patch(`[]`))
	if out := fx.must("POST", widgets, widget("c", `{}`)); out.at("spec.box") != nil {
		t.Errorf("an empty patch changed the object: %s", out)
	}
	fx.must("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a"}}`)
	fx.configure(t, mutatings, "builtin", fx.hook("builtin", tree{
		"rules": []any{rule("CREATE", "", "v1", "services")},
	}))
	fx.handle("builtin", patch(`[{"op":"add","path":"/spec/ports/-","value":{"port":81,"name":"b","nosuch":1}}]`))
	out = fx.must("POST", "/api/v1/namespaces/default/services",
		`{"metadata":{"name":"a"},"spec":{"ports":[{"port":80,"name":"a"}]}}`)
	port := out.at("spec.ports").([]any)[1].(tree)
	if port["protocol"] != "TCP" || port["nosuch"] != nil {
		t.Errorf("%v", port)
	}
}

// TestPatchIsPruned checks that a patched object is pruned and validated like the object of a client.
func TestPatchIsPruned(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "change", fx.hook("change", nil))
	fx.handle("change",
		patch(`[{"op":"add","path":"/spec/nosuch","value":1},{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.must("POST", widgets, widget("a", `{}`))
	if out := fx.must("GET", widgets+"/a", ""); out.at("spec.nosuch") != nil || out.at("spec.color") != "red" {
		t.Errorf("%s", out)
	}
	fx.handle("change", patch(`[{"op":"add","path":"/spec/color","value":7}]`))
	fx.mustFail(t, "POST", widgets, widget("b", `{}`), 422, `spec.color in body must be of type string: "integer"`)
}

// TestRedirectIsNotFollowed checks that redirects of webhooks are not followed, and that the content at the target does
// not reach the client (CVE-2020-8561).
func TestRedirectIsNotFollowed(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", nil))
	fx.handle("guard", func(w http.ResponseWriter, r *http.Request, _ []byte) {
		http.Redirect(w, r, "/secret", http.StatusTemporaryRedirect)
	})
	fx.handle("secret", func(w http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(w, "a secret", 500) })
	out := fx.do("POST", widgets, widget("a", `{}`))
	if out.code != 500 || strings.Contains(out.String(), "a secret") ||
		!strings.Contains(out.String(), `failed calling webhook \"guard.example.com\"`) {
		t.Errorf("%d %s", out.code, out)
	}
	if paths := fx.calledPaths(); paths != "guard" {
		t.Errorf("got calls of %s, want guard", paths)
	}
}

// TestOldObjectIsStoredObject checks that the old object in a review of a Node is the stored object, regardless of the
// request (CVE-2021-25735).
func TestOldObjectIsStoredObject(t *testing.T) {
	fx := newFixture(t)
	fx.must("POST", "/api/v1/nodes", `{"metadata":{"name":"n","labels":{"changeAllowed":"false"}}}`)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{
		"rules": []any{rule("UPDATE", "", "v1", "nodes"), rule("UPDATE", "", "v1", "nodes/status")},
	}))
	for _, path := range []string{"/api/v1/nodes/n", "/api/v1/nodes/n/status"} {
		fx.must("PATCH", path, `{"metadata":{"labels":{"changeAllowed":"true"}},"spec":{"unschedulable":true},
			"status":{"nodeInfo":{"architecture":"new"}}}`)
		seen := fx.take()
		if len(seen) != 1 || at(seen[0], "oldObject.metadata.labels.changeAllowed") != "false" {
			t.Errorf("%s: %s", path, text(seen))
		}
		fx.must("PATCH", path, `{"metadata":{"labels":{"changeAllowed":"false"}}}`)
		fx.take()
	}
}

// TestInvalidManagedFields checks that managedFields which a webhook makes invalid are restored, with a warning to the
// client.
func TestInvalidManagedFields(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "change", fx.hook("change", nil))
	fx.handle("change", patch(`[{"op":"replace","path":"/metadata/managedFields/0/operation","value":"Magic"},
		{"op":"add","path":"/spec/color","value":"red"}]`))
	out := fx.must("POST", widgets, widget("a", `{}`))
	entries, _ := out.at("metadata.managedFields").([]any)
	if len(entries) != 1 || entries[0].(tree)["operation"] != "Update" || out.at("spec.color") != "red" ||
		len(out.warnings) != 1 || !strings.HasPrefix(out.warnings[0],
		".metadata.managedFields was in an invalid state after admission; ") {
		t.Errorf("%s %q", out, out.warnings)
	}
}

// TestScale checks that a webhook for a write through /scale receives the old and the new Scale, and that the
// webhook's patch of the Scale is stored. VAL-023
func TestScale(t *testing.T) {
	fx := newFixture(t)
	fx.must("POST", widgets, widget("a", `{"replicas":1}`))
	scales := tree{"rules": []any{rule("*", "example.com", "*", "widgets/scale")}}
	fx.configure(t, mutatings, "change", fx.hook("change", scales))
	fx.configure(t, validatings, "guard", fx.hook("guard", scales))
	fx.handle("change", patch(`[{"op":"replace","path":"/spec/replicas","value":7}]`))
	fx.must("PATCH", widgets+"/a/scale", `{"spec":{"replicas":2}}`)
	seen := fx.take()
	if len(seen) != 2 {
		t.Fatal(text(seen))
	}
	for i, replicas := range []float64{2, 7} {
		s := seen[i]
		if at(s, "kind.kind") != "Scale" || at(s, "resource.resource") != "widgets" || s["subResource"] != "scale" ||
			at(s, "object.apiVersion") != "autoscaling/v1" ||
			at(s, "object.spec.replicas") != replicas || at(s, "oldObject.spec.replicas") != 1. {
			t.Error(text(s))
		}
	}
	if out := fx.must("GET", widgets+"/a", ""); out.at("spec.replicas") != 7. {
		t.Errorf("%s", out)
	}
}

// TestTrace checks that the trace of a write contains the changes of each webhook, and the webhook that denies the
// write.
func TestTrace(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "change", fx.hook("change", nil))
	fx.configure(t, validatings, "guard", fx.hook("first", nil), fx.hook("guard", nil))
	fx.handle("change", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.handle("guard", deny("not today"))
	out := fx.must("POST", widgets+"?dryRun=All&trace=true", widget("a", `{}`))
	steps := map[string]tree{}
	all, _ := out.at("steps").([]any)
	for _, s := range all {
		steps[s.(tree)["name"].(string)] = s.(tree)
	}
	if got := text(tree{"": steps["change.example.com"]["changes"]}); got != `{"":[{"after":"red","field":"spec.color"}]}` {
		t.Error(got)
	}
	for name, denial := range map[string]any{"first.example.com": nil,
		"guard.example.com": `admission webhook "guard.example.com" denied the request: not today`} {
		if s := steps[name]; s == nil || s["refused"] != denial || s["depth"] != 2. {
			t.Errorf("%s: %v in %s", name, s, out)
		}
	}
	if out.at("code") != 400. {
		t.Error(out)
	}
}

// TestInvalidMetadata checks that a metadata field is dropped if a webhook gives it a value of the wrong type, as in
// kube-apiserver.
func TestInvalidMetadata(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "change", fx.hook("change", nil))
	for field, value := range map[string]string{"annotations": `[1]`, "finalizers": `"x"`, "ownerReferences": `[5]`,
		"labels": `{"a":1}`, "managedFields": `"x"`} {
		fx.handle("change", patch(`[{"op":"add","path":"/metadata/`+field+`","value":`+value+`},
			{"op":"add","path":"/spec/color","value":"red"}]`))
		fx.must("POST", widgets, widget("a", `{}`))
		fx.handle("change", nil)
		out := fx.must("GET", widgets+"/a", "")
		if _, isList := out.at("metadata." + field).([]any); field != "managedFields" &&
			out.at("metadata."+field) != nil || field == "managedFields" && !isList &&
			out.at("metadata."+field) != nil || out.at("spec.color") != "red" {
			t.Errorf("%s: %s", field, out)
		}
		fx.must("PATCH", widgets+"/a", `{"metadata":{"labels":{"b":"c"}}}`)
		fx.must("DELETE", widgets+"/a", "")
	}
}
