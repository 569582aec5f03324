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

// access is what a client did with a key: it has read from, or written to in its place. Values are unique; "" means that there
// is no such key.
type access struct {
	from, to string
	write    bool
	done     bool // the write was acknowledged
	unknown  bool // nobody knows whether it was carried out
}

// register is the model of a key.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		a := input.(access)
		switch holds := a.from == state; {
		case !a.write:
			return holds, state
		case holds:
			return a.done || a.unknown, a.to // else it was refused although it held
		}
		return !a.done, state
	},
}

// History is what clients of stores that have their state in common did.
type History struct {
	seed    uint64
	since   time.Time
	clients sync.WaitGroup

	mu   sync.Mutex
	ids  int
	keys map[string][]porcupine.Operation
}

// NewHistory is one in which nothing has happened. The seed is for what clients do.
func NewHistory(seed uint64) *History {
	return &History{seed: seed, since: time.Now(), keys: map[string][]porcupine.Operation{}}
}

func (h *History) now() int64 { return time.Since(h.since).Nanoseconds() }

func (h *History) add(client int, key string, called int64, a access) {
	o := porcupine.Operation{ClientId: client, Call: called, Return: h.now(), Input: a}
	if a.unknown {
		o.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys[key] = append(h.keys[key], o)
}

// Client starts one that reads the newest state and writes, n times, or until it does not know what has become of a write.
func (h *History) Client(s storage.Store, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids++
	id := h.ids
	h.clients.Go(func() { h.client(s, id, n, rand.New(rand.NewPCG(h.seed, uint64(id)))) })
}

func (h *History) client(s storage.Store, id, n int, r *rand.Rand) {
	for i := range n {
		w, a := storage.Write{Key: fmt.Sprintf("r/%d", r.IntN(3))}, access{}
		called := h.now()
		state, err := s.Fresh(context.Background())
		if err != nil {
			continue // as if it had never been
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
		a.done, a.unknown = err == nil, err != nil && !errors.As(err, &conflict)
		if h.add(id, w.Key, called, a); a.unknown {
			return
		}
	}
}

// Wait returns when the clients are done.
func (h *History) Wait() { h.clients.Wait() }

// Check waits for the clients, and fails the test if what they saw is not linearizable.
func (h *History) Check(t testing.TB) {
	t.Helper()
	h.Wait()
	for key, all := range h.keys {
		if result := porcupine.CheckOperationsTimeout(register, all, 20*time.Second); result != porcupine.Ok {
			t.Fatalf("seed %d: %d operations on %s: %v", h.seed, len(all), key, result)
		}
	}
}
