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

// checkBackoff fails the test unless the intervals grow from SyncInterval (1 s) to SyncIntervalCap (10 s),
// with jitter.
func checkBackoff(t *testing.T, intervals []time.Duration) {
	t.Helper()
	if len(intervals) < 8 || intervals[0] < time.Second || intervals[0] > 1200*time.Millisecond {
		t.Errorf("got intervals %v…, want at least 8 that start at 1 s", intervals[:min(len(intervals), 8)])
	}
	for i, interval := range intervals {
		growing := i == 0 || intervals[i-1] >= 8*time.Second || float64(interval) >= 1.2*float64(intervals[i-1])
		if interval > 12*time.Second || !growing || i > 6 && interval < 10*time.Second {
			t.Errorf("interval %d of %v… does not grow from 1 s to 10 s", i, intervals[:i+1])
			return
		}
	}
}

// TestLoadBalancer checks that the agent finds all servers behind a load balancer by their IDs, opens one session
// to each and then dials no more (reference issue 394). It sends DRAIN on a second session to a Trellis server,
// but not on a second session to a reference server (KON-055).
func TestLoadBalancer(t *testing.T) {
	t.Run("Trellis servers", func(t *testing.T) { checkLoadBalancer(t, false) })
	t.Run("reference servers", func(t *testing.T) { checkLoadBalancer(t, true) })
}

func checkLoadBalancer(t *testing.T, reference bool) {
	runFixture(t, func(f *fixture) {
		f.count, f.reference = 3, reference
		f.backends["a:1"] = []string{"A", "A", "A", "B", "B", "C"}
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.checkSessions("A", "B", "C")
		if len(f.dials) != 6 {
			t.Errorf("%d dials, want 6", len(f.dials))
		}
		for i, x := range f.sessions {
			if registered := f.servers.sessions[x.id] == session(x); x.drained != (x.trellis && !registered) ||
				x.alive() != registered {
				t.Errorf("session %d: registered %t, drained %t, open %t", i, registered, x.drained, x.alive())
			}
		}
		if dials := f.advance(24 * time.Hour); len(dials) > 0 {
			t.Errorf("%d dials when all servers are connected to", len(dials))
		}
		f.breakSessions("B")
		if f.advance(time.Minute); len(f.dials) < 7 || len(f.dials) > 12 {
			t.Errorf("%d dials for the lost session, want 1 to 6", len(f.dials)-6)
		}
		f.checkSessions("A", "B", "C")
	})
}

// TestAgentsInStep checks that the agent finds all servers behind a round-robin load balancer, even if a second
// agent always dials at the same times (KON-055).
func TestAgentsInStep(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.servers.connect = func(ctx context.Context, address string) (session, error) {
			if n := len(f.dials); n == 0 || time.Since(f.dials[n-1].at) > 0 { // the second agent has dialled as often
				f.backends["a:1"] = []string{"A", "B"}
			}
			return f.connect(ctx, address)
		}
	}, func(f *fixture) {
		f.advance(10 * time.Second)
		f.checkSessions("A", "B")
	})
}

// TestMissingServers checks that the agent dials at a limited rate while servers are missing, and connects to
// them when they appear (KON-055).
func TestMissingServers(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.backends["a:1"] = []string{"A"}
	}, func(f *fixture) {
		f.advance(time.Hour)
		// dials come in pairs
		checkBackoff(t, slices.DeleteFunc(intervals(f.dials), func(p time.Duration) bool { return p == 0 }))
		if d := f.dials; len(d) < 4 || d[len(d)-1].at.Equal(d[len(d)-3].at) {
			t.Errorf("more than two dials at the same time: intervals %v", intervals(d))
		}
		f.checkSessions("A")
		f.backends["a:1"] = []string{"B", "A"}
		f.advance(12 * time.Second)
		f.checkSessions("A", "B")
	})
}

// TestCountDecreases checks that the agent stops dialling when a server reports a smaller number of servers
// (KON-055).
func TestCountDecreases(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.backends["a:1"] = []string{"A"}
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.count = 1
		f.advance(time.Minute)
		if dials := f.advance(time.Hour); len(dials) > 0 {
			t.Errorf("%d dials", len(dials))
		}
	})
}

