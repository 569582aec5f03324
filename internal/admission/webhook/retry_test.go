package webhook_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

var allow = respond(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"heard"}})

// VAL-023: where the Namespace changes while a create is under way, the create starts over, but webhooks are told of it once, as by
// kube-apiserver: what they have said of an object holds of the very same one.
func TestCreateIsToldOnce(t *testing.T) {
	fx := newFixture(t)
	var changes atomic.Int32
	meanwhile := func(does func(http.ResponseWriter, *http.Request, []byte)) func(http.ResponseWriter, *http.Request, []byte) {
		return func(to http.ResponseWriter, r *http.Request, body []byte) {
			if n := changes.Add(1); n < 10 {
				fx.must("PATCH", "/api/v1/namespaces/default", fmt.Sprintf(`{"metadata":{"annotations":{"change":"%d"}}}`, n))
			}
			does(to, r, body)
		}
	}
	fx.handle("paint", meanwhile(patch(`[{"op":"add","path":"/spec/color","value":"red"}]`)))
	fx.handle("judge", meanwhile(allow))
	fx.configure(t, mutatings, "paint", fx.hook("paint", tree{"reinvocationPolicy": "IfNeeded"}), fx.hook("look", nil))
	fx.configure(t, validatings, "judge", fx.hook("judge", nil))
	made := fx.must("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generateName":"w-"},"spec":{}}`)
	seen := fx.take()
	if len(seen) != 3 || made.at("spec.color") != "red" || len(made.warnings) != 1 {
		t.Fatalf("%d questions, %v %q", len(seen), made, made.warnings)
	}
	for _, path := range []string{"uid", "name"} {
		if judged := at(seen[2], "object.metadata."+path); judged != made.at("metadata."+path) {
			t.Errorf("%s: %v has been judged, %v made", path, judged, made.at("metadata."+path))
		}
	}
}

// Of a change that another one has come before they are told again: it is not the same.
func TestOvertakenChangeIsToldAgain(t *testing.T) {
	fx := newFixture(t)
	fx.must("POST", widgets, widget("a", `{}`))
	var calls atomic.Int32
	fx.handle("judge", func(to http.ResponseWriter, r *http.Request, body []byte) {
		if calls.Add(1) == 1 {
			fx.must("PATCH", widgets+"/a/status", `{"status":{"phase":"new"}}`)
		}
		allow(to, r, body)
	})
	fx.configure(t, validatings, "judge", fx.hook("judge", nil))
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	seen := fx.take()
	if len(seen) != 2 || at(seen[0], "oldObject.status") != nil || at(seen[1], "oldObject.status.phase") != "new" || at(seen[1], "object.status.phase") != "new" {
		t.Errorf("they were told %s", text(seen))
	}
}

// A write that has lost a race, and now waits for a webhook, holds up no other one that has.
func TestSlowWebhookHoldsUpNobody(t *testing.T) {
	for name, collection := range map[string]string{"mutating": mutatings, "validating": validatings} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			fx.must("POST", widgets, widget("a", `{}`))
			var calls atomic.Int32
			fx.handle("slow", func(to http.ResponseWriter, r *http.Request, body []byte) {
				switch n := calls.Add(1); n {
				case 1, 3: // the first attempt of each is overtaken
					fx.must("PATCH", widgets+"/a/status", fmt.Sprintf(`{"status":{"phase":"%d"}}`, n))
				case 2: // the first writer, which is tried again, waits here for the other
					fx.must("PATCH", widgets+"/a", `{"spec":{"replicas":2}}`)
				}
				allow(to, r, body)
			})
			fx.configure(t, collection, "slow", fx.hook("slow", tree{"timeoutSeconds": 2}))
			fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
			if got := fx.must("GET", widgets+"/a", ""); got.at("spec.color") != "red" || got.at("spec.replicas") != 2.0 || calls.Load() != 5 {
				t.Errorf("%d calls, %v", calls.Load(), got)
			}
		})
	}
}

// When the server ends, so do its connections to webhooks.
func TestConnectionsEndWithTheServer(t *testing.T) {
	var fx *fixture
	var opened atomic.Int32
	closed := make(chan struct{}, 100)
	hooks := httptest.NewUnstartedServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) { fx.ServeHTTP(to, r) }))
	hooks.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	hooks.StartTLS()
	defer hooks.Close()
	t.Run("server", func(t *testing.T) {
		fx = newFixture(t)
		fx.hooks = hooks
		fx.must("POST", mutatings, text(tree{"metadata": tree{"name": "see"}, "webhooks": []tree{fx.hook("see", nil)}}))
		fx.must("POST", validatings, text(tree{"metadata": tree{"name": "look"}, "webhooks": []tree{fx.hook("look", nil)}}))
		fx.must("POST", widgets, widget("a", `{}`))
	})
	for range max(2, opened.Load()) { // one for each webhook
		select {
		case <-closed:
		case <-time.After(20 * time.Second): // an idle one is kept for longer
			t.Fatalf("one of %d connections is still open", opened.Load())
		}
	}
}
