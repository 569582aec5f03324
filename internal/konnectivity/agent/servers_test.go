package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// growing fails the test unless pauses begin at the sync interval, grow, and stay at its cap: 1 s and 10 s, and some jitter.
func growing(t *testing.T, all []time.Duration) {
	t.Helper()
	if len(all) < 8 || all[0] < time.Second || all[0] > 1200*time.Millisecond {
		t.Errorf("pauses %v… do not begin at a second", all[:min(len(all), 8)])
	}
	for i, p := range all {
		if p > 12*time.Second || i > 0 && all[i-1] < 8*time.Second && float64(p) < 1.2*float64(all[i-1]) || i > 6 && p < 10*time.Second {
			t.Errorf("pause %d of %v… does not grow from 1 s to 10 s", i, all[:i+1])
			return
		}
	}
}

// KON-055: all servers behind a load balancer are found by their answers, one session each. Then it is left alone (reference: #394).
func TestLoadBalancer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 3
		w.behind["a:1"] = []string{"A", "A", "A", "B", "B", "C"}
	}, func(w *world) {
		w.after(time.Minute)
		w.connected("A", "B", "C")
		if len(w.dials) != 6 {
			t.Errorf("%d dials, want 6", len(w.dials))
		}
		if again := w.after(24 * time.Hour); len(again) > 0 {
			t.Errorf("%d dials when all servers are connected to", len(again))
		}
		w.fail("B")
		if w.after(time.Minute); len(w.dials) < 7 || len(w.dials) > 12 {
			t.Errorf("%d dials for the one that was lost", len(w.dials)-6)
		}
		w.connected("A", "B", "C")
	})
}

// KON-055: where a load balancer takes turns, and another agent dials whenever this one does, all servers are found nevertheless.
func TestAgentsInStep(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.s.connect = func(ctx context.Context, address string) (session, error) {
			if n := len(w.dials); n == 0 || time.Since(w.dials[n-1].at) > 0 { // the other one has had its turns
				w.behind["a:1"] = []string{"A", "B"}
			}
			return w.connect(ctx, address)
		}
	}, func(w *world) {
		w.after(10 * time.Second)
		w.connected("A", "B")
	})
}

// KON-055: where servers are missing, they are looked for at a bounded rate, and connected to when they are there.
func TestMissingServers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.behind["a:1"] = []string{"A"}
	}, func(w *world) {
		w.after(time.Hour)
		growing(t, slices.DeleteFunc(pauses(w.dials), func(p time.Duration) bool { return p == 0 })) // they come in twos
		if at := w.dials; len(at) < 4 || at[len(at)-1].at.Equal(at[len(at)-3].at) {
			t.Errorf("dials at once are more than two: %v", pauses(at))
		}
		w.connected("A")
		w.behind["a:1"] = []string{"B", "A"}
		w.after(12 * time.Second)
		w.connected("A", "B")
	})
}

// KON-055: fewer servers than there were: the next answer says so, and the search ends.
func TestCountGoesDown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.behind["a:1"] = []string{"A"}
	}, func(w *world) {
		w.after(time.Minute)
		w.count = 1
		w.after(time.Minute)
		if again := w.after(time.Hour); len(again) > 0 {
			t.Errorf("%d dials", len(again))
		}
	})
}

// KON-055, KON-039: each address of the servers' name is dialled by itself, whatever the count, and once. The name is resolved anew.
func TestAddressesOfTheName(t *testing.T) {
	inWorld(t, func(w *world) {
		w.hosts("a", "b", "::1")
		w.behind = map[string][]string{"a:1": {"A"}, "b:1": {"B"}, "[::1]:1": {"A"}, "c:1": {"C"}} // A has two addresses
	}, func(w *world) {
		w.after(time.Hour)
		w.connected("A", "B")
		w.hosts("a", "b", "c")
		if all := addresses(w.after(time.Hour)); !slices.Equal(all, []string{"c:1"}) {
			t.Errorf("dialled %v, want c:1 alone, which the name has got", all)
		}
		w.connected("A", "B", "C")
		w.hosts("a", "c")
		w.after(time.Minute)
		w.connected("A", "B", "C") // as long as it lasts
		w.fail("B")
		if all := w.after(time.Hour); len(all) > 0 {
			t.Errorf("dialled %v, which the name has no more", all)
		}
		w.connected("A", "C")
		w.s.mu.Lock()
		w.s.resolve = func(context.Context, string) ([]string, error) { return nil, errors.New("no such host") }
		w.s.mu.Unlock()
		w.after(time.Minute)
		w.fail("A")
		w.after(time.Second)
		w.connected("A", "C")
	})
}

// KON-055: with a server gone that has an address of its own, the others are not dialled again in search of it.
func TestOneOfSeveralAddressesFails(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.hosts("a", "b")
		w.behind = map[string][]string{"a:1": {"A"}, "b:1": {"B"}}
	}, func(w *world) {
		w.after(time.Minute)
		w.behind["b:1"] = nil
		w.fail("B")
		w.after(time.Hour)
		if a := addresses(w.dials[2:]); a[0] != "b:1" {
			t.Errorf("dialled %v, want b:1 alone", a)
		}
		growing(t, pauses(w.dials[2:]))
	})
}