// TestAddressesOfName checks that each address of the servers' name is dialled once, independently of the
// server count. The name is resolved again (KON-055, KON-039).
func TestAddressesOfName(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.setHosts("a", "b", "::1")
		// A has two addresses
		f.backends = map[string][]string{"a:1": {"A"}, "b:1": {"B"}, "[::1]:1": {"A"}, "c:1": {"C"}}
	}, func(f *fixture) {
		f.advance(time.Hour)
		f.checkSessions("A", "B")
		f.setHosts("a", "b", "c")
		if all := addresses(f.advance(time.Hour)); !slices.Equal(all, []string{"c:1"}) {
			t.Errorf("dialled %v, want only the new address c:1", all)
		}
		f.checkSessions("A", "B", "C")
		f.setHosts("a", "c")
		f.advance(time.Minute)
		f.checkSessions("A", "B", "C") // the session to B stays open
		f.breakSessions("B")
		if all := f.advance(time.Hour); len(all) > 0 {
			t.Errorf("dialled %v after the name lost the address", all)
		}
		f.checkSessions("A", "C")
		f.servers.mu.Lock()
		f.servers.resolve = func(context.Context, string) ([]string, error) { return nil, errors.New("no such host") }
		f.servers.mu.Unlock()
		f.advance(time.Minute)
		f.breakSessions("A")
		f.advance(time.Second)
		f.checkSessions("A", "C")
	})
}

// TestOneOfSeveralAddressesFails checks that only the address of the failed server is dialled again. No address
// leads to more than one server (KON-055).
func TestOneOfSeveralAddressesFails(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.setHosts("a", "b")
		f.backends = map[string][]string{"a:1": {"A"}, "b:1": {"B"}}
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.backends["b:1"] = nil
		f.breakSessions("B")
		f.advance(time.Hour)
		if a := addresses(f.dials[2:]); a[0] != "b:1" {
			t.Errorf("dialled %v, want only b:1", a)
		}
		checkBackoff(t, intervals(f.dials[2:]))
	})
}

// TestLoadBalancerAddressFails checks a load balancer with two addresses, one of which fails while DNS still lists
// it. The agent uses the other address. When all servers are connected again, it dials no more (KON-055).
func TestLoadBalancerAddressFails(t *testing.T) {
	all := []string{"A", "B", "C"}
	runFixture(t, func(f *fixture) {
		f.count = len(all)
		f.backends["a:1"] = all
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.checkSessions(all...)
		f.setHosts("a", "b")
		f.advance(time.Minute)
		f.backends["a:1"] = nil
		f.breakSessions("A")
		f.breakSessions("B")
		f.breakSessions("C")
		f.checkSessions()
		f.backends["b:1"] = all // server C is the last one in turn behind both addresses
		f.advance(time.Minute)
		f.checkSessions(all...)
		if dials := f.advance(time.Hour); len(dials) > 0 {
			t.Errorf("%d dials when all servers are connected to", len(dials))
		}
	})
}

// TestLoadBalancerWithDeadAddress checks that an unreachable address, such as IPv6 without a route, does not
// stop the dials of another address (KON-055).
func TestLoadBalancerWithDeadAddress(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.setHosts("a", "::1")
		f.backends["a:1"] = []string{"A", "B"}
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.checkSessions("A", "B")
	})
}

// TestAddressesOfLeases checks that the addresses in Leases are dialled directly, without further dials of the
// name (KON-055).
func TestAddressesOfLeases(t *testing.T) {
	leased := []string{"x:8132", "y:8132"}
	runFixture(t, func(f *fixture) {
		f.backends = map[string][]string{"a:1": {"X"}, "x:8132": {"X"}, "y:8132": {"Y"}, "z:8132": {"Z"}}
		f.servers.leases = func() (int, []string) { return len(leased), leased }
	}, func(f *fixture) {
		f.advance(time.Hour)
		f.checkSessions("X", "Y")
		if all := addresses(f.dials); !slices.Equal(all, []string{"a:1", "x:8132", "y:8132"}) {
			t.Errorf("dialled %v, want each address once", all)
		}
		f.servers.mu.Lock()
		leased = append(leased, "z:8132")
		f.servers.mu.Unlock()
		f.servers.trigger()
		f.checkSessions("X", "Y", "Z")
	})
}

// TestLeasesExpire checks that the count and the addresses of expired Leases stay in use until at least one Lease
// is valid again. Leases expire while the control plane is down (KON-053, KON-055).
func TestLeasesExpire(t *testing.T) {
	leased := []string{"x:8132", "y:8132"}
	runFixture(t, func(f *fixture) {
		f.setHosts()
		f.backends = map[string][]string{"x:8132": {"X"}, "y:8132": {"Y"}, "z:8132": {"Z"}}
		f.servers.leases = func() (int, []string) { return len(leased), leased }
	}, func(f *fixture) {
		setLeases := func(addresses ...string) {
			f.servers.mu.Lock()
			defer f.servers.mu.Unlock()
			leased = addresses
		}
		f.advance(time.Minute)
		setLeases()
		f.advance(time.Minute)
		f.breakSessions("X")
		f.advance(time.Minute)
		f.checkSessions("X", "Y")
		if n := testutil.ToFloat64(f.servers.metrics.knownServers); n != 2 {
			t.Errorf("known_server_count is %v, want 2", n)
		}
		setLeases("z:8132")
		f.advance(time.Minute)
		f.breakSessions("X")
		f.breakSessions("Y")
		f.advance(time.Minute)
		f.checkSessions("Z")
	})
}

