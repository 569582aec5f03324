package webhook_test

import (
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

const namespaces = "/api/v1/namespaces"

// VAL-027
func TestFailurePolicy(t *testing.T) {
	fx := newFixture(t)
	fx.handle("guard", func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		http.Error(to, "out of order", http.StatusInternalServerError)
	})
	for _, kind := range []string{mutatings, validatings} {
		t.Run("Fail", func(t *testing.T) {
			fx.configure(t, kind, "guard", fx.hook("guard", tree{"failurePolicy": "Fail"}))
			fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, `Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: an error on the server ("out of order`)
		})
		t.Run("Ignore", func(t *testing.T) {
			fx.configure(t, kind, "guard", fx.hook("guard", tree{"failurePolicy": "Ignore"}))
			fx.must("POST", widgets, widget("a", `{}`))
			fx.must("DELETE", widgets+"/a", "")
			fx.handle("guard", deny("no"))
			fx.mustFail(t, "POST", widgets, widget("a", `{}`), 400, "denied the request: no") // which is no failure
			fx.handle("guard", func(to http.ResponseWriter, _ *http.Request, _ []byte) {
				http.Error(to, "out of order", http.StatusInternalServerError)
			})
		})
	}
}

// VAL-027
func TestMatchPolicy(t *testing.T) {
	fx := newFixture(t)
	at2 := strings.Replace(widget("a", `{"color":"red"}`), "v1", "v2", 1)
	rules := []any{rule("*", "example.com", "v1", "widgets")}
	t.Run("Exact", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": rules, "matchPolicy": "Exact"}))
		fx.must("POST", widgets2, at2)
		if seen := fx.take(); len(seen) != 0 {
			t.Error(text(seen))
		}
	})
	t.Run("Equivalent", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": rules, "matchPolicy": "Equivalent"}))
		fx.must("PATCH", widgets2+"/a", `{"spec":{"color":"blue"}}`)
		seen := fx.take()
		if len(seen) != 1 || at(seen[0], "resource.version") != "v1" || at(seen[0], "requestResource.version") != "v2" || at(seen[0], "kind.version") != "v1" ||
			at(seen[0], "requestKind.version") != "v2" || at(seen[0], "object.apiVersion") != "example.com/v1" || at(seen[0], "oldObject.apiVersion") != "example.com/v1" ||
			at(seen[0], "object.spec.color") != "blue" || at(seen[0], "oldObject.spec.color") != "red" {
			t.Error(text(seen))
		}
	})
	t.Run("another group", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": []any{rule("*", "events.k8s.io", "v1", "events")}}))
		fx.must("POST", namespaces+"/default/events", `{"metadata":{"name":"e"},"involvedObject":{"namespace":"default","name":"p"},"reason":"R"}`)
		if seen := fx.take(); len(seen) != 1 || at(seen[0], "object.apiVersion") != "events.k8s.io/v1" || at(seen[0], "object.regarding.name") != "p" {
			t.Error(text(seen))
		}
	})
}

// VAL-027
func TestScopeAndOperations(t *testing.T) {
	fx := newFixture(t)
	rule := func(scope string) tree {
		some, other := rule("CREATE", "example.com", "*", "*"), rule("CREATE", "", "*", "namespaces")
		some["scope"], other["scope"] = scope, scope
		return tree{"rules": []any{some, other}}
	}
	fx.configure(t, validatings, "guard", fx.hook("cluster", rule("Cluster")), fx.hook("namespaced", rule("Namespaced")))
	fx.must("POST", widgets, widget("a", `{}`))
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	fx.must("POST", namespaces, `{"metadata":{"name":"x"}}`)
	if paths := fx.calledPaths(); paths != "namespaced cluster" {
		t.Error(paths)
	}
}

