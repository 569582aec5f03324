package embedded

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
	"github.com/cockroachdb/pebble/v2/vfs"

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

// client runs operations against a store until it fails or n are done.
func client(s *Store, id, n int, r *rand.Rand, since time.Time, add func(porcupine.Operation)) {
	for i := range n {
		in := registerInput{key: fmt.Sprintf("r/%d", r.IntN(3)), write: r.IntN(2) == 0}
		o := porcupine.Operation{ClientId: id, Call: time.Since(since).Nanoseconds()}
		now := s.Head().Get(in.key)
		if now != nil {
			in.from = string(now.Value)
		}
		out := registerOutput{value: in.from}
		if in.write {
			// The read above is an operation of its own.
			add(porcupine.Operation{
				ClientId: id, Call: o.Call, Return: time.Since(since).Nanoseconds(),
				Input: registerInput{key: in.key}, Output: out,
			})
			o.Call = time.Since(since).Nanoseconds()
			write := storage.Write{Key: in.key}
			if now != nil {
				write.Expected = now.Modified
			}
			if now == nil || r.IntN(4) > 0 {
				in.to = fmt.Sprintf("%d/%d/%d", id, i, o.Call)
				write.Value = []byte(in.to)
			}
			_, err := s.Commit(context.Background(), []storage.Write{write})
			if errors.Is(err, storage.ErrUnavailable) {
				continue // as if it had never been
			}
			conflict := (*storage.ConflictError)(nil)
			out = registerOutput{done: err == nil, unknown: err != nil && !errors.As(err, &conflict)}
		}
		o.Return = time.Since(since).Nanoseconds()
		if out.unknown {
			o.Return = math.MaxInt64
		}
		o.Input, o.Output = in, out
		add(o)
		if out.unknown {
			return
		}
	}
}

// Reads and writes of many clients, through a disk that fails for a while or for good, a
// crash and a restart, are linearizable (CRD-053, CRD-071).
func TestLinearizable(t *testing.T) {
	for seed := range uint64(iterations(25)) {
		r := rand.New(rand.NewPCG(seed, 5))
		disk := vfs.NewCrashableMem()
		fs := &faultFS{FS: disk}
		fs.sticky.Store(true)
		fs.failAt.Store(40 + r.Int64N(400))
		heals, enough, tries := r.IntN(2) == 0, make(chan time.Time), 0
		pause := func(d time.Duration) <-chan time.Time {
			if d == lookEvery {
				return nil
			}
			switch tries++; {
			case tries > 2 && heals:
				fs.failAt.Store(0)
			case tries == 3:
				close(enough) // whoever waits is told that it is not known
				return nil
			}
			now := make(chan time.Time)
			close(now)
			return now
		}
		since := time.Now()
		var mu sync.Mutex
		var all []porcupine.Operation
		add := func(o porcupine.Operation) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, o)
		}
		ids := 0
		for _, place := range []vfs.FS{fs, nil} {
			if place == nil {
				place = crash(t, disk, 50, r)
			}
			o := crashOptions(place)
			o.pause, o.patience = pause, func() <-chan time.Time { return enough }
			if place != vfs.FS(fs) {
				o.pause, o.patience = nil, nil
			}
			s, err := Open(o)
			if place == vfs.FS(fs) && errors.Is(err, errDisk) {
				continue // the disk did not last that long
			}
			if err != nil {
				t.Fatal(err)
			}
			var clients sync.WaitGroup
			for range 4 {
				ids++
				id, r := ids, rand.New(rand.NewPCG(seed, uint64(ids)))
				clients.Go(func() { client(s, id, 30, r, since, add) })
			}
			clients.Wait()
			s.Close()
		}
		if result := porcupine.CheckOperationsTimeout(register, all, 20*time.Second); result != porcupine.Ok {
			t.Fatalf("seed %d: %d operations: %v", seed, len(all), result)
		}
	}
}
