package webhook_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

// badResponses are handlers with invalid responses, and the expected error messages.
var badResponses = map[string]struct {
	handler handler
	message string
}{
	"another uid": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		fmt.Fprint(w,
			`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"x","allowed":true}}`)
	}, `received invalid webhook response: expected response.uid="`},
	"no response": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		fmt.Fprint(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`)
	}, "received invalid webhook response: webhook response was absent"},
	"another version": {func(w http.ResponseWriter, r *http.Request, body []byte) {
		respond(admissionv1.AdmissionResponse{Allowed: true})(w, r,
			[]byte(strings.Replace(string(body), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1)))
	}, "failed to call webhook: "},
	"no JSON": {func(w http.ResponseWriter, _ *http.Request, _ []byte) { fmt.Fprint(w, `{"allowed`) },
		"failed to call webhook: "},
	"empty body": {func(http.ResponseWriter, *http.Request, []byte) {}, "failed to call webhook: "},
	"another status": {func(w http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(w, "no", 404) },
		"failed to call webhook: "},
	"an invalid patch": {patch("please"), "received undecodable patch in webhook response"},
	"a patch and no type": {respond(admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[]`)}),
		"received invalid webhook response: webhook returned response.patch but not response.patchType"},
	"another type of patch": {respond(admissionv1.AdmissionResponse{
		Allowed: true, Patch: []byte(`[{"op":"remove","path":"/spec"}]`),
		PatchType: new(admissionv1.PatchType("Other")),
	}),
		`unsupported patch type "Other"`},
	"ten megabytes": {func(w http.ResponseWriter, r *http.Request, body []byte) {
		respond(admissionv1.AdmissionResponse{Allowed: true,
			AuditAnnotations: map[string]string{"a": strings.Repeat("x", 10<<20)}})(w, r, body)
	}, "the response body is larger than 8388608 bytes"},
	"a truncated body": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"apiVersion":`)
	}, "unexpected EOF"},
	"another protocol": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "x")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn) // wait until the client closes the connection
	}, "unexpected response 101 Switching Protocols"},
	"a closed connection": {func(w http.ResponseWriter, _ *http.Request, _ []byte) { panic(http.ErrAbortHandler) },
		"EOF"},
	"a half-closed connection": {func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			_ = bufio.NewWriter(conn).Flush()
			if c, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
		}
	}, "EOF"},
}

// TestBadResponses checks that failurePolicy applies to invalid responses, and that they do not change the object.
func TestBadResponses(t *testing.T) {
	fx := newFixture(t)
	for name, bad := range badResponses {
		t.Run(name, func(t *testing.T) {
			path := strings.ReplaceAll(name, " ", "-") // webhooks with the same URL would share a circuit breaker
			fx.handle(path, bad.handler)
			for policy, code := range map[string]int{"Fail": 500, "Ignore": 201} {
				hook := fx.hook("guard", tree{
					"failurePolicy": policy,
					"clientConfig":  tree{"url": fx.hooks.URL + "/" + path, "caBundle": fx.ca()},
				})
				fx.must("POST", mutatings, text(tree{"metadata": tree{"name": "guard"}, "webhooks": []tree{hook}}))
				out := fx.do("POST", widgets+"?dryRun=All", widget("a", `{"color":"red"}`))
				if out.code != code {
					t.Errorf("%s: got %d %s, want %d", policy, out.code, out, code)
				}
				const prefix = `Internal error occurred: failed calling webhook "guard.example.com": `
				message, _ := out.at("message").(string)
				if code == 500 && (!strings.HasPrefix(message, prefix) || !strings.Contains(message, bad.message)) {
					t.Errorf("got %s\nwant %s", message, bad.message)
				}
				if code == 201 && out.at("spec.color") != "red" {
					t.Errorf("%s", out)
				}
				fx.must("DELETE", mutatings+"/guard", "")
			}
		})
	}
}

// TestPatchThatDoesNotApply checks that a write is rejected in spite of failurePolicy Ignore if the patch of a webhook
// cannot be applied, or if there is no object to patch.
func TestPatchThatDoesNotApply(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "guard", fx.hook("guard", tree{"failurePolicy": "Ignore"}))
	fx.must("POST", widgets, widget("a", `{}`))
	fx.handle("guard", patch(`[{"op":"remove","path":"/spec/nosuch"}]`))
	fx.mustFail(t, "PATCH", widgets+"/a", `{"spec":{"color":"red"}}`, 500, "Internal error occurred: ")
	fx.mustFail(t, "DELETE", widgets+"/a", "", 500,
		`admission webhook "guard.example.com" attempted to modify the object,`+
			` which is not supported for this operation`)
	fx.handle("guard", nil)
	if out := fx.must("GET", widgets+"/a", ""); out.at("spec.color") != nil {
		t.Errorf("%s", out)
	}
}

// TestValidatingMayNotPatch checks that a patch from a validating webhook is an error.
func TestValidatingMayNotPatch(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", nil))
	fx.handle("guard", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500,
		"received invalid webhook response: validating webhook may not return response.patch")
}

// TestUnreachableWebhook checks webhooks whose server refuses connections or never responds. Other webhooks still work.
func TestUnreachableWebhook(t *testing.T) {
	fx := newFixture(t)
	url := fx.silent(t)
	for name, c := range map[string]struct{ url, message string }{
		"connection refused": {"https://127.0.0.1:1/", "connect: connection refused"},
		"no response":        {url, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			unreachable := fx.hook("unreachable", tree{
				"clientConfig":   tree{"url": c.url, "caBundle": fx.ca()},
				"timeoutSeconds": 1, "rules": []any{rule("*", "", "v1", "configmaps")},
			})
			fx.configure(t, validatings, "guard", unreachable, fx.hook("guard", nil))
			fx.mustFail(t, "POST", namespaces+"/default/configmaps", `{"metadata":{"name":"a"}}`, 500, c.message)
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
		})
	}
}

// silent returns the URL of a webhook that never responds.
func (fx *fixture) silent(t *testing.T) string {
	fx.handle("silent", func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // a response could still arrive before the client has closed its connection
	})
	return fx.hooks.URL + "/silent"
}

// TestUntrusted checks that a webhook with an untrusted certificate is not called.
func TestUntrusted(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"clientConfig": tree{"url": fx.hooks.URL + "/guard"}}))
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, "failed to verify certificate: x509: ")
	if paths := fx.calledPaths(); paths != "" {
		t.Error(paths)
	}
}

// TestService checks that a webhook behind a Service is called at the Service's endpoints, with a certificate for the
// Service's name.
func TestService(t *testing.T) {
	fx := newFixture(t)
	certificate, ca := certificateOf(t, "hook.default.svc")
	port := fx.serve(certificate)
	fx.must("POST", namespaces+"/default/services",
		`{"metadata":{"name":"hook"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	service := tree{"namespace": "default", "name": "hook", "path": "/path", "port": port}
	hook := fx.hook("guard", tree{"clientConfig": tree{"caBundle": ca, "service": service}})
	fx.configure(t, validatings, "guard", hook)
	fx.must("POST", widgets, widget("a", `{}`))
	if paths := fx.calledPaths(); paths != "path" {
		t.Error(paths)
	}
	fx.must("DELETE", namespaces+"/default/services/hook", "")
	fx.mustFail(t, "PATCH", widgets+"/a", `{"spec":{"color":"red"}}`, 500,
		`failed calling webhook "guard.example.com": failed to call webhook: Post "https://hook.default.svc:`)
}
