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

// After failures in a row nobody is called, and who asks is told at once what was wrong. Then one request at a time finds out
// whether the destination answers again. Metrics show each state.
func TestBreakerStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, ends(""))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		defer client.Close()
		answers := func(f func(net.Conn, *http.Request)) { d.answer.Store(&f) }
		states := func(want string) {
			t.Helper()
			if got := client.state(); got != want {
				t.Errorf("it is %s, want %s", got, want)
			}
		}
		for range 4 {
			_, _, _ = client.call(t.Context())
		}
		answers(says(ok))
		_, _, _ = client.call(t.Context()) // not in a row
		answers(ends(""))
		for range 4 {
			_, _, _ = client.call(t.Context())
			states("closed")
		}
		_, _, last := client.call(t.Context())
		states("open")
		before := d.requests.Load()
		for range 100 {
			if _, _, err := client.call(t.Context()); err == nil || err.Error() != last.Error() {
				t.Fatalf("%v, want %v", err, last)
			}
		}
		if n := d.requests.Load() - before; n != 0 {
			t.Errorf("%d requests while it is open", n)
		}
		<-time.After(openFor + time.Millisecond)
		states("half-open")
		_, _, _ = client.call(t.Context())
		states("open")

		<-time.After(openFor + time.Millisecond)
		leave := make(chan struct{})
		answers(func(c net.Conn, r *http.Request) { <-leave; says(ok)(c, r) })
		var trial sync.WaitGroup
		trial.Go(func() {
			if _, _, err := client.call(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		before = d.requests.Load()
		if _, _, err := client.call(t.Context()); err == nil || err.Error() != last.Error() || d.requests.Load() != before {
			t.Errorf("beside the trial: %v", err)
		}
		states("half-open")
		close(leave)
		trial.Wait()
		states("closed")
	})
}

// Who gives up says nothing of the destination: neither does that open the circuit breaker, nor keep it half-open.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, silent)
		client := newCaller(t, d, Options{MaxBytes: 1000, Timeout: time.Minute})
		defer client.Close()
		giveUp := func(after time.Duration, cancel bool) {
			t.Helper()
			ctx, end := context.WithTimeout(t.Context(), after)
			defer end()
			if cancel {
				ctx, end = context.WithCancel(t.Context())
				time.AfterFunc(after, end)
			}
			if _, _, err := client.call(ctx); err == nil {
				t.Error("it answers")
			}
		}
		for range 2 * tripAfter {
			giveUp(30*time.Second, true)
			giveUp(minWait-time.Millisecond, false)
		}
		for range tripAfter {
			if client.Err() != nil {
				t.Error("it has opened for one that nobody has waited for")
			}
			giveUp(minWait, false)
		}
		if client.Err() == nil {
			t.Error("it has not opened for one that does not answer")
		}
		<-time.After(2 * openFor)
		giveUp(time.Millisecond, false)
		answers := says(ok)
		d.answer.Store(&answers)
		if _, _, err := client.call(t.Context()); err != nil {
			t.Errorf("after a trial that was given up: %v", err)
		}
	})
}

// Of a destination that was not there before, one failure is enough until it has answered.
func TestSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answered := range []bool{false, true} {
			d := newDestination(t, host, ends(ok))
			client := newCaller(t, d, Options{MaxBytes: 1000})
			client.HalfOpen()
			if answered {
				if _, _, err := client.call(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			d.refuses.Store(true)
			client.connections().retire()
			if _, _, err := client.call(t.Context()); err == nil {
				t.Fatal("it answers")
			}
			if open := client.Err() != nil; open == answered {
				t.Errorf("answered before: %t, open: %t", answered, open)
			}
			client.Close()
		}
	})
}

// A connection closes the circuit breaker of a destination that has refused them, and of no other.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDestination(t, host, ends(""))
		client := newCaller(t, d, Options{MaxBytes: 1000})
		defer client.Close()
		if client.Probe(t.Context()) {
			t.Error("it was always there")
		}
		client.HalfOpen()
		if !client.Probe(t.Context()) || client.Probe(t.Context()) {
			t.Error("it is back, once")
		}
		client.fails()
		if client.Probe(t.Context()) || client.Err() == nil {
			t.Error("one that takes connections and does not answer is back")
		}
		d.refuses.Store(true)
		if client.Probe(t.Context()) {
			t.Error("nobody is there")
		}
		d.refuses.Store(false)
		requests := d.requests.Load()
		if !client.Probe(t.Context()) || client.state() != "closed" || d.requests.Load() != requests {
			t.Errorf("the circuit breaker is %s after %d requests", client.state(), d.requests.Load()-requests)
		}
		client.Transport.breaker.reset()
		d.refuses.Store(true)
		client.fails()
		other := d.certificate
		d.certificate, _ = certificateFor(t, host)
		d.refuses.Store(false)
		if client.Probe(t.Context()) {
			t.Error("one with another certificate is back")
		}
		d.certificate = other
		if !client.Probe(t.Context()) {
			t.Error("it is not back")
		}
	})
}
