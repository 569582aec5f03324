// Package replicas_test runs three members of etcd and three replicas of Trellis on hosts of a virtual network. It
// causes faults while clients use the replicas over HTTPS. Then it checks that the answers are linearizable, that
// watches deliver each event once and in order, that no acknowledged write is lost, that no answer results from
// outdated permissions or kinds, and that clients that retry always succeed.
package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// model runs rounds of clients and faults on a cluster.
type model struct {
	*cluster
	seed      uint64
	random    *rand.Rand
	caKey     []byte
	state     map[string]string // of the keys, after the last round
	pending   []operation
	newest    atomic.Int64 // generation of the CRD
	rounds    int
	compacted int64 // before the round
}

// newModel starts a cluster and creates the objects that the clients need.
func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	m := &model{
		cluster: newCluster(t), seed: seed, random: rand.New(rand.NewPCG(seed, 38)),
		state: map[string]string{},
	}
	var err error
	m.caKey, err = os.ReadFile(filepath.Join(m.keysDir, "ca.key"))
	m.must(err)
	for _, object := range [][2]string{
		{"/api/v1/namespaces", `{"metadata":{"name":"model"}}`},
		{collection, `{"metadata":{"name":"target"}}`},
		{crdsPath, string(crd(0, ""))},
	} {
		a := m.replicas[0].admin.do(t.Context(), "POST", object[0], "", []byte(object[1]))
		if a.code != 201 {
			t.Fatalf("create %s: %v", object[1], a)
		}
	}
	return m
}

// apis returns clients with the administrator's certificate, one for each replica.
func (m *model) apis() (all []*api) {
	for i, r := range m.replicas {
		all = append(all, m.newAPI(i, r.url, m.adminCertificate(), 4*time.Second))
	}
	return all
}

// rng returns a random number generator for one client of the current round.
func (m *model) rng(client int) *rand.Rand {
	return rand.New(rand.NewPCG(m.seed, uint64(m.rounds*1000+client)))
}

// round runs clients, causes faults one after the other, and checks the history.
func (m *model) round(d func() time.Duration, faults ...fault) {
	m.rounds++
	m.tally.count("rounds", 1)
	r := &running{model: m, history: newHistory(), apis: m.apis()}
	defer r.close()
	if err := r.begin(); err != nil {
		m.tally.violation("round %d: %v", m.rounds, err)
		return
	}
	ctx, stop := context.WithCancel(m.t.Context())
	defer stop()
	r.start(ctx)
	names := []string{}
	for _, f := range faults {
		wait(ctx, time.Second)
		m.tally.beginFault()
		err := f.inject(m.cluster, m.random, d())
		if err == nil {
			err = m.waitAll()
		}
		if err != nil {
			m.tally.violation("round %d: %s: %v", m.rounds, f.name, err)
		}
		wait(ctx, time.Second)
		longest := m.tally.endFault(f.name)
		names = append(names, fmt.Sprintf("%s (%v without a write)", f.name, longest.Round(time.Millisecond)))
	}
	stop()
	r.clients.Wait()
	if err := r.end(); err != nil {
		m.tally.violation("round %d: %s: %v", m.rounds, strings.Join(names, ", "), err)
	}
	r.check(names)
	m.log("round %d: %s: %d operations in %v", m.rounds, strings.Join(names, ", "), len(r.history.operations),
		time.Duration(r.history.now()).Round(time.Second))
}

// running is one round.
type running struct {
	*model
	history  *history
	apis     []*api
	clients  sync.WaitGroup
	watching sync.WaitGroup
	stop     context.CancelFunc // of the watchers
	watchers []*watcher
	rights   *rights
	kinds    *kinds
	before   map[string]string
}

// begin reads the state and starts watchers.
func (r *running) begin() error {
	state, revision, err := r.stateAt(r.apis[0], 0)
	if err != nil {
		return err
	}
	// Members may have executed writes of the last round after its end.
	r.before = state
	for _, o := range r.pending {
		if o.to != "" && state[o.key] == o.to || o.verb == "delete" && r.state[o.key] == o.from {
			r.state[o.key] = state[o.key]
		}
	}
	if r.rounds > 1 && !maps.Equal(nonEmpty(r.state), state) {
		return fmt.Errorf("the state was %v after the last round, and is now %v", r.state, state)
	}
	r.compacted = r.cluster.compacted
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	for i := range 2 * size {
		w := newWatcher(i, r.apis, r.history, r.tally, revision)
		r.watchers = append(r.watchers, w)
		r.watching.Go(func() { w.run(ctx) })
	}
	r.rights = &rights{cluster: r.cluster, apis: r.apis, caKey: r.caKey, round: r.rounds, tally: r.tally,
		random: r.rng(900), zero: r.history.zero}
	r.kinds, err = newKinds(r.apis, r.tally, r.rng(901), r.history.zero, &r.newest)
	return err
}

