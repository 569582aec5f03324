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

// badResponses are answers that are none, and what is said of them.
var badResponses = map[string]struct {
	does func(http.ResponseWriter, *http.Request, []byte)
	says string
}{
	"another uid": {func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		fmt.Fprint(to, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"x","allowed":true}}`)
	}, `received invalid webhook response: expected response.uid="`},
	"no response": {func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		fmt.Fprint(to, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`)
	}, "received invalid webhook response: webhook response was absent"},
	"another version": {func(to http.ResponseWriter, r *http.Request, body []byte) {
		respond(admissionv1.AdmissionResponse{Allowed: true})(to, r, []byte(strings.Replace(string(body), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1)))
	}, "failed to call webhook: "},
	"no JSON":          {func(to http.ResponseWriter, _ *http.Request, _ []byte) { fmt.Fprint(to, `{"allowed`) }, "failed to call webhook: "},
	"nothing":          {func(http.ResponseWriter, *http.Request, []byte) {}, "failed to call webhook: "},
	"another status":   {func(to http.ResponseWriter, _ *http.Request, _ []byte) { http.Error(to, "no", 404) }, "failed to call webhook: "},
	"a patch of prose": {patch("please"), "received undecodable patch in webhook response"},
	"a patch and no type": {respond(admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[]`)}),
		"received invalid webhook response: webhook returned response.patch but not response.patchType"},
	"another type of patch": {respond(admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[{"op":"remove","path":"/spec"}]`), PatchType: new(admissionv1.PatchType("Prose"))}),
		`unsupported patch type "Prose"`},
	"ten megabytes": {func(to http.ResponseWriter, r *http.Request, body []byte) {
		respond(admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"a": strings.Repeat("x", 10<<20)}})(to, r, body)
	}, "the response body is larger than 8388608 bytes"},
	"half an answer": {func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		to.Header().Set("Content-Length", "1000")
		fmt.Fprint(to, `{"apiVersion":`)
	}, "unexpected EOF"},
	"another protocol": {func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		to.Header().Set("Connection", "Upgrade")
		to.Header().Set("Upgrade", "x")
		to.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(to).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn) // it says nothing until it is left
	}, "101 Switching Protocols, which was not asked for"},
	"a closed connection": {func(to http.ResponseWriter, _ *http.Request, _ []byte) { panic(http.ErrAbortHandler) }, "EOF"},
	"half a connection": {func(to http.ResponseWriter, _ *http.Request, _ []byte) {
		conn, _, err := http.NewResponseController(to).Hijack()
		if err == nil {
			defer conn.Close()
			_ = bufio.NewWriter(conn).Flush()
			if c, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = c.CloseWrite()
			}
		}
	}, "EOF"},
}

// What does not answer as it should is what failurePolicy is for; nothing of an answer that is none reaches the object.
func TestLies(t *testing.T) {
	fx := newFixture(t)
	for name, lie := range badResponses {
		t.Run(name, func(t *testing.T) {
			path := strings.ReplaceAll(name, " ", "-") // one each, as they share a circuit breaker otherwise
			fx.handle(path, lie.does)
			for policy, code := range map[string]int{"Fail": 500, "Ignore": 201} {
				fx.must("POST", mutatings, text(tree{"metadata": tree{"name": "guard"}, "webhooks": []tree{fx.hook("guard", tree{"failurePolicy": policy, "clientConfig": tree{"url": fx.hooks.URL + "/" + path, "caBundle": fx.ca()}})}}))
				out := fx.do("POST", widgets+"?dryRun=All", widget("a", `{"color":"red"}`))
				if out.code != code {
					t.Errorf("%s: %d %s", policy, out.code, out)
				}
				if message, _ := out.at("message").(string); code == 500 && (!strings.HasPrefix(message, `Internal error occurred: failed calling webhook "guard.example.com": `) || !strings.Contains(message, lie.says)) {
					t.Errorf("%s\nwant %s", message, lie.says)
				}
				if code == 201 && out.at("spec.color") != "red" {
					t.Errorf("%s", out)
				}
				fx.must("DELETE", mutatings+"/guard", "")
			}
		})
	}
}

