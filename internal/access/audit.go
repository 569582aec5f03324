package access

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
)

// maxBacklog is how many bytes may wait to be written, for a disk that stands still; what comes on top is lost.
const maxBacklog = 64 << 20

// Audit is the record of all requests: a file with a line of JSON for each stage of one, an Event of audit.k8s.io/v1 at
// level Metadata (https://kubernetes.io/docs/tasks/debug/debug-cluster/audit). Who makes a request waits for the
// encoding alone: writing happens beside. A nil Audit records nothing.
type Audit struct {
	out    io.Writer
	finish func() error
	report func(error)
	wake   chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	pending []byte
	closed  bool

	recorded, lost atomic.Int64
}

// OpenAudit appends to the file at path, which is made if need be; "-" is standard output, "" gives nil. report is
// told of each failure to write, from another goroutine. The caller closes the Audit.
func OpenAudit(path string, report func(error)) (*Audit, error) {
	switch path {
	case "":
		return nil, nil
	case "-":
		return newAudit(os.Stdout, func() error { return nil }, report), nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return newAudit(f, f.Close, report), nil
}

func newAudit(out io.Writer, finish func() error, report func(error)) *Audit {
	a := &Audit{out: out, finish: finish, report: report, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go a.write()
	return a
}

// Record notes a stage of a request. It does not wait for the disk. What it is given may be used again.
func (a *Audit) Record(r *Record) {
	line, err := r.encode()
	if err != nil {
		a.lost.Add(1)
		return
	}
	a.mu.Lock()
	fits := !a.closed && len(a.pending)+len(line) <= maxBacklog
	if fits {
		a.pending = append(a.pending, line...)
		select {
		case a.wake <- struct{}{}:
		default: // the writer has not looked yet
		}
	}
	a.mu.Unlock()
	if fits {
		a.recorded.Add(1)
	} else {
		a.lost.Add(1)
	}
}

// Counts are how many stages were taken down, and how many could not be.
func (a *Audit) Counts() (recorded, lost int64) { return a.recorded.Load(), a.lost.Load() }

// Close writes what is left. Nothing is recorded afterwards.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	close(a.wake)
	a.mu.Unlock()
	<-a.done
	if err := a.finish(); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// write takes all there is each time, so that a slow disk makes for larger pieces.
func (a *Audit) write() {
	defer close(a.done)
	var piece []byte
	for more := true; more; {
		_, more = <-a.wake
		a.mu.Lock()
		piece, a.pending = a.pending, piece[:0]
		a.mu.Unlock()
		if len(piece) == 0 {
			continue
		}
		n, err := a.out.Write(piece)
		if err == nil && n < len(piece) {
			err = errors.New("short write")
		}
		if err != nil {
			a.lost.Add(lines(piece[n:]))
			a.report(fmt.Errorf("audit log: %w", err))
		}
		if cap(piece) > maxBacklog/16 {
			piece = nil
		}
	}
}

func lines(piece []byte) (n int64) {
	for _, c := range piece {
		if c == '\n' {
			n++
		}
	}
	return n
}
