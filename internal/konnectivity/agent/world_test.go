package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errRefused = errors.New("connection refused")

// world is what an agent can reach: the servers behind each address, of which each connection gets the next. Its time is synctest's.
type world struct {
	t      *testing.T
	ctx    context.Context
	s      *servers
	behind map[string][]string // by address; none: refused
	count  int                 // what servers answer
	lasts  time.Duration       // of a session; 0: until it is closed
	theirs bool                // the servers are the reference's
	dials  []dial
	open   []*fakeSession
	end    context.CancelFunc
	ended  chan struct{}
}

type dial struct {
	address string
	at      time.Time
}

// inWorld runs a test in one, with an agent that has begun.
func inWorld(t *testing.T, prepare func(*world), test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, count: 1, behind: map[string][]string{}, ended: make(chan struct{})}
		w.ctx, w.end = context.WithCancel(t.Context())
		w.s = newServers(&Config{Host: "servers", Port: 1, SyncInterval: time.Second, SyncIntervalCap: 10 * time.Second}, NewMetrics())
		w.s.connect = w.connect
		w.hosts("a")
		prepare(w)
		go func() {
			defer close(w.ended)
			w.s.run(w.ctx)
			w.s.drain()
		}()
		test(w)
		w.end()
		<-w.ended
		if n := len(w.s.allSessions()); n > 0 {
			t.Errorf("%d sessions are kept at the end", n)
		}
		for _, x := range w.open {
			if x.alive() {
				t.Errorf("a session to %s is open at the end", x.id)
			}
		}
	})
}

// hosts are the addresses that the servers' name has.
func (w *world) hosts(all ...string) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.resolve = func(context.Context, string) ([]string, error) { return all, nil }
}

func (w *world) connect(_ context.Context, address string) (session, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.dials = append(w.dials, dial{address, time.Now()})
	all := w.behind[address]
	if len(all) == 0 {
		return nil, errRefused
	}
	w.behind[address] = append(slices.Clone(all[1:]), all[0])
	x := newFakeSession(all[0], w.count)
	x.ours = !w.theirs
	if w.lasts > 0 {
		time.AfterFunc(w.lasts, x.Close)
	}
	w.open = append(w.open, x)
	return x, nil
}

// after lets time pass, and returns the dials that there were in it.
func (w *world) after(d time.Duration) []dial {
	synctest.Wait()
	w.s.mu.Lock() // what the test has looked at until now comes before what the agent does next
	before := len(w.dials)
	w.s.mu.Unlock()
	<-time.After(d)
	synctest.Wait()
	return w.dials[before:]
}

// connected fails the test unless there is one session to each of these servers, and no other but to those that are leaving.
func (w *world) connected(want ...string) {
	w.t.Helper()
	synctest.Wait()
	var alive []string
	for _, x := range w.open {
		if x.alive() && !isClosed(x.leaving) {
			alive = append(alive, x.id)
		}
	}
	slices.Sort(alive)
	kept := slices.Sorted(maps.Keys(w.s.sessions))
	if !slices.Equal(alive, want) || !slices.Equal(kept, want) {
		w.t.Errorf("sessions to %v, of which %v are kept, want %v", alive, kept, want)
	}
}

// fail breaks the sessions to a server.
func (w *world) fail(id string) {
	for _, x := range w.open {
		if x.id == id && x.alive() {
			x.Close()
		}
	}
	synctest.Wait()
}

// leave has a server take nothing new, and returns the session to it, which goes on.
func (w *world) leave(id string) *fakeSession {
	w.s.mu.Lock()
	x := w.s.sessions[id].(*fakeSession)
	w.s.mu.Unlock()
	x.leave()
	synctest.Wait()
	return x
}

func addresses(dials []dial) (all []string) {
	for _, d := range dials {
		all = append(all, d.address)
	}
	slices.Sort(all)
	return all
}

// pauses are the times between dials.
func pauses(dials []dial) (all []time.Duration) {
	for i := 1; i < len(dials); i++ {
		all = append(all, dials[i].at.Sub(dials[i-1].at))
	}
	return all
}

type fakeSession struct {
	id              string
	count           int
	ours, drained   bool
	leave, end      func()
	leaving, closed chan struct{}
	busy            <-chan struct{} // closed when no connection goes through it; nil: none does
}

func newFakeSession(id string, count int) *fakeSession {
	x := &fakeSession{id: id, count: count, leaving: make(chan struct{}), closed: make(chan struct{})}
	x.leave, x.end = sync.OnceFunc(func() { close(x.leaving) }), sync.OnceFunc(func() { close(x.closed) })
	return x
}

func (x *fakeSession) ServerID() string           { return x.id }
func (x *fakeSession) ServerCount() int           { return x.count }
func (x *fakeSession) GoingAway() <-chan struct{} { return x.leaving }
func (x *fakeSession) ServerIsTrellis() bool      { return x.ours }
func (x *fakeSession) Drain()                     { x.drained = true }
func (x *fakeSession) alive() bool                { return !isClosed(x.closed) }

func (x *fakeSession) Wait() error {
	<-x.closed
	return errors.New("the end")
}

func (x *fakeSession) CloseWhenIdle() error {
	if x.busy != nil {
		select {
		case <-x.closed:
		case <-x.busy:
		}
	}
	x.Close()
	return errors.New("it has finished")
}

func (x *fakeSession) Close() {
	x.end()
	x.leave()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