// VAL-027: the labels of a namespace are those that it has when the write is made; of a Namespace, those it is to have.
func TestNamespaceSelector(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{
		"rules":             []any{rule("*", "example.com", "*", "*"), rule("*", "", "*", "namespaces"), rule("*", "apiextensions.k8s.io", "*", "customresourcedefinitions")},
		"namespaceSelector": tree{"matchLabels": tree{"guarded": "yes"}},
	}))
	label := func(value string) {
		fx.must("PATCH", namespaces+"/default", `{"metadata":{"labels":{"guarded":`+value+`}}}`)
	}
	fx.must("POST", widgets, widget("a", `{}`))
	if paths := fx.calledPaths(); paths != "" {
		t.Error(paths)
	}
	label(`"yes"`)
	if paths := fx.calledPaths(); paths != "guard" {
		t.Errorf("the Namespace with its new labels: %q", paths)
	}
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	fx.must("POST", crds, strings.NewReplacer("widgets", "gadgets", "Widget", "Gadget").Replace(widgetCRD))
	if paths := fx.calledPaths(); paths != "guard guard" {
		t.Errorf("in the namespace, and in none: %q", paths)
	}
	label("null")
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"blue"}}`)
	if paths := fx.calledPaths(); paths != "" {
		t.Errorf("no longer: %q", paths)
	}
}

// VAL-027: of the new object, or of the old one.
func TestObjectSelector(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"objectSelector": tree{"matchLabels": tree{"guarded": "yes"}}}))
	for _, step := range []struct{ method, path, body, want string }{
		{"POST", widgets, widget("a", `{}`), ""},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"yes"}}}`, "guard"},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"no"}}}`, "guard"},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"maybe"}}}`, ""},
		{"DELETE", widgets + "/a", "", ""},
	} {
		fx.must(step.method, step.path, step.body)
		if paths := fx.calledPaths(); paths != step.want {
			t.Errorf("%s %s: %q", step.method, step.body, paths)
		}
	}
}

// VAL-027
func TestMatchConditions(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"matchConditions": []any{
		tree{"name": "color", "expression": "object != null && object.spec.color == 'red'"},
		tree{"name": "user", "expression": "request.userInfo.username == 'kubernetes-admin' && authorizer.group('').resource('pods').check('get').allowed()"},
	}}))
	fx.must("POST", widgets, widget("a", `{"color":"red"}`))
	fx.must("POST", widgets, widget("b", `{"color":"blue"}`))
	if paths := fx.calledPaths(); paths != "guard" {
		t.Error(paths)
	}
	fx.mustFail(t, "POST", widgets, widget("c", `{}`), 403, "no such key: color")
	for policy, code := range map[string]int{"Ignore": 201, "Fail": 403} {
		t.Run(policy, func(t *testing.T) {
			fx.configure(t, mutatings, "guard", fx.hook("guard", tree{"failurePolicy": policy, "matchConditions": []any{tree{"name": "x", "expression": "object.spec.nosuch == 1"}}}))
			if out := fx.do("POST", widgets, widget("d", `{"color":"blue"}`)); out.code != code {
				t.Errorf("%d %s", out.code, out)
			}
			fx.take()
		})
	}
}

// VAL-027: what has side effects is not called for a dry run, which then fails.
func TestSideEffects(t *testing.T) {
	fx := newFixture(t)
	for effects, called := range map[string]bool{"None": true, "NoneOnDryRun": true, "Some": false, "Unknown": false} {
		t.Run(effects, func(t *testing.T) {
			if !called { // these are of the time before the API refused them: TestDryRunWithSideEffects
				fx.mustFail(t, "POST", validatings, text(tree{"metadata": tree{"name": "guard"}, "webhooks": []tree{fx.hook("guard", tree{"sideEffects": effects})}}), 422, "sideEffects")
				return
			}
			fx.configure(t, validatings, "guard", fx.hook("guard", tree{"sideEffects": effects}))
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
			if seen := fx.take(); len(seen) != 1 || seen[0]["dryRun"] != true {
				t.Error(text(seen))
			}
		})
	}
}

