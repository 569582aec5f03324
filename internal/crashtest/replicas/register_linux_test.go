package replicas_test

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// unknownEnd is the end of a write whose outcome is unknown.
const unknownEnd = math.MaxInt64

// register is a rule of the API, such as a permission or a schema. One client writes it, and each write excludes that
// earlier writes are executed later. Other clients observe the rule by the answers of the replicas.
type register struct {
	name string
	zero time.Time

	mu     sync.Mutex
	writes []registerWrite
	reads  []registerRead
}

type registerWrite struct {
	value     string
	call, end int64
}

// registerRead is an answer that shows that the rule has a value, or that it has another value.
type registerRead struct {
	replica   int
	value     string
	other     bool
	call, end int64
}

func newRegister(name string, zero time.Time, value string) *register {
	return &register{name: name, zero: zero, writes: []registerWrite{{value: value}}}
}

func (r *register) now() int64 { return int64(time.Since(r.zero)) }

// begin records the call of a write. The result records its outcome.
func (r *register) begin(value string) (done func(applied bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.writes)
	r.writes = append(r.writes, registerWrite{value: value, call: r.now(), end: unknownEnd})
	return func(applied bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if applied {
			r.writes[i].end = r.now()
		}
	}
}

func (r *register) observe(replica int, value string, other bool, call int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, registerRead{replica, value, other, call, r.now()})
}

// possible returns the values that the rule may have had during a read. They begin with the newest value that was
// acknowledged before the read.
func (r *register) possible(read registerRead) (values []string) {
	for _, w := range r.writes {
		switch {
		case w.end < read.call:
			values = []string{w.value}
		case w.call <= read.end:
			values = append(values, w.value)
		}
	}
	return values
}

// check returns the reads that contradict all possible values, and the number of reads.
func (r *register) check() (violations []string, checked int) {
	for _, read := range r.reads {
		possible := false
		values := r.possible(read)
		for _, value := range values {
			possible = possible || (value == read.value) != read.other
		}
		if !possible {
			violations = append(violations, fmt.Sprintf("%s: replica %d answered at %v to %v as if the rule %s %q, "+
				"but it was one of %q. Writes: %s", r.name, read.replica, time.Duration(read.call),
				time.Duration(read.end), map[bool]string{false: "was", true: "was not"}[read.other], read.value, values,
				r.around(read)))
		}
	}
	return violations, len(r.reads)
}

// late returns the number of reads that began while the rule had a value, and ended long after the acknowledgement of
// another value. They are possible, but rare: the replica was paused between its answer and the transmission.
func (r *register) late() (n int) {
	for _, read := range r.reads {
		read.call = max(read.call, read.end-int64(2*time.Second))
		values := r.possible(read)
		if len(values) == 1 && (values[0] == read.value) == read.other {
			n++
		}
	}
	return n
}

// around describes the writes near a read.
func (r *register) around(read registerRead) (text string) {
	for _, w := range r.writes {
		end := "?"
		if w.end != unknownEnd {
			end = time.Duration(w.end).String()
		}
		if w.call <= read.end && (w.end == unknownEnd || w.end > read.call-int64(20*time.Second)) {
			text += fmt.Sprintf("%q from %v to %s; ", w.value, time.Duration(w.call), end)
		}
	}
	return text
}