// TestNameIsNotResolved checks the log message of a failed DNS lookup. It depends on whether addresses of an
// earlier lookup exist (KON-039).
func TestNameIsNotResolved(t *testing.T) {
	for _, before := range []bool{false, true} {
		var log bytes.Buffer
		defer klog.CaptureState().Restore()
		klog.SetLogger(funcr.New(func(_, args string) { log.WriteString(args) }, funcr.Options{}))
		fail := func(f *fixture) {
			f.servers.mu.Lock()
			defer f.servers.mu.Unlock()
			f.servers.resolve = func(context.Context, string) ([]string, error) {
				return nil, errors.New("no such host")
			}
		}
		runFixture(t, func(f *fixture) {
			if !before {
				fail(f)
			}
		}, func(f *fixture) {
			f.advance(time.Minute)
			fail(f)
			f.advance(time.Minute)
		})
		logsUse := strings.Contains(log.String(), "stay in use")
		logsFlag := strings.Contains(log.String(), "--proxy-server-host")
		if logsUse != before || logsFlag == before {
			t.Errorf("earlier addresses %t: unexpected log %s", before, &log)
		}
	}
}

// TestCountSource checks the number of servers, from Leases and from the servers' responses, for both values
// of --server-count-source (KON-055).
func TestCountSource(t *testing.T) {
	for _, c := range []struct {
		larger               bool
		answer, leases, want int
	}{{false, 5, 2, 2}, {true, 5, 2, 5}, {true, 2, 5, 5}, {false, 0, 1, 1}, {true, 0, 1, 1}, {false, 5, 0, 1},
		{true, 5, 0, 5}} {
		s := newServers(&Config{LargerCount: c.larger}, NewMetrics())
		s.reportedCount, s.leases = c.answer, func() (int, []string) { return c.leases, nil }
		if got := s.updateAddresses(); got != c.want {
			t.Errorf("%+v: got %d servers", c, got)
		}
	}
}

// TestSyncForever checks that an agent with --sync-forever finds more servers than the servers report, and that
// its dials are SyncIntervalCap apart (KON-055).
func TestSyncForever(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.servers.SyncForever = true
		f.backends["a:1"] = []string{"A"}
	}, func(f *fixture) {
		f.advance(time.Minute)
		all := f.advance(time.Hour)
		if len(all) < 200 {
			t.Errorf("%d dials in an hour, want one every 10 s", len(all))
		}
		for _, p := range intervals(all) {
			if p < 10*time.Second {
				t.Fatalf("interval of %v, want at least 10 s", p)
			}
		}
		f.backends["a:1"] = []string{"B"}
		f.advance(12 * time.Second)
		f.checkSessions("A", "B")
	})
}

// TestServerRestarts checks that a lost session is replaced at once, or with backoff while the server is down
// (KON-053).
func TestServerRestarts(t *testing.T) {
	runFixture(t, func(f *fixture) { f.backends["a:1"] = []string{"A"} }, func(f *fixture) {
		f.advance(time.Minute)
		f.checkSessions("A")
		f.breakSessions("A")
		f.checkSessions("A") // without delay
		f.advance(time.Minute)
		f.backends["a:1"] = nil
		f.breakSessions("A")
		f.checkSessions()
		if f.servers.ready() {
			t.Error("ready without a server")
		}
		if n := testutil.ToFloat64(f.servers.metrics.serverFailures); n != 2 { // KON-052
			t.Errorf("%v failures were counted, want 2", n)
		}
		f.advance(time.Hour)
		checkBackoff(t, intervals(f.dials[2:]))
		f.backends["a:1"] = []string{"B"} // with a new ID
		f.advance(12 * time.Second)
		f.checkSessions("B")
	})
}

