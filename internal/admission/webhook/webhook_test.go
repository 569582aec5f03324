package webhook_test

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VAL-023
func TestDenied(t *testing.T) {
	w := newWorld(t)
	w.must("POST", widgets, widget("a", `{"replicas":1}`))
	w.configure(t, validatings, "guard", w.hook("guard", tree{"rules": []any{
		about("*", "example.com", "*", "widgets/*"), about("*", "example.com", "*", "widgets"), about("*", "apiextensions.k8s.io", "*", "customresourcedefinitions"),
	}}))
	w.on("guard", deny("not today"))
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
		out := w.do(c.method, c.path, c.body)
		if out.code != 400 || out.at("message") != message || out.at("status") != "Failure" {
			t.Errorf("%s %s: %d %s", c.method, c.path, out.code, out)
		}
	}
	w.on("guard", answer(admissionv1.AdmissionResponse{Result: &metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict}}))
	if out := w.do("POST", widgets, widget("b", `{}`)); out.code != 409 || out.at("reason") != "Conflict" ||
		out.at("message") != `admission webhook "guard.example.com" denied the request: Conflict` {
		t.Errorf("%d %s", out.code, out)
	}
	w.on("guard", nil)
	w.must("POST", widgets, widget("b", `{}`))
	if out := w.must("GET", widgets+"/a", ""); out.at("spec.replicas") != 1. {
		t.Errorf("a refused write has changed %s", out)
	}
}

// A configuration is in force when its write has been answered, and no longer when its deletion has been.
func TestInForceAtOnce(t *testing.T) {
	w := newWorld(t)
	w.on("guard", deny("no"))
	for range 20 {
		w.must("POST", validatings, text(tree{"metadata": tree{"name": "guard"}, "webhooks": []tree{w.hook("guard", nil)}}))
		w.refused(t, "POST", widgets, widget("a", `{}`), 400, "denied the request: no")
		w.must("PATCH", validatings+"/guard", text(tree{"webhooks": []tree{w.hook("other", nil)}}))
		w.must("POST", widgets, widget("a", `{}`))
		w.must("DELETE", validatings+"/guard", "")
		w.must("DELETE", widgets+"/a", "")
	}
	if paths := w.paths(); paths != strings.TrimSpace(strings.Repeat("guard other ", 20)) {
		t.Error(paths)
	}
}

