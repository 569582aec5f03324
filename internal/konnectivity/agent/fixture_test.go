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

// fixture holds an agent and the tunnel servers that the agent can reach. It uses the clock of synctest.
type fixture struct {
	t               *testing.T
	ctx             context.Context
	servers         *servers
	backends        map[string][]string // servers by address, used in turn; if an address has none, its dials fail
	count           int                 // the server count that the servers report
	sessionLifetime time.Duration       // 0 means unlimited
	reference       bool                // the servers behave like reference servers
	dials           []dial
	sessions        []*fakeSession
	stop            context.CancelFunc
	ended           chan struct{}
}

type dial struct {
	address string
	at      time.Time
}

// runFixture calls prepare, starts the agent and then calls test.
func runFixture(t *testing.T, prepare func(*fixture), test func(*fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, count: 1, backends: map[string][]string{}, ended: make(chan struct{})}
		f.ctx, f.stop = context.WithCancel(t.Context())
		f.servers = newServers(&Config{Host: "servers", Port: 1, SyncInterval: time.Second,
			SyncIntervalCap: 10 * time.Second}, NewMetrics())
		f.servers.connect = f.connect
		f.setHosts("a")
		prepare(f)
		go func() {
			defer close(f.ended)
			f.servers.run(f.ctx)
			f.servers.drain()
		}()
		test(f)
		f.stop()
		<-f.ended
		if n := len(f.servers.allSessions()); n > 0 {
			t.Errorf("the agent has %d sessions at the end, want none", n)
		}
		for _, x := range f.sessions {
			if x.alive() {
				t.Errorf("a session to server %q is open at the end", x.id)
			}
		}
	})
}

// setHosts sets the addresses to which the name of the servers resolves.
func (f *fixture) setHosts(all ...string) {
	f.servers.mu.Lock()
	defer f.servers.mu.Unlock()
	f.servers.resolve = func(context.Context, string) ([]string, error) { return all, nil }
}

func (f *fixture) connect(_ context.Context, address string) (session, error) {
	f.servers.mu.Lock()
	defer f.servers.mu.Unlock()
	f.dials = append(f.dials, dial{address, time.Now()})
	all := f.backends[address]
	if len(all) == 0 {
		return nil, errRefused
	}
	f.backends[address] = append(slices.Clone(all[1:]), all[0])
	x := newFakeSession(all[0], f.count)
	x.trellis = !f.reference
	if f.sessionLifetime > 0 {
		time.AfterFunc(f.sessionLifetime, x.Close)
	}
	f.sessions = append(f.sessions, x)
	return x, nil
}

// advance advances the clock and returns the dials in that time.
func (f *fixture) advance(d time.Duration) []dial {
	synctest.Wait()
	f.servers.mu.Lock() // shows the race detector that earlier reads of the test are over
	before := len(f.dials)
	f.servers.mu.Unlock()
	<-time.After(d)
	synctest.Wait()
	return f.dials[before:]
}

// checkSessions fails the test unless there is exactly one session to each of the servers in want. It ignores
// sessions after GOAWAY.
func (f *fixture) checkSessions(want ...string) {
	f.t.Helper()
	synctest.Wait()
	var alive []string
	for _, x := range f.sessions {
		if x.alive() && !isClosed(x.goingAway) {
			alive = append(alive, x.id)
		}
	}
	slices.Sort(alive)
	registered := slices.Sorted(maps.Keys(f.servers.sessions))
	if !slices.Equal(alive, want) || !slices.Equal(registered, want) {
		f.t.Errorf("open sessions to %v, registered sessions to %v, want %v", alive, registered, want)
	}
}

// breakSessions closes the sessions to a server.
func (f *fixture) breakSessions(id string) {
	for _, x := range f.sessions {
		if x.id == id && x.alive() {
			x.Close()
		}
	}
	synctest.Wait()
}

// goAway makes a server send GOAWAY, and returns the session to it. The session stays open.
func (f *fixture) goAway(id string) *fakeSession {
	f.servers.mu.Lock()
	x := f.servers.sessions[id].(*fakeSession)
	f.servers.mu.Unlock()
	x.goAway()
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

// intervals returns the times between dials.
func intervals(dials []dial) (all []time.Duration) {
	for i := 1; i < len(dials); i++ {
		all = append(all, dials[i].at.Sub(dials[i-1].at))
	}
	return all
}

type fakeSession struct {
	id                string
	count             int
	trellis, drained  bool
	goAway, end       func()
	goingAway, closed chan struct{}
	idle              <-chan struct{} // closed when the session has no connections; nil means that it has none
}

func newFakeSession(id string, count int) *fakeSession {
	x := &fakeSession{id: id, count: count, goingAway: make(chan struct{}), closed: make(chan struct{})}
	x.goAway, x.end = sync.OnceFunc(func() { close(x.goingAway) }), sync.OnceFunc(func() { close(x.closed) })
	return x
}

func (x *fakeSession) ServerID() string           { return x.id }
func (x *fakeSession) ServerCount() int           { return x.count }
func (x *fakeSession) GoingAway() <-chan struct{} { return x.goingAway }
func (x *fakeSession) ServerIsTrellis() bool      { return x.trellis }
func (x *fakeSession) Drain()                     { x.drained = true }
func (x *fakeSession) alive() bool                { return !isClosed(x.closed) }

func (x *fakeSession) Wait() error {
	<-x.closed
	return errors.New("session closed")
}

func (x *fakeSession) CloseWhenIdle() error {
	if x.idle != nil {
		select {
		case <-x.closed:
		case <-x.idle:
		}
	}
	x.Close()
	return errors.New("session idle")
}

func (x *fakeSession) Close() {
	x.end()
	x.goAway()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
