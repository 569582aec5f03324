package agent

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"
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

// KON-055: all servers behind a load balancer are found by their answers, one session each. Then it is left alone (reference: #394). A second one
// takes leave of its server, but not of the reference's: that takes the first that it has for the agent, and this may be it.
func TestLoadBalancer(t *testing.T) {
	t.Run("ours", func(t *testing.T) { balances(t, false) })
	t.Run("the reference's", func(t *testing.T) { balances(t, true) })
}

func balances(t *testing.T, theirs bool) {
	inWorld(t, func(w *world) {
		w.count, w.theirs = 3, theirs
		w.behind["a:1"] = []string{"A", "A", "A", "B", "B", "C"}
	}, func(w *world) {
		w.after(time.Minute)
		w.connected("A", "B", "C")
		if len(w.dials) != 6 {
			t.Errorf("%d dials, want 6", len(w.dials))
		}
		for i, x := range w.open {
			if kept := w.s.sessions[x.id] == session(x); x.drained != (x.ours && !kept) || x.alive() != kept {
				t.Errorf("session %d: kept %t, has taken leave %t, is open %t", i, kept, x.drained, x.alive())
			}
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

// KON-055: of a load balancer with two addresses one dies, and the name still has it: the servers that were met by way of it are met by way of
// the other, which is then left alone.
func TestOneAddressOfALoadBalancerDies(t *testing.T) {
	all := []string{"A", "B", "C"}
	inWorld(t, func(w *world) {
		w.count = len(all)
		w.behind["a:1"] = all
	}, func(w *world) {
		w.after(time.Minute)
		w.connected(all...)
		w.hosts("a", "b")
		w.after(time.Minute)
		w.behind["a:1"] = nil
		w.fail("A")
		w.fail("B")
		w.fail("C")
		w.connected()
		w.behind["b:1"] = all // C, which the other address led to last, is met last
		w.after(time.Minute)
		w.connected(all...)
		if again := w.after(time.Hour); len(again) > 0 {
			t.Errorf("%d dials when all servers are connected to", len(again))
		}
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
		w.s.trigger()
		w.connected("X", "Y", "Z")
	})
}

// KON-053, KON-055: while the control plane is away, Leases expire: the servers that they were of stay known, and as many, until another holds.
func TestLeasesExpire(t *testing.T) {
	leased := []string{"x:8132", "y:8132"}
	inWorld(t, func(w *world) {
		w.hosts()
		w.behind = map[string][]string{"x:8132": {"X"}, "y:8132": {"Y"}, "z:8132": {"Z"}}
		w.s.leases = func() (int, []string) { return len(leased), leased }
	}, func(w *world) {
		hold := func(addresses ...string) {
			w.s.mu.Lock()
			defer w.s.mu.Unlock()
			leased = addresses
		}
		w.after(time.Minute)
		hold()
		w.after(time.Minute)
		w.fail("X")
		w.after(time.Minute)
		w.connected("X", "Y")
		if n := testutil.ToFloat64(w.s.metrics.knownServers); n != 2 {
			t.Errorf("%v servers are counted, want 2", n)
		}
		hold("z:8132")
		w.after(time.Minute)
		w.fail("X")
		w.fail("Y")
		w.after(time.Minute)
		w.connected("Z")
	})
}

// KON-039: a name that cannot be resolved is told by what it means: whether there are addresses of before.
func TestNameIsNotResolved(t *testing.T) {
	for _, before := range []bool{false, true} {
		var log bytes.Buffer
		defer klog.CaptureState().Restore()
		klog.SetLogger(funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{}))
		fail := func(w *world) {
			w.s.mu.Lock()
			defer w.s.mu.Unlock()
			w.s.resolve = func(context.Context, string) ([]string, error) { return nil, errors.New("no such host") }
		}
		inWorld(t, func(w *world) {
			if !before {
				fail(w)
			}
		}, func(w *world) {
			w.after(time.Minute)
			fail(w)
			w.after(time.Minute)
		})
		if kept, none := strings.Contains(log.String(), "stay in use"), strings.Contains(log.String(), "--proxy-server-host"); kept != before || none == before {
			t.Errorf("addresses before: %t; the log is %s", before, &log)
		}
	}
}

// KON-055: how many servers there are, by Leases and by what servers answer, as --server-count-source says.
func TestCountSource(t *testing.T) {
	for _, c := range []struct {
		larger               bool
		answer, leases, want int
	}{{false, 5, 2, 2}, {true, 5, 2, 5}, {true, 2, 5, 5}, {false, 0, 1, 1}, {true, 0, 1, 1}, {false, 5, 0, 1}, {true, 5, 0, 5}} {
		s := newServers(&Config{LargerCount: c.larger}, NewMetrics())
		s.reportedCount, s.leases = c.answer, func() (int, []string) { return c.leases, nil }
		if got := s.updateAddresses(); got != c.want {
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

// KON-053, KON-055: a server that is leaving does not count: its successor is found by each kind of address, also by the same ID, while what goes
// through the session to it goes on. Nothing is dialled in search of it again when that ends.
func TestServerIsLeaving(t *testing.T) {
	for _, next := range []string{"A", "B"} {
		for _, leased := range []bool{false, true} {
			inWorld(t, func(w *world) {
				w.behind["a:1"] = []string{"A"}
				if leased {
					w.hosts()
					w.s.leases = func() (int, []string) { return 1, []string{"a:1"} }
				}
			}, func(w *world) {
				w.after(time.Minute)
				w.behind["a:1"] = nil
				old := w.leave("A")
				if w.s.ready() {
					t.Error("ready with no server that takes connections")
				}
				w.behind["a:1"] = []string{next}
				w.after(12 * time.Second)
				w.connected(next)
				if !old.alive() {
					t.Error("the session to the old server has been closed")
				}
				old.Close()
				if again := w.after(time.Hour); len(again) > 0 {
					t.Errorf("%d dials when the old server has gone", len(again))
				}
				w.connected(next)
			})
		}
	}
}

// KON-055: behind a load balancer the successor of a server that is leaving is searched at once, and the others are left alone.
func TestOneOfSeveralIsLeaving(t *testing.T) {
	inWorld(t, func(w *world) {
		w.count = 2
		w.behind["a:1"] = []string{"A", "B"}
	}, func(w *world) {
		w.after(time.Minute)
		w.behind["a:1"] = []string{"C"}
		w.leave("A")
		w.connected("B", "C")
	})
}

// KON-053: a server that takes nothing new from the first is not dialled again and again.
func TestServerLeavesAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.behind["a:1"] = []string{"A"}
		connect := w.s.connect
		w.s.connect = func(ctx context.Context, address string) (session, error) {
			x, err := connect(ctx, address)
			x.(*fakeSession).leave()
			time.AfterFunc(time.Millisecond, x.Close)
			return x, err
		}
	}, func(w *world) {
		w.after(time.Hour)
		growing(t, pauses(w.dials))
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

// KON-053: at the end servers are asked for no new connections, and those that are open may end, for a time. So it is when the only server is
// leaving.
func TestDrain(t *testing.T) {
	for _, lasts := range []time.Duration{0, 10 * time.Second, time.Hour} {
		t.Run("", func(t *testing.T) { drains(t, lasts, false) })
		t.Run("leaving", func(t *testing.T) { drains(t, lasts, true) })
	}
}

func drains(t *testing.T, lasts time.Duration, leaving bool) {
	inWorld(t, func(w *world) { w.behind["a:1"] = []string{"A"} }, func(w *world) {
		w.after(time.Minute)
		if leaving {
			w.hosts() // and has no successor
			w.after(12 * time.Second)
			w.leave("A")
		}
		busy := make(chan struct{})
		w.open[0].busy = busy
		time.AfterFunc(lasts, func() { close(busy) })
		began := time.Now()
		w.end()
		synctest.Wait()
		if x := w.open[0]; !x.drained || x.alive() != (lasts > 0) {
			t.Errorf("drained %t, open %t", x.drained, x.alive())
		}
		<-w.ended
		if took := time.Since(began); took < min(lasts, drainTimeout) || took > min(lasts, drainTimeout)+time.Second {
			t.Errorf("ended after %v, with a connection that lasts %v", took, lasts)
		}
		if n := testutil.ToFloat64(w.s.metrics.serverFailures); len(w.dials) != 1 || n != 0 {
			t.Errorf("%d dials at the end and %v failures, want none", len(w.dials)-1, n)
		}
	})
}