// VAL-027: webhooks are told how long they have, and are not waited for any longer.
func TestTimeoutSeconds(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"timeoutSeconds": 1}))
	gone := make(chan struct{})
	fx.handle("guard", func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		<-r.Context().Done() // the server has hung up
		close(gone)
		panic(http.ErrAbortHandler) // an answer could still arrive
	})
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, `/guard?timeout=1s": context deadline exceeded`)
	<-gone
	fx.handle("guard", nil)
	fx.must("PATCH", validatings+"/guard", text(tree{"webhooks": []tree{fx.hook("guard", tree{"timeoutSeconds": 30})}}))
	fx.take()
	fx.must("POST", widgets+"?timeout=9s", widget("a", `{}`))
	if seen := fx.take(); at(seen[0], "path") != "/guard?timeout=9s" {
		t.Errorf("of a request that has 9 s, told %v", seen[0]["path"])
	}
}

// VAL-027: a webhook is asked again if another one has changed the object after it, and it wants that.
func TestReinvocationPolicy(t *testing.T) {
	fx := newFixture(t)
	first := func(policy string) tree { return fx.hook("first", tree{"reinvocationPolicy": policy}) }
	fx.handle("second", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	for policy, want := range map[string]string{"Never": "first second", "IfNeeded": "first second first"} {
		t.Run(policy, func(t *testing.T) {
			fx.configure(t, mutatings, "a", first(policy))
			fx.configure(t, mutatings, "b", fx.hook("second", tree{"reinvocationPolicy": "IfNeeded"}))
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
			if seen := fx.take(); len(seen) > 2 && at(seen[2], "object.spec.color") != "red" {
				t.Error(text(seen))
			}
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
			if paths := fx.calledPaths(); paths != want {
				t.Error(paths)
			}
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{"color":"red"}`))
			if paths := fx.calledPaths(); paths != "first second" {
				t.Errorf("without a change: %s", paths)
			}
		})
	}
}

// Mutating webhooks are asked in the order of their configurations' names and of their places in them, and see what those before
// them have made of the object.
func TestOrder(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "b", fx.hook("three", nil))
	fx.configure(t, mutatings, "a", fx.hook("two", nil), fx.hook("one", nil))
	fx.handle("two", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.handle("one", patch(`[{"op":"test","path":"/spec/color","value":"red"},{"op":"replace","path":"/spec/color","value":"blue"}]`))
	if out := fx.must("POST", widgets, widget("a", `{}`)); out.at("spec.color") != "blue" {
		t.Errorf("%s", out)
	}
	if paths := fx.calledPaths(); paths != "two one three" {
		t.Error(paths)
	}
}

// VAL-027: both versions of AdmissionReview, the first that the server knows.
func TestAdmissionReviewVersions(t *testing.T) {
	fx := newFixture(t)
	for want, versions := range map[string][]any{"v1": {"v2", "v1", "v1beta1"}, "v1beta1": {"v1beta1", "v1"}} {
		t.Run(want, func(t *testing.T) {
			fx.configure(t, mutatings, "a", fx.hook("guard", tree{"admissionReviewVersions": versions}))
			asked := ""
			fx.handle("guard", func(to http.ResponseWriter, r *http.Request, body []byte) {
				_, after, _ := strings.Cut(string(body), `"apiVersion":"admission.k8s.io/`)
				asked, _, _ = strings.Cut(after, `"`)
				patch(`[{"op":"add","path":"/spec/color","value":"red"}]`)(to, r, body)
			})
			if out := fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`)); asked != want || out.at("spec.color") != "red" {
				t.Errorf("asked as %s: %s", asked, out)
			}
		})
	}
}

// Validating webhooks are asked at the same time: each of these answers when the other has been asked.
func TestValidatingTogether(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("one", nil), fx.hook("two", nil))
	meet := make(chan struct{})
	for name, does := range map[string]func(){"one": func() { meet <- struct{}{} }, "two": func() { <-meet }} {
		fx.handle(name, func(to http.ResponseWriter, r *http.Request, body []byte) {
			does()
			respond(admissionv1.AdmissionResponse{Allowed: true})(to, r, body)
		})
	}
	fx.must("POST", widgets, widget("a", `{}`))
}