// Nobody is locked up: webhooks do not hear of what they are configured by, nor of who somebody is and what he may do.
func TestExempt(t *testing.T) {
	w := newWorld(t)
	w.on("guard", deny("no"))
	w.must("POST", validatings, text(tree{"metadata": tree{"name": "guard"}, "webhooks": []tree{w.hook("guard", tree{"rules": []any{about("*", "*", "*", "*/*")}})}}))
	w.must("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
	w.must("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`)
	w.refused(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"x"}}`, 400, "denied")
	w.must("PATCH", validatings+"/guard", `{"metadata":{"labels":{"a":"b"}}}`)
	w.must("DELETE", validatings+"/guard", "")
}

// Warnings reach the client.
func TestWarnings(t *testing.T) {
	w := newWorld(t)
	w.configure(t, validatings, "guard", w.hook("guard", nil))
	w.configure(t, mutatings, "change", w.hook("change", nil))
	w.on("guard", answer(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"second"}}))
	w.on("change", answer(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"first"}}))
	if out := w.must("POST", widgets, widget("a", `{}`)); !reflect.DeepEqual(out.warnings, []string{"first", "second"}) {
		t.Errorf("%q", out.warnings)
	}
}

// DEF-009: after a patch, the object has the defaults of the version that the webhook was given.
func TestDefaultsAfterPatch(t *testing.T) {
	w := newWorld(t)
	w.configure(t, mutatings, "change", w.hook("change", tree{"rules": []any{about("CREATE", "example.com", "v2", "widgets")}}))
	w.configure(t, validatings, "guard", w.hook("guard", nil))
	w.on("change", patch(`[{"op":"add","path":"/spec/box","value":{}}]`))
	out := w.must("POST", widgets2, strings.Replace(widget("a", `{}`), "v1", "v2", 1))
	if out.at("spec.box.two") != "from v2" {
		t.Errorf("without the default of v2: %s", out)
	}
	seen := w.take()
	if len(seen) != 2 || at(seen[0], "kind.version") != "v2" || at(seen[0], "object.apiVersion") != "example.com/v2" ||
		at(seen[1], "kind.version") != "v1" || at(seen[1], "object.spec.box.two") != "from v2" {
		t.Error(text(seen))
	}
	w.must("POST", widgets, widget("b", `{}`))
	if out := w.must("GET", widgets+"/b", ""); out.at("spec.box.one") != "from v1" {
		t.Errorf("without the default of v1: %s", out)
	}
	w.on("change", patch(`[]`))
	if out := w.must("POST", widgets, widget("c", `{}`)); out.at("spec.box") != nil {
		t.Errorf("an empty patch has added %s", out)
	}
	w.must("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a"}}`)
	w.configure(t, mutatings, "builtin", w.hook("builtin", tree{"rules": []any{about("CREATE", "", "v1", "services")}}))
	w.on("builtin", patch(`[{"op":"add","path":"/spec/ports/-","value":{"port":81,"name":"b","nosuch":1}}]`))
	out = w.must("POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"a"},"spec":{"ports":[{"port":80,"name":"a"}]}}`)
	port := out.at("spec.ports").([]any)[1].(tree)
	if port["protocol"] != "TCP" || port["nosuch"] != nil {
		t.Errorf("%v", port)
	}
}

// What a webhook patches in is pruned as what a client sends is.
func TestPatchIsPruned(t *testing.T) {
	w := newWorld(t)
	w.configure(t, mutatings, "change", w.hook("change", nil))
	w.on("change", patch(`[{"op":"add","path":"/spec/nosuch","value":1},{"op":"add","path":"/spec/color","value":"red"}]`))
	w.must("POST", widgets, widget("a", `{}`))
	if out := w.must("GET", widgets+"/a", ""); out.at("spec.nosuch") != nil || out.at("spec.color") != "red" {
		t.Errorf("%s", out)
	}
	w.on("change", patch(`[{"op":"add","path":"/spec/color","value":7}]`))
	w.refused(t, "POST", widgets, widget("b", `{}`), 422, `spec.color in body must be of type string: "integer"`)
}

// CVE-2020-8561: a redirect is not followed, and what is there does not reach the client.
func TestRedirectIsNotFollowed(t *testing.T) {
	w := newWorld(t)
	w.configure(t, validatings, "guard", w.hook("guard", nil))
	w.on("guard", func(to http.ResponseWriter, r *http.Request, _ []byte) {
		http.Redirect(to, r, "/secret", http.StatusTemporaryRedirect)
	})
	w.on("secret", func(to http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(to, "a secret", 500) })
	out := w.do("POST", widgets, widget("a", `{}`))
	if out.code != 500 || strings.Contains(out.String(), "a secret") || !strings.Contains(out.String(), `failed calling webhook \"guard.example.com\"`) {
		t.Errorf("%d %s", out.code, out)
	}
	if paths := w.paths(); paths != "guard" {
		t.Errorf("asked at %s", paths)
	}
}

// CVE-2021-25735: what a webhook for Nodes has as the old object is what is stored, whatever the request says.
func TestOldObjectIsWhatIsStored(t *testing.T) {
	w := newWorld(t)
	w.must("POST", "/api/v1/nodes", `{"metadata":{"name":"n","labels":{"changeAllowed":"false"}}}`)
	w.configure(t, validatings, "guard", w.hook("guard", tree{"rules": []any{about("UPDATE", "", "v1", "nodes"), about("UPDATE", "", "v1", "nodes/status")}}))
	for _, path := range []string{"/api/v1/nodes/n", "/api/v1/nodes/n/status"} {
		w.must("PATCH", path, `{"metadata":{"labels":{"changeAllowed":"true"}},"spec":{"unschedulable":true},"status":{"nodeInfo":{"architecture":"new"}}}`)
		seen := w.take()
		if len(seen) != 1 || at(seen[0], "oldObject.metadata.labels.changeAllowed") != "false" {
			t.Errorf("%s: %s", path, text(seen))
		}
		w.must("PATCH", path, `{"metadata":{"labels":{"changeAllowed":"false"}}}`)
		w.take()
	}
}

// managedFields that a webhook spoils are as they were, and the client is told.
func TestSpoiltManagedFields(t *testing.T) {
	w := newWorld(t)
	w.configure(t, mutatings, "change", w.hook("change", nil))
	w.on("change", patch(`[{"op":"replace","path":"/metadata/managedFields/0/operation","value":"Magic"},{"op":"add","path":"/spec/color","value":"red"}]`))
	out := w.must("POST", widgets, widget("a", `{}`))
	entries, _ := out.at("metadata.managedFields").([]any)
	if len(entries) != 1 || entries[0].(tree)["operation"] != "Update" || out.at("spec.color") != "red" ||
		len(out.warnings) != 1 || !strings.HasPrefix(out.warnings[0], ".metadata.managedFields was in an invalid state after admission; ") {
		t.Errorf("%s %q", out, out.warnings)
	}
}

// VAL-023: of a write through /scale a webhook sees the Scale, before and after, and what it makes of that is what is stored.
func TestScaleIsSeen(t *testing.T) {
	w := newWorld(t)
	w.must("POST", widgets, widget("a", `{"replicas":1}`))
	scales := tree{"rules": []any{about("*", "example.com", "*", "widgets/scale")}}
	w.configure(t, mutatings, "change", w.hook("change", scales))
	w.configure(t, validatings, "guard", w.hook("guard", scales))
	w.on("change", patch(`[{"op":"replace","path":"/spec/replicas","value":7}]`))
	w.must("PATCH", widgets+"/a/scale", `{"spec":{"replicas":2}}`)
	seen := w.take()
	if len(seen) != 2 {
		t.Fatal(text(seen))
	}
	for i, replicas := range []float64{2, 7} {
		s := seen[i]
		if at(s, "kind.kind") != "Scale" || at(s, "resource.resource") != "widgets" || s["subResource"] != "scale" || at(s, "object.apiVersion") != "autoscaling/v1" ||
			at(s, "object.spec.replicas") != replicas || at(s, "oldObject.spec.replicas") != 1. {
			t.Error(text(s))
		}
	}
	if out := w.must("GET", widgets+"/a", ""); out.at("spec.replicas") != 7. {
		t.Errorf("%s", out)
	}
}

// Who asks why is told what each webhook has changed, and which one refuses.
func TestWhy(t *testing.T) {
	w := newWorld(t)
	w.configure(t, mutatings, "change", w.hook("change", nil))
	w.configure(t, validatings, "guard", w.hook("first", nil), w.hook("guard", nil))
	w.on("change", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	w.on("guard", deny("not today"))
	out := w.must("POST", widgets+"?dryRun=All&trace=true", widget("a", `{}`))
	steps := map[string]tree{}
	all, _ := out.at("steps").([]any)
	for _, s := range all {
		steps[s.(tree)["name"].(string)] = s.(tree)
	}
	if got := text(tree{"": steps["change.example.com"]["changes"]}); got != `{"":[{"after":"red","field":"spec.color"}]}` {
		t.Error(got)
	}
	for name, refused := range map[string]any{"first.example.com": nil, "guard.example.com": `admission webhook "guard.example.com" denied the request: not today`} {
		if s := steps[name]; s == nil || s["refused"] != refused || s["depth"] != 2. {
			t.Errorf("%s: %v in %s", name, s, out)
		}
	}
	if out.at("code") != 400. {
		t.Error(out)
	}
}

// What a webhook makes of metadata that is none is dropped, as with kube-apiserver.
func TestSpoiledMetadata(t *testing.T) {
	w := newWorld(t)
	w.configure(t, mutatings, "change", w.hook("change", nil))
	for field, value := range map[string]string{"annotations": `[1]`, "finalizers": `"x"`, "ownerReferences": `[5]`, "labels": `{"a":1}`, "managedFields": `"x"`} {
		w.on("change", patch(`[{"op":"add","path":"/metadata/`+field+`","value":`+value+`},{"op":"add","path":"/spec/color","value":"red"}]`))
		w.must("POST", widgets, widget("a", `{}`))
		w.on("change", nil)
		out := w.must("GET", widgets+"/a", "")
		if _, isList := out.at("metadata." + field).([]any); field != "managedFields" && out.at("metadata."+field) != nil || field == "managedFields" && !isList && out.at("metadata."+field) != nil || out.at("spec.color") != "red" {
			t.Errorf("%s: %s", field, out)
		}
		w.must("PATCH", widgets+"/a", `{"metadata":{"labels":{"b":"c"}}}`)
		w.must("DELETE", widgets+"/a", "")
	}
}
