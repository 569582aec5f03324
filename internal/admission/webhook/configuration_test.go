package webhook_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/trellis-k8s/trellis/testserver"
)

const namespaces = "/api/v1/namespaces"

// TestFailurePolicy checks that a failed call denies the write with the policy Fail and not with Ignore. VAL-027
func TestFailurePolicy(t *testing.T) {
	fx := newFixture(t)
	fx.handle("guard", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		http.Error(w, "unavailable", http.StatusInternalServerError)
	})
	for _, kind := range []string{mutatings, validatings} {
		t.Run("Fail", func(t *testing.T) {
			fx.configure(t, kind, "guard", fx.hook("guard", tree{"failurePolicy": "Fail"}))
			fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, `Internal error occurred: failed calling webhook`+
				` "guard.example.com": failed to call webhook: an error on the server ("unavailable`)
		})
		t.Run("Ignore", func(t *testing.T) {
			fx.configure(t, kind, "guard", fx.hook("guard", tree{"failurePolicy": "Ignore"}))
			fx.must("POST", widgets, widget("a", `{}`))
			fx.must("DELETE", widgets+"/a", "")
			fx.handle("guard", deny("no"))
			fx.mustFail(t, "POST", widgets, widget("a", `{}`), 400,
				"denied the request: no") // a denial is not a failure
			fx.handle("guard", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				http.Error(w, "unavailable", http.StatusInternalServerError)
			})
		})
	}
}

// TestMatchPolicy checks that only the policy Equivalent matches other versions and groups of a resource. VAL-027
func TestMatchPolicy(t *testing.T) {
	fx := newFixture(t)
	v2 := strings.Replace(widget("a", `{"color":"red"}`), "v1", "v2", 1)
	rules := []any{rule("*", "example.com", "v1", "widgets")}
	t.Run("Exact", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": rules, "matchPolicy": "Exact"}))
		fx.must("POST", widgets2, v2)
		if seen := fx.take(); len(seen) != 0 {
			t.Error(text(seen))
		}
	})
	t.Run("Equivalent", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{"rules": rules, "matchPolicy": "Equivalent"}))
		fx.must("PATCH", widgets2+"/a", `{"spec":{"color":"blue"}}`)
		seen := fx.take()
		if len(seen) != 1 || at(seen[0], "resource.version") != "v1" ||
			at(seen[0], "requestResource.version") != "v2" || at(seen[0], "kind.version") != "v1" ||
			at(seen[0], "requestKind.version") != "v2" || at(seen[0], "object.apiVersion") != "example.com/v1" ||
			at(seen[0], "oldObject.apiVersion") != "example.com/v1" ||
			at(seen[0], "object.spec.color") != "blue" || at(seen[0], "oldObject.spec.color") != "red" {
			t.Error(text(seen))
		}
	})
	t.Run("another group", func(t *testing.T) {
		fx.configure(t, validatings, "guard", fx.hook("guard", tree{
			"rules": []any{rule("*", "events.k8s.io", "v1", "events")},
		}))
		fx.must("POST", namespaces+"/default/events",
			`{"metadata":{"name":"e"},"involvedObject":{"namespace":"default","name":"p"},"reason":"R"}`)
		if seen := fx.take(); len(seen) != 1 || at(seen[0], "object.apiVersion") != "events.k8s.io/v1" ||
			at(seen[0], "object.regarding.name") != "p" {
			t.Error(text(seen))
		}
	})
}

// TestScopeAndOperations checks the scope and the operations of rules. VAL-027
func TestScopeAndOperations(t *testing.T) {
	fx := newFixture(t)
	rule := func(scope string) tree {
		some, other := rule("CREATE", "example.com", "*", "*"), rule("CREATE", "", "*", "namespaces")
		some["scope"], other["scope"] = scope, scope
		return tree{"rules": []any{some, other}}
	}
	fx.configure(t, validatings, "guard", fx.hook("cluster", rule("Cluster")),
		fx.hook("namespaced", rule("Namespaced")))
	fx.must("POST", widgets, widget("a", `{}`))
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	fx.must("POST", namespaces, `{"metadata":{"name":"x"}}`)
	if paths := fx.calledPaths(); paths != "namespaced cluster" {
		t.Error(paths)
	}
}

