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

var allow = respond(admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"allowed"}})

// TestCreateCallsWebhooksOnce checks that webhooks are called once for a create that starts over because its Namespace
// has changed. As in kube-apiserver, the object they reviewed is the object that is stored. VAL-023
func TestCreateCallsWebhooksOnce(t *testing.T) {
	fx := newFixture(t)
	var changes atomic.Int32
	changeNamespace := func(h handler) handler {
		return func(w http.ResponseWriter, r *http.Request, body []byte) {
			if n := changes.Add(1); n < 10 {
				fx.must("PATCH", "/api/v1/namespaces/default",
					fmt.Sprintf(`{"metadata":{"annotations":{"change":"%d"}}}`, n))
			}
			h(w, r, body)
		}
	}
	fx.handle("paint", changeNamespace(patch(`[{"op":"add","path":"/spec/color","value":"red"}]`)))
	fx.handle("check", changeNamespace(allow))
	fx.configure(t, mutatings, "paint", fx.hook("paint", tree{"reinvocationPolicy": "IfNeeded"}), fx.hook("other", nil))
	fx.configure(t, validatings, "check", fx.hook("check", nil))
	created := fx.must("POST", widgets,
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generateName":"w-"},"spec":{}}`)
	seen := fx.take()
	if len(seen) != 3 || created.at("spec.color") != "red" || len(created.warnings) != 1 {
		t.Fatalf("got %d reviews, want 3; object %v, warnings %q", len(seen), created, created.warnings)
	}
	for _, path := range []string{"uid", "name"} {
		if reviewed := at(seen[2], "object.metadata."+path); reviewed != created.at("metadata."+path) {
			t.Errorf("%s: reviewed %v, stored %v", path, reviewed, created.at("metadata."+path))
		}
	}
}

// TestConflictCallsWebhooksAgain checks that webhooks are called again for an update that starts over because of a
// conflict. The objects are then different.
func TestConflictCallsWebhooksAgain(t *testing.T) {
	fx := newFixture(t)
	fx.must("POST", widgets, widget("a", `{}`))
	var calls atomic.Int32
	fx.handle("check", func(w http.ResponseWriter, r *http.Request, body []byte) {
		if calls.Add(1) == 1 {
			fx.must("PATCH", widgets+"/a/status", `{"status":{"phase":"new"}}`)
		}
		allow(w, r, body)
	})
	fx.configure(t, validatings, "check", fx.hook("check", nil))
	fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
	seen := fx.take()
	if len(seen) != 2 || at(seen[0], "oldObject.status") != nil || at(seen[1], "oldObject.status.phase") != "new" ||
		at(seen[1], "object.status.phase") != "new" {
		t.Errorf("got reviews %s", text(seen))
	}
}

// TestSlowWebhookDoesNotBlockOthers checks two writes of the same object that both start over after a conflict. While
// the first one waits for a webhook, it does not block the second one.
func TestSlowWebhookDoesNotBlockOthers(t *testing.T) {
	for name, collection := range map[string]string{"mutating": mutatings, "validating": validatings} {
		t.Run(name, func(t *testing.T) {
			fx := newFixture(t)
			fx.must("POST", widgets, widget("a", `{}`))
			var calls atomic.Int32
			fx.handle("slow", func(w http.ResponseWriter, r *http.Request, body []byte) {
				switch n := calls.Add(1); n {
				case 1, 3: // let the first attempt of each writer conflict
					fx.must("PATCH", widgets+"/a/status", fmt.Sprintf(`{"status":{"phase":"%d"}}`, n))
				case 2: // let the second attempt of the first writer wait for the second writer
					fx.must("PATCH", widgets+"/a", `{"spec":{"replicas":2}}`)
				}
				allow(w, r, body)
			})
			fx.configure(t, collection, "slow", fx.hook("slow", nil))
			fx.must("PATCH", widgets+"/a", `{"spec":{"color":"red"}}`)
			got := fx.must("GET", widgets+"/a", "")
			if got.at("spec.color") != "red" || got.at("spec.replicas") != 2.0 || calls.Load() != 5 {
				t.Errorf("got %d calls, want 5; object %v", calls.Load(), got)
			}
		})
	}
}

// TestConnectionsCloseWithTheServer checks that the server closes its connections to webhooks when it stops.
func TestConnectionsCloseWithTheServer(t *testing.T) {
	var fx *fixture
	var opened atomic.Int32
	closed := make(chan struct{}, 100)
	hooks := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fx.ServeHTTP(w,
			r)
	}))
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
		fx.must("POST", validatings, text(tree{
			"metadata": tree{"name": "other"}, "webhooks": []tree{fx.hook("other", nil)},
		}))
		fx.must("POST", widgets, widget("a", `{}`))
	})
	for range max(2, opened.Load()) { // one for each webhook
		select {
		case <-closed:
		case <-time.After(20 * time.Second): // less than the idle timeout
			t.Fatalf("one of %d connections is still open", opened.Load())
		}
	}
}