// A patch that does not apply, or where there is no object, is the webhook's mistake: failurePolicy does not help.
func TestPatchThatDoesNotApply(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, mutatings, "guard", fx.hook("guard", tree{"failurePolicy": "Ignore"}))
	fx.must("POST", widgets, widget("a", `{}`))
	fx.handle("guard", patch(`[{"op":"remove","path":"/spec/nosuch"}]`))
	fx.mustFail(t, "PATCH", widgets+"/a", `{"spec":{"color":"red"}}`, 500, "Internal error occurred: ")
	fx.mustFail(t, "DELETE", widgets+"/a", "", 500, `admission webhook "guard.example.com" attempted to modify the object, which is not supported for this operation`)
	fx.handle("guard", nil)
	if out := fx.must("GET", widgets+"/a", ""); out.at("spec.color") != nil {
		t.Errorf("%s", out)
	}
}

// A validating webhook may not change anything.
func TestValidatingMayNotPatch(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", nil))
	fx.handle("guard", patch(`[{"op":"add","path":"/spec/color","value":"red"}]`))
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, "received invalid webhook response: validating webhook may not return response.patch")
}

// One that is dead: with nothing that listens, and with a listener that takes connections and says nothing. The others go on.
func TestDeadAndMute(t *testing.T) {
	fx := newFixture(t)
	url := fx.silent(t)
	for name, c := range map[string]struct{ url, says string }{
		"dead": {"https://127.0.0.1:1/", "connect: connection refused"},
		"mute": {url, "context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			dead := fx.hook("dead", tree{"clientConfig": tree{"url": c.url, "caBundle": fx.ca()}, "timeoutSeconds": 1, "rules": []any{rule("*", "", "v1", "configmaps")}})
			fx.configure(t, validatings, "guard", dead, fx.hook("guard", nil))
			fx.mustFail(t, "POST", namespaces+"/default/configmaps", `{"metadata":{"name":"a"}}`, 500, c.says)
			fx.must("POST", widgets+"?dryRun=All", widget("a", `{}`))
		})
	}
}

// silent is a server of TLS that never answers a request.
func (fx *fixture) silent(t *testing.T) string {
	fx.handle("silent", func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // an answer could still arrive while the client closes its connection
	})
	return fx.hooks.URL + "/silent"
}

// An untrusted certificate is refused.
func TestUntrusted(t *testing.T) {
	fx := newFixture(t)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"clientConfig": tree{"url": fx.hooks.URL + "/guard"}}))
	fx.mustFail(t, "POST", widgets, widget("a", `{}`), 500, "failed to verify certificate: x509: ")
	if paths := fx.calledPaths(); paths != "" {
		t.Error(paths)
	}
}

// A webhook behind a Service is found by its endpoints, and has the Service's name in its certificate.
func TestService(t *testing.T) {
	fx := newFixture(t)
	certificate, ca := certificateOf(t, "hook.default.svc")
	behind := fx.serve(certificate)
	fx.must("POST", namespaces+"/default/services", `{"metadata":{"name":"hook"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	fx.configure(t, validatings, "guard", fx.hook("guard", tree{"clientConfig": tree{"caBundle": ca, "service": tree{"namespace": "default", "name": "hook", "path": "/here", "port": behind}}}))
	fx.must("POST", widgets, widget("a", `{}`))
	if paths := fx.calledPaths(); paths != "here" {
		t.Error(paths)
	}
	fx.must("DELETE", namespaces+"/default/services/hook", "")
	fx.mustFail(t, "PATCH", widgets+"/a", `{"spec":{"color":"red"}}`, 500, `failed calling webhook "guard.example.com": failed to call webhook: Post "https://hook.default.svc:`)
}