// TestNamespaceSelector checks that the selector matches the namespace's labels at the time of the write, and the new
// labels for a write of a Namespace. VAL-027
func TestNamespaceSelector(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{
		"rules": []any{rule("*", "example.com", "*", "*"), rule("*", "", "*", "namespaces"),
			rule("*", "apiextensions.k8s.io", "*", "customresourcedefinitions")},
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
		t.Errorf("Namespace with new labels: got calls of %q, want guard", paths)
	}
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	fx.must("POST", crds, strings.NewReplacer("widgets", "gadgets", "Widget", "Gadget").Replace(widgetCRD))
	if paths := fx.calledPaths(); paths != "guard guard" {
		t.Errorf("in the namespace and cluster-scoped: got calls of %q, want guard guard", paths)
	}
	label("null")
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"blue"}}`)
	if paths := fx.calledPaths(); paths != "" {
		t.Errorf("after the label is removed: got calls of %q, want none", paths)
	}
}

// TestObjectSelector checks that the selector matches the labels of the new or the old object. VAL-027
func TestObjectSelector(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{
		"objectSelector": tree{"matchLabels": tree{"guarded": "yes"}},
	}))
	for _, step := range []struct{ method, path, body, want string }{
		{"POST", widgets, widget("a", `{}`), ""},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"yes"}}}`, "guard"},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"no"}}}`, "guard"},
		{"PATCH", widgets + "/a", `{"metadata":{"labels":{"guarded":"maybe"}}}`, ""},
		{"DELETE", widgets + "/a", "", ""},
	} {
		fx.must(step.method, step.path, step.body)
		if paths := fx.calledPaths(); paths != step.want {
			t.Errorf("%s %s: got calls of %q, want %q", step.method, step.body, paths, step.want)
		}
	}
}

// TestMatchConditions checks that matchConditions decide whether a webhook is called. If an expression fails, the
// failurePolicy applies. VAL-027
func TestMatchConditions(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"matchConditions": []any{
		tree{"name": "color", "expression": "object != null && object.spec.color == 'red'"},
		tree{"name": "user", "expression": "request.userInfo.username == 'kubernetes-admin'" +
			" && authorizer.group('').resource('pods').check('get').allowed()"},
	}}))
	fx.must("POST", widgets, widget("a", `{"color":"red"}`))
	fx.must("POST", widgets, widget("b", `{"color":"blue"}`))
	if paths := fx.calledPaths(); paths != "guard" {
		t.Error(paths)
	}
	fx.mustFail(t, "POST", widgets, widget("c", `{}`), 403, "no such key: color")
	for policy, code := range map[string]int{"Ignore": 201, "Fail": 403} {
		t.Run(policy, func(t *testing.T) {
			fx.configure(t, mutatings, "guard", fx.hook("guard", tree{
				"failurePolicy": policy, "matchConditions": []any{
					tree{"name": "x", "expression": "object.spec.nosuch == 1"},
				},
			}))
			if out := fx.do("POST", widgets, widget("d", `{"color":"blue"}`)); out.code != code {
				t.Errorf("got %d %s, want %d", out.code, out, code)
			}
			fx.take()
		})
	}
}

// TestSideEffects checks that only webhooks without side effects are called in a dry run. The API rejects webhooks with
// side effects. VAL-027
func TestSideEffects(t *testing.T) {
	fx := newFixture(t)
	for effects, called := range map[string]bool{"None": true, "NoneOnDryRun": true, "Some": false, "Unknown": false} {
		t.Run(effects, func(t *testing.T) {
			if !called { // TestDryRunWithSideEffects tests stored webhooks with side effects
				fx.mustFail(t, "POST", validatings, text(tree{"metadata": tree{"name": "guard"},
					"webhooks": []tree{fx.hook("guard", tree{"sideEffects": effects})}}), 422, "sideEffects")
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

// TestTimeoutSeconds checks that a webhook receives its timeout as a query parameter, and that a call ends after the
// timeout. VAL-027
func TestTimeoutSeconds(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"timeoutSeconds": 1}))
	disconnected := make(chan struct{})
	fx.handle("guard", func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		<-r.Context().Done() // the server has closed the connection
		close(disconnected)
		panic(http.ErrAbortHandler) // a response could still arrive
	})
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, `/guard?timeout=1s": context deadline exceeded`)
	<-disconnected
	fx.handle("guard", nil)
	fx.must("PATCH", validatings+"/guard", text(tree{"webhooks": []tree{fx.hook("guard", tree{"timeoutSeconds": 30})}}))
	fx.take()
	fx.must("POST", widgets+"?timeout=9s", widget("a", `{}`))
	if seen := fx.take(); at(seen[0], "path") != "/guard?timeout=9s" {
		t.Errorf("request with a timeout of 9 s: got path %v", seen[0]["path"])
	}
}

