// Package crashtest_test kills a server repeatedly while clients write to it. It checks that no acknowledged write is
// lost, and that no write appears that was never sent. It uses only the program and its API.
package crashtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/fixture/program"
)

const (
	writers    = 16
	keys       = 8
	collection = "/api/v1/namespaces/default/configmaps"
)

// killCount returns how often the server is killed: CRASHTEST times, or 30 by default.
func killCount(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("CRASHTEST"))
	switch {
	case err == nil && n > 0:
		return n
	case testing.Short():
		return 3
	}
	return 30
}

// TestKilledServerLosesNothing checks that a server killed under load keeps all acknowledged writes (CRD-071).
func TestKilledServerLosesNothing(t *testing.T) {
	s := &server{t: t, binary: program.Build(t), dir: t.TempDir()}
	s.start()
	defer func() { s.kill() }()
	state, revision := list(t, s)
	n := killCount(t)
	for i := range n {
		state, revision = round(t, s, i, state, revision)
		if t.Failed() {
			return
		}
		if n > 100 && (i+1)%50 == 0 {
			t.Logf("%d of %d kills survived, revision %d", i+1, n, revision)
		}
	}
}

// round runs clients until it kills the server. It then restarts the server and compares the operations of the
// clients with the stored state.
func round(t *testing.T, s *server, i int, before map[string]string, from int64) (map[string]string, int64) {
	t.Helper()
	h := newHistory()
	var events []event
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		_ = s.watch(ctx, collection, from, func(e event) { events = append(events, e) })
	})
	for w := range writers {
		running.Go(func() { client(s, h, i, w) })
	}
	kill := time.NewTimer(time.Duration(20+rand.Intn(180)) * time.Millisecond)
	<-kill.C
	s.kill()
	running.Wait()
	s.start()

	after, revision := list(t, s)
	events = resume(t, s, events, from, revision)
	checkEvents(t, h, events, before, after)
	for key := range keys {
		name := fmt.Sprint("key-", key)
		h.add(operation{client: writers, key: name, value: after[name], call: h.now(), end: h.now() + 1})
	}
	if err := h.check(before); err != nil {
		t.Error(err)
	}
	return after, revision
}

// client reads and writes random keys, which all clients share, until the server is killed.
func client(s *server, h *history, round, id int) {
	for n := 0; ; n++ {
		op := operation{
			client: id, key: fmt.Sprint("key-", rand.Intn(keys)), write: rand.Intn(4) > 0, end: math.MaxInt64,
		}
		if op.write {
			op.value = fmt.Sprintf("%d-%d-%d", round, id, n)
		}
		op.call = h.now()
		got, err := request(s, op)
		var status *statusError
		switch {
		case err == nil:
			op.end = h.now()
			if !op.write {
				op.value = got.Data["value"]
			}
			op.revision, _ = strconv.ParseInt(got.Metadata.ResourceVersion, 10, 64)
		case errors.As(err, &status) && status.code == 404 && !op.write:
			op.end = h.now()
		case errors.As(err, &status) && (status.code == 409 || status.code == 404):
			continue // the server has rejected the request, so it had no effect
		case !op.write:
			return
		default:
			h.add(op)
			return
		}
		h.add(op)
	}
}

// request writes or reads a key. A write is an unconditional PUT, or a POST if the key does not exist.
func request(s *server, op operation) (got configMap, err error) {
	path := collection + "/" + op.key
	var response []byte
	if op.write {
		body := fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"value":%q}}`, op.key, op.value)
		response, err = s.do("PUT", path, body)
		var status *statusError
		if errors.As(err, &status) && status.code == 404 {
			response, err = s.do("POST", collection, body)
		}
	} else {
		response, err = s.do("GET", path, nil)
	}
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(response, &got)
}

func list(t *testing.T, s *server) (values map[string]string, revision int64) {
	t.Helper()
	body, err := s.do("GET", collection, nil)
	if err != nil {
		t.Fatalf("list: %v\n%s", err, s.output)
	}
	var all struct {
		Metadata struct{ ResourceVersion string }
		Items    []configMap
	}
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatal(err)
	}
	values = map[string]string{}
	for _, m := range all.Items {
		if v, ok := m.Data["value"]; ok {
			values[m.Metadata.Name] = v
		}
	}
	revision, err = strconv.ParseInt(all.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return values, revision
}

// resume continues the watch that the crash has interrupted, up to the given revision.
func resume(t *testing.T, s *server, events []event, from, to int64) []event {
	t.Helper()
	last := from
	if len(events) > 0 {
		last = revisionOf(t, events[len(events)-1])
	}
	marker := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"marker-"}}`)
	if _, err := s.do("POST", collection, marker); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_ = s.watch(ctx, collection, last, func(e event) {
		if revisionOf(t, e) > to {
			cancel()
			return
		}
		events = append(events, e)
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("the watch from revision %d did not reach %d", last, to)
	}
	return events
}

func revisionOf(t *testing.T, e event) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(e.Object.Metadata.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatalf("the event has no revision: %+v", e)
	}
	return revision
}

// checkEvents compares the events of the watch with the clients' operations. Every acknowledged write occurs once,
// at its revision. Every event results from a write. The last event of each key is the stored state.
func checkEvents(t *testing.T, h *history, events []event, before, after map[string]string) {
	t.Helper()
	acknowledged, invoked := h.writes()
	last, seen, state := int64(0), map[string]bool{}, map[string]string{}
	for k, v := range before {
		state[k] = v
	}
	for _, e := range events {
		revision := revisionOf(t, e)
		if revision <= last {
			t.Errorf("revision %d comes after %d", revision, last)
		}
		last = revision
		value, ok := e.Object.Data["value"]
		if !ok {
			continue // a marker
		}
		op, known := invoked[value]
		if !known || seen[value] || op.key != e.Object.Metadata.Name {
			t.Errorf("the watch delivers %s=%q, which is a duplicate or was never written",
				e.Object.Metadata.Name, value)
		}
		if ack, ok := acknowledged[value]; ok && ack.revision != revision {
			t.Errorf("%q was acknowledged at revision %d, but the watch delivers it at %d",
				value, ack.revision, revision)
		}
		seen[value] = true
		state[e.Object.Metadata.Name] = value
	}
	for value, op := range acknowledged {
		if !seen[value] {
			t.Errorf("%s=%q was acknowledged at revision %d, but is lost", op.key, value, op.revision)
		}
	}
	for name, value := range after {
		if state[name] != value {
			t.Errorf("%s is %q, but the watch ends with %q", name, value, state[name])
		}
	}
}