// TestServerGoesAway checks that a server no longer counts after it has sent GOAWAY. The agent connects to the
// server's successor, whether its ID is the same or not, for each kind of address. The old session stays open, and
// its end triggers no dials (KON-053, KON-055).
func TestServerGoesAway(t *testing.T) {
	for _, next := range []string{"A", "B"} {
		for _, leased := range []bool{false, true} {
			runFixture(t, func(f *fixture) {
				f.backends["a:1"] = []string{"A"}
				if leased {
					f.setHosts()
					f.servers.leases = func() (int, []string) { return 1, []string{"a:1"} }
				}
			}, func(f *fixture) {
				f.advance(time.Minute)
				f.backends["a:1"] = nil
				old := f.goAway("A")
				if f.servers.ready() {
					t.Error("ready, but the only server has sent GOAWAY")
				}
				f.backends["a:1"] = []string{next}
				f.advance(12 * time.Second)
				f.checkSessions(next)
				if !old.alive() {
					t.Error("the session to the old server is closed")
				}
				old.Close()
				if dials := f.advance(time.Hour); len(dials) > 0 {
					t.Errorf("%d dials after the end of the old session", len(dials))
				}
				f.checkSessions(next)
			})
		}
	}
}

// TestOneOfSeveralGoesAway checks that the agent dials at once for the successor of a server behind a load
// balancer, and keeps its other sessions (KON-055).
func TestOneOfSeveralGoesAway(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.count = 2
		f.backends["a:1"] = []string{"A", "B"}
	}, func(f *fixture) {
		f.advance(time.Minute)
		f.backends["a:1"] = []string{"C"}
		f.goAway("A")
		f.checkSessions("B", "C")
	})
}

// TestServerGoesAwayAtOnce checks that a server which always sends GOAWAY immediately is dialled with backoff
// (KON-053).
func TestServerGoesAwayAtOnce(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.backends["a:1"] = []string{"A"}
		connect := f.servers.connect
		f.servers.connect = func(ctx context.Context, address string) (session, error) {
			x, err := connect(ctx, address)
			x.(*fakeSession).goAway()
			time.AfterFunc(time.Millisecond, x.Close)
			return x, err
		}
	}, func(f *fixture) {
		f.advance(time.Hour)
		checkBackoff(t, intervals(f.dials))
	})
}

// TestServerFlaps checks that a server which closes each session immediately is dialled with backoff
// (KON-053).
func TestServerFlaps(t *testing.T) {
	runFixture(t, func(f *fixture) {
		f.backends["a:1"] = []string{"A"}
		f.sessionLifetime = time.Millisecond
	}, func(f *fixture) {
		f.advance(time.Hour)
		checkBackoff(t, intervals(f.dials))
	})
}

// TestServerWithoutID checks that the agent rejects a server without an ID, which cannot be distinguished from
// other servers.
func TestServerWithoutID(t *testing.T) {
	runFixture(t, func(f *fixture) { f.backends["a:1"] = []string{""} }, func(f *fixture) {
		f.advance(time.Hour)
		f.checkSessions()
		checkBackoff(t, intervals(f.dials))
	})
}

// TestDrain checks that a stopping agent sends DRAIN, opens no sessions, and waits for its connections up to
// drainTimeout. The same applies if the agent's only server has sent GOAWAY (KON-053).
func TestDrain(t *testing.T) {
	for _, duration := range []time.Duration{0, 10 * time.Second, time.Hour} {
		t.Run("", func(t *testing.T) { checkDrain(t, duration, false) })
		t.Run("GOAWAY", func(t *testing.T) { checkDrain(t, duration, true) })
	}
}

func checkDrain(t *testing.T, duration time.Duration, goingAway bool) {
	runFixture(t, func(f *fixture) { f.backends["a:1"] = []string{"A"} }, func(f *fixture) {
		f.advance(time.Minute)
		if goingAway {
			f.setHosts() // the server has no successor
			f.advance(12 * time.Second)
			f.goAway("A")
		}
		idle := make(chan struct{})
		f.sessions[0].idle = idle
		time.AfterFunc(duration, func() { close(idle) })
		began := time.Now()
		f.stop()
		synctest.Wait()
		if x := f.sessions[0]; !x.drained || x.alive() != (duration > 0) {
			t.Errorf("drained %t, open %t; want true, %t", x.drained, x.alive(), duration > 0)
		}
		<-f.ended
		if elapsed := time.Since(began); elapsed < min(duration, drainTimeout) ||
			elapsed > min(duration, drainTimeout)+time.Second {
			t.Errorf("the agent stops after %v, with a connection of %v", elapsed, duration)
		}
		if n := testutil.ToFloat64(f.servers.metrics.serverFailures); len(f.dials) != 1 || n != 0 {
			t.Errorf("%d dials at the end and %v failures, want none", len(f.dials)-1, n)
		}
	})
}
