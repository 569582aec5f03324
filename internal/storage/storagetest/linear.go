package storagetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// operation is a client's read or write of a key. A read returned the value in from. A write replaced the value in
// from by the value in to. Values are unique. "" means that the key does not exist.
type operation struct {
	from, to     string
	write        bool
	acknowledged bool // the write was acknowledged
	unknown      bool // the outcome of the write is unknown
}

// register is the model of one key.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		a := input.(operation)
		switch holds := a.from == state; {
		case !a.write:
			return holds, state
		case holds:
			// A rejected write is an error, because the key had the expected value.
			return a.acknowledged || a.unknown, a.to
		}
		return !a.acknowledged, state
	},
}

// History records the operations of clients of stores that share their state.
type History struct {
	seed    uint64
	since   time.Time
	clients sync.WaitGroup

	mu   sync.Mutex
	ids  int
	keys map[string][]porcupine.Operation
}

// NewHistory returns an empty history. The seed determines the operations of the clients.
func NewHistory(seed uint64) *History {
	return &History{seed: seed, since: time.Now(), keys: map[string][]porcupine.Operation{}}
}

func (h *History) now() int64 { return time.Since(h.since).Nanoseconds() }

func (h *History) add(client int, key string, called int64, a operation) {
	o := porcupine.Operation{ClientId: client, Call: called, Return: h.now(), Input: a}
	if a.unknown {
		o.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys[key] = append(h.keys[key], o)
}

// Client starts a client that reads the newest state and writes, n times. It stops after a write with an unknown
// outcome.
func (h *History) Client(s storage.Store, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids++
	id := h.ids
	h.clients.Go(func() { h.client(s, id, n, rand.New(rand.NewPCG(h.seed, uint64(id)))) })
}

func (h *History) client(s storage.Store, id, n int, r *rand.Rand) {
	for i := range n {
		w, a := storage.Write{Key: fmt.Sprintf("r/%d", r.IntN(3))}, operation{}
		called := h.now()
		state, err := s.Fresh(context.Background())
		if err != nil {
			continue // nothing to record
		}
		now := state.Get(w.Key)
		if now != nil {
			a.from, w.Expected = string(now.Value), now.Modified
		}
		h.add(id, w.Key, called, a)
		if r.IntN(2) == 0 {
			continue
		}
		a.write = true
		if now == nil || r.IntN(4) > 0 {
			a.to = fmt.Sprintf("%d/%d", id, i)
			w.Value = []byte(a.to)
		}
		called = h.now()
		_, err = s.Commit(context.Background(), []storage.Write{w})
		if errors.Is(err, storage.ErrUnavailable) {
			continue
		}
		conflict := (*storage.ConflictError)(nil)
		a.acknowledged, a.unknown = err == nil, err != nil && !errors.As(err, &conflict)
		if h.add(id, w.Key, called, a); a.unknown {
			return
		}
	}
}

// Wait waits until the clients have stopped.
func (h *History) Wait() { h.clients.Wait() }

// Check waits for the clients, and fails the test if their operations are not linearizable.
func (h *History) Check(t testing.TB) {
	t.Helper()
	h.Wait()
	for key, all := range h.keys {
		if result := porcupine.CheckOperationsTimeout(register, all, 20*time.Second); result != porcupine.Ok {
			t.Fatalf("seed %d: %d operations on %s: %v", h.seed, len(all), key, result)
		}
	}
}
