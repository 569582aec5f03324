package storagetest

import (
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

// A register operation: a read, or a write that replaces one value by another.
// Values are unique; "" means that the key does not exist.
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

// history is what clients did.
type history struct {
	mu    sync.Mutex
	since time.Time
	all   []porcupine.Operation
}

func (h *history) now() int64 { return time.Since(h.since).Nanoseconds() }

func (h *history) add(client int, called int64, in registerInput, out registerOutput) {
	o := porcupine.Operation{ClientId: client, Call: called, Return: h.now(), Input: in, Output: out}
	if out.unknown {
		o.Return = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, o)
}

// client reads by Fresh and writes, n times, or until it does not know what has become of a write.
func (h *history) client(t *testing.T, s storage.Store, id, n int, r *rand.Rand) {
	for i := range n {
		in := registerInput{key: fmt.Sprintf("r/%d", r.IntN(3))}
		called := h.now()
		state, err := s.Fresh(t.Context())
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
		_, err = s.Commit(t.Context(), []storage.Write{w})
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

func (h *history) check(t *testing.T) {
	t.Helper()
	if result := porcupine.CheckOperationsTimeout(register, h.all, 20*time.Second); result != porcupine.Ok {
		t.Fatalf("%d operations: %v", len(h.all), result)
	}
}

// Reads and writes of clients of several stores are linearizable (CRD-053).
func testLinearizable(t *testing.T, p place) {
	h := history{since: time.Now()}
	var clients sync.WaitGroup
	for id := range 5 {
		s, r := p.open(t), rand.New(rand.NewPCG(2, uint64(id)))
		clients.Go(func() { h.client(t, s, id, 40, r) })
	}
	clients.Wait()
	h.check(t)
}

// So they are where answers are lost.
func TestLostAnswers(t *testing.T) {
	for seed := range uint64(30) {
		l, random := NewLog(seed), rand.New(rand.NewPCG(seed, 4))
		l.Loses = func() (before, after bool) { return random.IntN(20) == 0, random.IntN(20) == 0 }
		h := history{since: time.Now()}
		var clients sync.WaitGroup
		for id := range 8 {
			s, r := closing(t, l.Open()), rand.New(rand.NewPCG(seed, uint64(id)))
			clients.Go(func() { h.client(t, s, id, 30, r) })
		}
		clients.Wait()
		h.check(t)
	}
}
