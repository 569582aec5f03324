package replicas_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// seedOf returns the seed in REPLICAS_SEED, or a random one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("REPLICAS_SEED")
	if text == "" {
		return rand.Uint64() >> 32
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("REPLICAS_SEED: %v", err)
	}
	return seed
}

// named returns the fault with a name.
func named(t *testing.T, name string) fault {
	t.Helper()
	all := faults()
	i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
	if i < 0 {
		t.Fatalf("no fault %q", name)
	}
	return all[i]
}

// TestReplicas checks a few faults, one after the other. With REPLICAS=duration, it causes random faults for this time.
// REPLICAS_SEED repeats the faults of an earlier run. REPLICAS_FAULT selects one kind of fault. REPLICAS_RACE=1 builds
// the replicas with the race detector.
func TestReplicas(t *testing.T) {
	long := time.Duration(0)
	if text := os.Getenv("REPLICAS"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatalf("REPLICAS: %v", err)
		}
	}
	m := newModel(t, seedOf(t))
	began := time.Now()
	if long == 0 {
		for _, f := range []struct {
			name     string
			duration time.Duration
		}{
			{"kill a replica", 3 * time.Second},
			{"kill a member", 3 * time.Second},
			{"pause a member", 5 * time.Second},
			{"partition a replica from one member", 3 * time.Second},
			{"resume a partitioned replica", 7 * time.Second}, // longer than a registration is valid
			{"partition a replica from etcd", 7 * time.Second},
			{"restart replicas in turn", 0},
			{"compact", 0},
		} {
			m.round(func() time.Duration { return f.duration }, named(t, f.name))
		}
	}
	m.runRandom(long)
	fmt.Printf("report of seed %d: %v of faults\n%send of the report\n", m.seed, time.Since(began).Round(time.Second),
		m.tally)
	for _, v := range m.tally.violations {
		t.Error(v)
	}
	if t.Failed() {
		t.Logf("repeat with REPLICAS_SEED=%d", m.seed)
	}
}

// runRandom causes random faults for a time.
func (m *model) runRandom(long time.Duration) {
	all := faults()
	if name := os.Getenv("REPLICAS_FAULT"); name != "" {
		all = []fault{named(m.t, name)}
	}
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		for {
			select {
			case <-tick.C:
				m.log("%s", m.tally.progress())
			case <-stopped:
				return
			}
		}
	}()
	duration := func() time.Duration { return time.Second + time.Duration(m.random.IntN(14000))*time.Millisecond }
	for began := time.Now(); time.Since(began) < long && !m.tally.failed(); {
		sequence := []fault{}
		for range 1 + m.random.IntN(3) {
			sequence = append(sequence, all[m.random.IntN(len(all))])
		}
		m.round(duration, sequence...)
	}
}