// TestReinvocationPolicy checks that a webhook with the policy IfNeeded is called again if a later webhook changes the
// object. VAL-027
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
				t.Errorf("without a change: got calls of %s, want first second", paths)
			}
		})
	}
}

// TestOrder checks that mutating webhooks are called in the order of their configurations' names and of their positions
// in the configurations. Each webhook receives the object with the changes of the previous ones.
func TestOrder(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "b", fx.hook("three", nil))
	fx.configure(t, mutatings, "a", fx.hook("two", nil), fx.hook("one", nil))
	fx.handle("two", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.handle("one", patch(`[{"op":"test","path":"/spec/color","value":"red"},
		{"op":"replace","path":"/spec/color","value":"blue"}]`))
	if out := fx.must("POST", widgets, widget("a", `{}`)); out.at("spec.color") != "blue" {
		t.Errorf("%s", out)
	}
	if paths := fx.calledPaths(); paths != "two one three" {
		t.Error(paths)
	}
}

// TestAdmissionReviewVersions checks that a webhook receives the first version of AdmissionReview that the server
// supports. VAL-027
func TestAdmissionReviewVersions(t *testing.T) {
	fx := newFixture(t)
	for want, versions := range map[string][]any{"v1": {"v2", "v1", "v1beta1"}, "v1beta1": {"v1beta1", "v1"}} {
		t.Run(want, func(t *testing.T) {
			fx.configure(t, mutatings, "a", fx.hook("guard", tree{"admissionReviewVersions": versions}))
			got := ""
			fx.handle("guard", func(w http.ResponseWriter, r *http.Request, body []byte) {
				_, after, _ := strings.Cut(string(body), `"apiVersion":"admission.k8s.io/`)
				got, _, _ = strings.Cut(after, `"`)
				patch(`[{"op":"add","path":"/spec/color","value":"red"}]`)(w, r, body)
			})
			out := fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
			if got != want || out.at("spec.color") != "red" {
				t.Errorf("got version %s, want %s; object %s", got, want, out)
			}
		})
	}
}

// TestValidatingConcurrently checks that validating webhooks are called concurrently. Each of the two responds only
// after the other has been called.
func TestValidatingConcurrently(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("one", nil), fx.hook("two", nil))
	meet := make(chan struct{})
	for name, wait := range map[string]func(){"one": func() { meet <- struct{}{} }, "two": func() { <-meet }} {
		fx.handle(name, func(w http.ResponseWriter, r *http.Request, body []byte) {
			wait()
			respond(admissionv1.AdmissionResponse{Allowed: true})(w, r, body)
		})
	}
	fx.must("POST", widgets, widget("a", `{}`))
}

// TestIgnoredFailureIsAudited checks that the audit event of a write names the webhook whose failure was ignored, as in
// kube-apiserver.
func TestIgnoredFailureIsAudited(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	fx := newFixture(t, testserver.Audit(log, `{"apiVersion":"audit.k8s.io/v1","kind":"Policy",`+
		`"rules":[{"level":"Metadata"}]}`))
	fx.handle("guard", func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		http.Error(w, "unavailable", http.StatusInternalServerError)
	})
	for kind, annotation := range map[string]string{
		mutatings:   "failed-open.mutation.webhook.admission.k8s.io/round_0_index_0",
		validatings: "failed-open.validating.webhook.admission.k8s.io/round_0_index_0",
	} {
		fx.configure(t, kind, "guard", fx.hook("guard", tree{"failurePolicy": "Ignore"}))
		fx.must("POST", widgets, widget("a", `{}`))
		fx.must("DELETE", widgets+"/a", "")
		events, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if want := strconv.Quote(annotation) + `:"guard.example.com"`; !strings.Contains(string(events), want) {
			t.Errorf("no event has the annotation %s:\n%s", want, events)
		}
	}
}
