package compute

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Users take turns, whatever the number and the order of their requests.
func TestUsersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1, NewBudget(1<<30))
		first := s.For("a")
		if !first.TryAcquire() {
			t.Fatal("no slot")
		}
		var mu sync.Mutex
		var order []string
		for _, user := range []string{"a", "a", "a", "b", "b", "c"} {
			go func() {
				slot := s.For(user)
				if err := slot.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				slot.Release()
			}()
			synctest.Wait()
		}
		first.Release()
		synctest.Wait()
		if want := []string{"a", "b", "c", "a", "b", "a"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
	})
}

// At the bound of memory, the newest request of the user with the most memory is refused; another user's request still waits.
func TestBoundOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1, NewBudget(100))
		first := s.For("a")
		first.TryAcquire()
		results := map[string]chan error{}
		wait := func(name, user string, memory int64) {
			result := make(chan error, 1)
			results[name] = result
			go func() {
				slot := s.For(user)
				result <- slot.Acquire(t.Context(), memory)
				slot.Release()
			}()
			synctest.Wait()
		}
		wait("a1", "a", 40)
		wait("a2", "a", 40)
		wait("a3", "a", 40) // beyond the bound
		wait("b1", "b", 60) // takes the place of a2
		first.Release()
		for name, want := range map[string]error{"a1": nil, "a2": ErrTooMany, "a3": ErrTooMany, "b1": nil} {
			if err := <-results[name]; !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	})
}

// A request that pauses lets another one compute, goes on when that is done, and is not refused; goroutines that pause at the same time
// share the slot.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(1, NewBudget(0))
		slot, other := s.For("a"), s.For("b")
		slot.TryAcquire()
		ctx := slot.Context(t.Context())
		resume, again := Pause(ctx), Pause(ctx)
		if !other.TryAcquire() {
			t.Fatal("a pause keeps the slot")
		}
		resume()
		resumed := make(chan struct{})
		go func() { again(); close(resumed) }()
		synctest.Wait()
		select {
		case <-resumed:
			t.Fatal("two requests compute")
		default:
		}
		other.Release()
		<-resumed
		if other.TryAcquire() {
			t.Fatal("two requests compute")
		}
		slow := slot.PauseAfter(ctx, time.Second)
		<-time.After(2 * time.Second)
		if !other.TryAcquire() {
			t.Fatal("a pause keeps the slot")
		}
		other.Release()
		slow()
		slot.Release()
		slot.Release()
		if s.free != 1 {
			t.Errorf("%d slots are free", s.free)
		}
	})
}

// Whatever requests do at the same time, no more of them compute than there are slots, and all slots are free in the end.
func TestSlotsUnderLoad(t *testing.T) {
	const slots = 3
	s := NewSlots(slots, NewBudget(50))
	var computing atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Microsecond)
				slot := s.For(string(rune('a' + i%5)))
				if slot.Acquire(ctx, 10) == nil {
					if n := computing.Add(1); n > slots {
						t.Errorf("%d requests compute", n)
					}
					computing.Add(-1)
					var pauses sync.WaitGroup
					for range rand.IntN(3) {
						pauses.Go(func() { defer slot.Pause(ctx)() })
					}
					pauses.Wait()
				}
				slot.Release()
				cancel()
			}
		})
	}
	all.Wait()
	if s.free != slots || len(s.waiting) != 0 || s.room.used != 0 || len(s.room.users) != 0 {
		t.Errorf("free %d, waiting %d, memory %d of %d users", s.free, len(s.waiting), s.room.used, len(s.room.users))
	}
}

// A Room refuses the newest requests of the user with the most memory until the others fit, and forgets the requests that leave.
func TestRoom(t *testing.T) {
	r := NewBudget(100)
	var refused []string
	enter := func(user, name string, memory int64) *Reservation {
		s := r.Reserve(user, func() { refused = append(refused, name) })
		s.Resize(memory)
		return s
	}
	a1, a2, b1 := enter("a", "a1", 40), enter("a", "a2", 0), enter("b", "b1", 50)
	a2.Resize(5)
	b1.Resize(60) // 105: b has the most
	if !slices.Equal(refused, []string{"b1"}) {
		t.Errorf("%v", refused)
	}
	b1.Resize(90) // it is refused already
	enter("c", "c1", 55)
	a1.Resize(60) // 120: a has the most, and a2 is the newest
	if !slices.Equal(refused, []string{"b1", "a2", "a1"}) {
		t.Errorf("%v", refused)
	}
	a1.Release()
	for _, s := range []*Reservation{a2, b1} {
		s.Release()
	}
	if r.used != 55 || len(r.users) != 1 {
		t.Errorf("%d bytes of %d users", r.used, len(r.users))
	}
}