// start starts the clients.
func (r *running) start(ctx context.Context) {
	for i := range writers {
		w := &writer{id: i, round: r.rounds, apis: r.apis, history: r.history, tally: r.tally, random: r.rng(i),
			known: map[string]configMap{}}
		r.clients.Go(func() { w.run(ctx) })
	}
	p := &patient{apis: r.apis, tally: r.tally, round: r.rounds}
	r.clients.Go(func() { p.run(ctx) })
	r.clients.Go(func() { r.rights.run(ctx) })
	r.clients.Go(func() { r.kinds.run(ctx) })
	for i := range size {
		r.clients.Go(func() { r.rights.read(ctx, i) })
		// These requests stay in flight while the replica is paused.
		a := r.newAPI(i, r.replicas[i].url, r.adminCertificate(), 2*patientTimeout)
		r.clients.Go(func() { r.kinds.use(ctx, a) })
	}
}

// end writes a last object, and waits until all watchers have received it. Then it reads the state from all replicas.
func (r *running) end() error {
	if err := r.waitAll(); err != nil {
		return err
	}
	var marker configMap
	err := eventually("a last write", func() error {
		body := fmt.Appendf(nil, `{"data":{"round":"%d-%d"}}`, r.rounds, time.Now().UnixNano())
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
		defer cancel()
		answer := r.apis[0].do(ctx, "PATCH", collection+"/target", mergePatch, body)
		if !answer.applied() {
			return errors.New(answer.String())
		}
		return answer.into(&marker)
	})
	if err != nil {
		return err
	}
	for _, w := range r.watchers {
		err := eventually("watches deliver the last write", func() error { return w.has(marker.revision()) })
		if err != nil {
			return err
		}
	}
	r.stop()
	r.watching.Wait()
	for _, a := range r.apis {
		state, _, err := r.stateAt(a, marker.revision())
		if err != nil {
			return err
		}
		if a.replica > 0 && !maps.Equal(state, r.state) {
			r.tally.violation("round %d: at revision %d, replica 0 has %v, and replica %d has %v", r.rounds,
				marker.revision(), r.state, a.replica, state)
		}
		if a.replica == 0 {
			r.state = state
		}
	}
	violations, pending := r.history.check(round{before: r.before, after: r.state, pending: r.pending})
	r.pending = pending
	events := slices.SortedFunc(maps.Keys(r.history.seen), func(a, b event) int { return int(a.revision - b.revision) })
	for _, w := range r.watchers {
		violations = append(violations, w.check(events, marker.revision(), r.cluster.compacted)...)
	}
	for _, v := range violations {
		r.tally.violation("round %d: %s", r.rounds, v)
	}
	r.tally.count("checked operations", len(r.history.operations))
	r.tally.count("checked watchers", len(r.watchers))
	return nil
}

// check checks the answers that depend on permissions and kinds.
func (r *running) check(names []string) {
	rules := []*register{r.kinds.schema, r.kinds.second}
	for _, s := range r.rights.subjects {
		rules = append(rules, s.rule)
	}
	for _, rule := range rules {
		violations, checked := rule.check()
		for _, v := range violations {
			r.tally.violation("round %d (%s): %s", r.rounds, strings.Join(names, ", "), v)
		}
		r.tally.count("checked answers of rules", checked)
		r.tally.count("late answers of rules", rule.late())
	}
}

func (r *running) close() {
	if r.stop != nil {
		r.stop()
	}
	r.watching.Wait()
	for _, a := range r.apis {
		a.http.CloseIdleConnections()
	}
}

// stateAt returns the values of the keys at a revision, with the UID-independent fields. 0 means now.
func (m *model) stateAt(a *api, revision int64) (state map[string]string, at int64, err error) {
	path := collection
	if revision > 0 {
		path = fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", collection, revision)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	answer := a.do(ctx, "GET", path, "", nil)
	var all list
	if !answer.applied() {
		return nil, 0, fmt.Errorf("list on replica %d: %v", a.replica, answer)
	}
	if err := answer.into(&all); err != nil {
		return nil, 0, err
	}
	state = map[string]string{}
	for _, object := range all.Items {
		if strings.HasPrefix(object.Metadata.Name, keyPrefix) {
			state[object.Metadata.Name] = object.value()
		}
	}
	at, err = strconv.ParseInt(all.Metadata.ResourceVersion, 10, 64)
	return state, at, err
}

func nonEmpty(state map[string]string) map[string]string {
	state = maps.Clone(state)
	maps.DeleteFunc(state, func(_, value string) bool { return value == "" })
	return state
}

// log prints a line of progress.
func (m *model) log(format string, args ...any) {
	fmt.Printf("%s seed %d: %s\n", time.Now().Format(time.TimeOnly), m.seed, fmt.Sprintf(format, args...))
}
