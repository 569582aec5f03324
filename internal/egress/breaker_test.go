package egress

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBreakerStates checks that the circuit breaker opens after consecutive failures. An open breaker sends no
// requests and returns the last error at once. A half-open breaker sends one request at a time. The metrics show
// each state.
func TestBreakerStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, writesAndCloses(""))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		defer client.Close()
		respond := func(f func(net.Conn, *http.Request)) { d.answer.Store(&f) }
		states := func(want string) {
			t.Helper()
			if got := client.state(); got != want {
				t.Errorf("circuit breaker is %s, want %s", got, want)
			}
		}
		for range 4 {
			_, _, _ = client.call(t.Context())
		}
		respond(writes(ok))
		_, _, _ = client.call(t.Context()) // interrupts the series of failures
		respond(writesAndCloses(""))
		for range 4 {
			_, _, _ = client.call(t.Context())
			states("closed")
		}
		_, _, last := client.call(t.Context())
		states("open")
		before := d.requests.Load()
		for range 100 {
			if _, _, err := client.call(t.Context()); err == nil || err.Error() != last.Error() {
				t.Fatalf("got error %v, want %v", err, last)
			}
		}
		if n := d.requests.Load() - before; n != 0 {
			t.Errorf("%d requests were sent while the circuit breaker was open", n)
		}
		<-time.After(openFor + time.Millisecond)
		states("half-open")
		_, _, _ = client.call(t.Context())
		states("open")

		<-time.After(openFor + time.Millisecond)
		release := make(chan struct{})
		respond(func(c net.Conn, r *http.Request) { <-release; writes(ok)(c, r) })
		var trial sync.WaitGroup
		trial.Go(func() {
			if _, _, err := client.call(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		before = d.requests.Load()
		if _, _, err := client.call(t.Context()); err == nil || err.Error() != last.Error() ||
			d.requests.Load() != before {
			t.Errorf("second request while the breaker is half-open: %v", err)
		}
		states("half-open")
		close(release)
		trial.Wait()
		states("closed")
	})
}

// TestAbandonedRequests checks that the circuit breaker ignores requests that the client abandons: they neither
// open it nor keep it half-open.
func TestAbandonedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, silent)
		client := newCaller(t, d, Options{MaxBytes: 1000, Timeout: time.Minute})
		defer client.Close()
		abandon := func(after time.Duration, cancel bool) {
			t.Helper()
			ctx, end := context.WithTimeout(t.Context(), after)
			defer end()
			if cancel {
				ctx, end = context.WithCancel(t.Context())
				time.AfterFunc(after, end)
			}
			if _, _, err := client.call(ctx); err == nil {
				t.Error("the request succeeded")
			}
		}
		for range 2 * tripAfter {
			abandon(30*time.Second, true)
			abandon(minTimeout-time.Millisecond, false)
		}
		for range tripAfter {
			if client.Err() != nil {
				t.Error("abandoned requests opened the circuit breaker")
			}
			abandon(minTimeout, false)
		}
		if client.Err() == nil {
			t.Error("the circuit breaker is closed although the destination does not respond")
		}
		<-time.After(2 * openFor)
		abandon(time.Millisecond, false)
		answers := writes(ok)
		d.answer.Store(&answers)
		if _, _, err := client.call(t.Context()); err != nil {
			t.Errorf("request after an abandoned one while half-open: %v", err)
		}
	})
}

// TestHalfOpen checks that the first failure after HalfOpen opens the circuit breaker, unless the destination has
// responded before.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answered := range []bool{false, true} {
			d := newDestination(t, host, writesAndCloses(ok))
			client := newCaller(t, d, Options{MaxBytes: 1000})
			client.HalfOpen()
			if answered {
				if _, _, err := client.call(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			d.refuses.Store(true)
			client.currentPool().retire()
			if _, _, err := client.call(t.Context()); err == nil {
				t.Fatal("the request succeeded")
			}
			if open := client.Err() != nil; open == answered {
				t.Errorf("destination responded before: %t, circuit breaker open: %t", answered, open)
			}
			client.Close()
		}
	})
}

// TestProbe checks that a successful probe closes the circuit breaker only if the destination was unreachable before.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, writesAndCloses(""))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		defer client.Close()
		if client.Probe(t.Context()) {
			t.Error("Probe reports recovery of a destination that was always reachable")
		}
		client.HalfOpen()
		if !client.Probe(t.Context()) || client.Probe(t.Context()) {
			t.Error("Probe does not report recovery exactly once")
		}
		client.openBreaker()
		if client.Probe(t.Context()) || client.Err() == nil {
			t.Error("Probe reports recovery of a destination that only accepts connections")
		}
		d.refuses.Store(true)
		if client.Probe(t.Context()) {
			t.Error("Probe succeeds although connections are refused")
		}
		d.refuses.Store(false)
		requests := d.requests.Load()
		if !client.Probe(t.Context()) || client.state() != "closed" || d.requests.Load() != requests {
			t.Errorf("the circuit breaker is %s after %d requests", client.state(), d.requests.Load()-requests)
		}
		client.Transport.breaker.reset()
		d.refuses.Store(true)
		client.openBreaker()
		other := d.certificate
		d.certificate, _ = certificateFor(t, host)
		d.refuses.Store(false)
		if client.Probe(t.Context()) {
			t.Error("Probe succeeds with an untrusted certificate")
		}
		d.certificate = other
		if !client.Probe(t.Context()) {
			t.Error("Probe does not report recovery")
		}
	})
}