// KON-055: an address that leads nowhere, as one of IPv6 where there is none, does not end the search behind another.
func TestLoadBalancerWithADeadAddress(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.hosts("a", "::1")
		w.behind["a:1"] = []string{"A", "B"}
	}, func(w *world) {
		w.after(time.Minute)
		w.connected("A", "B")
	})
}

// KON-055: where Leases have addresses, these are dialled straight, and no search behind the name is needed.
func TestAddressesOfLeases(t *testing.T) {
	leased := []string{"x:8132", "y:8132"}
	inWorld(t, func(w *world) {
		w.behind = map[string][]string{"a:1": {"X"}, "x:8132": {"X"}, "y:8132": {"Y"}, "z:8132": {"Z"}}
		w.s.leases = func() (int, []string) { return len(leased), leased }
	}, func(w *world) {
		w.after(time.Hour)
		w.connected("X", "Y")
		if all := addresses(w.dials); !slices.Equal(all, []string{"a:1", "x:8132", "y:8132"}) {
			t.Errorf("dialled %v", all)
		}
		w.s.mu.Lock()
		leased = append(leased, "z:8132")
		w.s.mu.Unlock()
		w.s.wake()
		w.connected("X", "Y", "Z")
	})
}

// KON-055: how many servers there are, by Leases and by what servers answer, as --server-count-source says.
func TestCountSource(t *testing.T) {
	for _, c := range []struct {
		larger               bool
		answer, leases, want int
	}{{false, 5, 2, 2}, {true, 5, 2, 5}, {true, 2, 5, 5}, {false, 0, 1, 1}, {true, 0, 1, 1}} {
		s := newServers(&Config{LargerCount: c.larger}, NewMetrics())
		s.answer, s.leases = c.answer, func() (int, []string) { return c.leases, nil }
		if got := s.locate(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// KON-055: --sync-forever finds servers that nobody has said to be there, at the cap.
func TestSyncForever(t *testing.T) {
	inWorld(t, func(w *world) {
		w.s.SyncForever = true
		w.behind["a:1"] = []string{"A"}
	}, func(w *world) {
		w.after(time.Minute)
		all := w.after(time.Hour)
		if len(all) < 200 {
			t.Errorf("%d dials in an hour, want one each 10 s", len(all))
		}
		for _, p := range pauses(all) {
			if p < 10*time.Second {
				t.Fatalf("a pause of %v", p)
			}
		}
		w.behind["a:1"] = []string{"B"}
		w.after(12 * time.Second)
		w.connected("A", "B")
	})
}

// KON-053: a session that is lost is replaced at once, or with back-off until the server is there again.
func TestServerRestarts(t *testing.T) {
	inWorld(t, func(w *world) { w.behind["a:1"] = []string{"A"} }, func(w *world) {
		w.after(time.Minute)
		w.connected("A")
		w.fail("A")
		w.connected("A") // in no time
		w.after(time.Minute)
		w.behind["a:1"] = nil
		w.fail("A")
		w.connected()
		if w.s.ready() {
			t.Error("ready without a server")
		}
		if n := testutil.ToFloat64(w.s.metrics.serverFailures); n != 2 { // KON-052
			t.Errorf("%v lost connections were counted, want 2", n)
		}
		w.after(time.Hour)
		growing(t, pauses(w.dials[2:]))
		w.behind["a:1"] = []string{"B"} // its ID is a new one
		w.after(12 * time.Second)
		w.connected("B")
	})
}

// KON-053: a server that breaks off each session at once is not dialled again and again.
func TestServerFlaps(t *testing.T) {
	inWorld(t, func(w *world) {
		w.behind["a:1"] = []string{"A"}
		w.lasts = time.Millisecond
	}, func(w *world) {
		w.after(time.Hour)
		growing(t, pauses(w.dials))
	})
}

// A server without an ID could not be told from others.
func TestServerWithoutID(t *testing.T) {
	inWorld(t, func(w *world) { w.behind["a:1"] = []string{""} }, func(w *world) {
		w.after(time.Hour)
		w.connected()
		growing(t, pauses(w.dials))
	})
}

// KON-053: at the end servers are asked for no new connections, and those that are open may end, for a time.
func TestDrain(t *testing.T) {
	for _, lasts := range []time.Duration{0, 10 * time.Second, time.Hour} {
		inWorld(t, func(w *world) { w.behind["a:1"] = []string{"A"} }, func(w *world) {
			w.after(time.Minute)
			w.s.metrics.open.Add(1)
			time.AfterFunc(lasts, func() { w.s.metrics.open.Add(-1) })
			began := time.Now()
			w.end()
			synctest.Wait()
			if x := w.open[0]; !x.drained || !x.alive() {
				t.Errorf("drained %t, open %t", x.drained, x.alive())
			}
			<-w.ended
			if took := time.Since(began); took < min(lasts, drainLimit) || took > min(lasts, drainLimit)+time.Second {
				t.Errorf("ended after %v, with a connection that lasts %v", took, lasts)
			}
			if n := testutil.ToFloat64(w.s.metrics.serverFailures); len(w.dials) != 1 || n != 0 {
				t.Errorf("%d dials at the end and %v failures, want none", len(w.dials)-1, n)
			}
		})
	}
}
