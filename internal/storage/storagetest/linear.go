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

// An operation on a register: a read, or a write that replaces one value by another. Values are unique; "" means that the key
// does not exist.
type registerInput struct {
	key      string
	write    bool
	from, to string
}

type registerOutput struct {
	value   string // of a read
	done    bool   // the write was acknowledged
	unknown bool   // nobody knows whether it was carried out
}

// register is the model: one value per key.
var register = porcupine.Model{
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		keys := map[string][]porcupine.Operation{}
		for _, o := range all {
			k := o.Input.(registerInput).key
			keys[k] = append(keys[k], o)
		}
		for _, p := range keys {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(registerInput), output.(registerOutput)
		switch {
		case !in.write:
			return out.value == state.(string), state
		case in.from == state.(string) && (out.done || out.unknown):
			return true, in.to
		case in.from == state.(string):
			return false, state // refused although it held
		}
		return !out.done, state
	},
}

// History is what clients of stores that have their state in common did.
type History struct {
	seed    uint64
	since   time.Time
	clients sync.WaitGroup

	mu  sync.Mutex
	ids int
	all []porcupine.Operation
}

// NewHistory is one in which nothing has happened. The seed is for what clients do.
func NewHistory(seed uint64) *History { return &History{seed: seed, since: time.Now()} }

func (h *History) now() int64 { return time.Since(h.since).Nanoseconds() }

func (h *History) add(client int, called int64, in registerInput, out registerOutput) {
	o := porcupine.Operation{ClientId: client, Call: called, Return: h.now(), Input: in, Output: out}
	if out.unknown {
		o.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, o)
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
		in := registerInput{key: fmt.Sprintf("r/%d", r.IntN(3))}
		called := h.now()
		state, err := s.Fresh(context.Background())
		if err != nil {
			continue // as if it had never been
		}
		now, w := state.Get(in.key), storage.Write{Key: in.key}
		if now != nil {
			in.from, w.Expected = string(now.Value), now.Modified
		}
		h.add(id, called, in, registerOutput{value: in.from})
		if r.IntN(2) == 0 {
			continue
		}
		in.write = true
		if now == nil || r.IntN(4) > 0 {
			in.to = fmt.Sprintf("%d/%d", id, i)
			w.Value = []byte(in.to)
		}
		called = h.now()
		_, err = s.Commit(context.Background(), []storage.Write{w})
		if errors.Is(err, storage.ErrUnavailable) {
			continue
		}
		conflict := (*storage.ConflictError)(nil)
		out := registerOutput{done: err == nil, unknown: err != nil && !errors.As(err, &conflict)}
		if h.add(id, called, in, out); out.unknown {
			return
		}
	}
}

// Wait returns when the clients are done.
func (h *History) Wait() { h.clients.Wait() }

// Check fails the test if what the clients saw is not linearizable.
func (h *History) Check(t testing.TB) {
	t.Helper()
	h.Wait()
	if result := porcupine.CheckOperationsTimeout(register, h.all, 20*time.Second); result != porcupine.Ok {
		t.Fatalf("seed %d: %d operations: %v", h.seed, len(h.all), result)
	}
}
