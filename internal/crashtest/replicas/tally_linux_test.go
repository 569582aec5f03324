package replicas_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts operations, faults and violations, and measures the availability.
type tally struct {
	mu         sync.Mutex
	counts     map[string]int
	outcomes   map[string]map[string]int // by verb and outcome
	violations []string
	last       time.Time // of the last success of the client that retries
	longest    time.Duration
	faults     map[string]*faultTally
}

// faultTally is the summary of one kind of fault.
type faultTally struct {
	injected int
	longest  time.Duration // without a success of the client that retries
}

func newTally() *tally {
	return &tally{counts: map[string]int{}, outcomes: map[string]map[string]int{}, faults: map[string]*faultTally{}}
}

func (t *tally) count(name string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] += n
}

func (t *tally) operation(verb string, a answer) {
	outcome := fmt.Sprint(a.code)
	switch {
	case a.applied():
		outcome = "ok"
	case a.code == 0:
		outcome = "no response"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outcomes[verb] == nil {
		t.outcomes[verb] = map[string]int{}
	}
	t.outcomes[verb][outcome]++
}

func (t *tally) violation(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.violations) < 20 {
		t.violations = append(t.violations, fmt.Sprintf(format, args...))
	}
}

// success records a write that has succeeded.
func (t *tally) success() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts["writes with retries"]++
	t.longest = max(t.longest, time.Since(t.last))
	t.last = time.Now()
}

// beginFault starts the measurement of the availability.
func (t *tally) beginFault() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.longest = time.Now(), 0
}

// endFault adds the measurement to a kind of fault, and returns the longest time without a write.
func (t *tally) endFault(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.faults[name] == nil {
		t.faults[name] = &faultTally{}
	}
	f, longest := t.faults[name], max(t.longest, time.Since(t.last))
	f.injected++
	f.longest = max(f.longest, longest)
	return longest
}

// String returns the report.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%-36s %8s %s\n", "fault", "injected", "longest time without a write of a client that retries")
	for _, name := range slices.Sorted(maps.Keys(t.faults)) {
		f := t.faults[name]
		fmt.Fprintf(&b, "%-36s %8d %v\n", name, f.injected, f.longest.Round(time.Millisecond))
	}
	fmt.Fprintf(&b, "\noperations by outcome\n")
	for _, verb := range slices.Sorted(maps.Keys(t.outcomes)) {
		fmt.Fprintf(&b, "%-36s", verb)
		for _, outcome := range slices.Sorted(maps.Keys(t.outcomes[verb])) {
			fmt.Fprintf(&b, " %s: %d ", outcome, t.outcomes[verb][outcome])
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		fmt.Fprintf(&b, "%-36s %8d\n", name, t.counts[name])
	}
	fmt.Fprintf(&b, "%-36s %8d\n", "violations", len(t.violations))
	return b.String()
}

// progress returns one line.
func (t *tally) progress() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	operations, faults := 0, 0
	for _, byOutcome := range t.outcomes {
		for _, n := range byOutcome {
			operations += n
		}
	}
	for _, f := range t.faults {
		faults += f.injected
	}
	return fmt.Sprintf("%d rounds, %d faults, %d operations, %d events, %d violations",
		t.counts["rounds"], faults, operations, t.counts["events"], len(t.violations))
}

func (t *tally) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.violations) > 0
}
