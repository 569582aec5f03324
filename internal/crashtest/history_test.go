package crashtest_test

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one request for one key, as its client observed it.
type operation struct {
	client   int
	key      string
	write    bool
	value    string // written or read value; "" means that the key does not exist
	revision int64  // revision in the response to an acknowledged write
	call     int64
	end      int64 // math.MaxInt64 means that there was no response
}

// history collects the operations of all clients between two crashes.
type history struct {
	mu   sync.Mutex
	ops  []operation
	zero time.Time
}

func newHistory() *history { return &history{zero: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.zero)) }

func (h *history) add(op operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

func (h *history) writes() (acknowledged, invoked map[string]operation) {
	acknowledged, invoked = map[string]operation{}, map[string]operation{}
	for _, op := range h.ops {
		if !op.write {
			continue
		}
		invoked[op.value] = op
		if op.end != math.MaxInt64 {
			acknowledged[op.value] = op
		}
	}
	return acknowledged, invoked
}

// check returns an error unless the operations on each key are linearizable.
func (h *history) check(before map[string]string) error {
	byKey := map[string][]porcupine.Operation{}
	for _, op := range h.ops {
		byKey[op.key] = append(byKey[op.key], porcupine.Operation{
			ClientId: op.client, Input: op, Call: op.call, Output: op, Return: op.end,
		})
	}
	for key, ops := range byKey {
		model := porcupine.Model{
			Init: func() any { return before[key] },
			Step: func(state, input, _ any) (bool, any) {
				op := input.(operation)
				if op.write {
					return true, op.value
				}
				return state.(string) == op.value, state
			},
		}
		if !porcupine.CheckOperations(model, ops) {
			return fmt.Errorf("the history of %s is not linearizable: %+v", key, ops)
		}
	}
	return nil
}
