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

// TestUsersTakeTurns checks that slots are granted to the users round-robin. The number and the order of their
// requests do not matter.
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
			t.Errorf("got order %v, want %v", order, want)
		}
	})
}

// TestWaitingMemoryLimit checks that a Budget above its limit rejects the newest request of the user with the most
// memory. The request of another user continues to wait.
func TestWaitingMemoryLimit(t *testing.T) {
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
		wait("a3", "a", 40) // above the limit
		wait("b1", "b", 60) // evicts a2
		first.Release()
		for name, want := range map[string]error{"a1": nil, "a2": ErrTooMany, "a3": ErrTooMany, "b1": nil} {
			if err := <-results[name]; !errors.Is(err, want) {
				t.Errorf("%s: got error %v, want %v", name, err, want)
			}
		}
	})
}

// TestPause checks that another request can compute while a request is paused. The paused request resumes after the
// other request and is not rejected. Goroutines that pause at the same time share the slot.
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

// TestSlotsUnderLoad checks that concurrent requests never compute in more goroutines than there are slots, and
// that all slots are free at the end.
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
	if s.free != slots || len(s.waiting) != 0 || s.budget.used != 0 || len(s.budget.users) != 0 {
		t.Errorf("got %d free slots, %d waiting users, %d bytes of %d users; want %d free slots and no others",
			s.free, len(s.waiting), s.budget.used, len(s.budget.users), slots)
	}
}

// TestBudget checks that a Budget rejects the newest requests of the user with the most memory until the remaining
// requests fit. It also checks that a Budget drops released reservations.
func TestBudget(t *testing.T) {
	b := NewBudget(100)
	var rejected []string
	reserve := func(user, name string, memory int64) *Reservation {
		r := b.Reserve(user, func() { rejected = append(rejected, name) })
		r.Resize(memory)
		return r
	}
	a1, a2, b1 := reserve("a", "a1", 40), reserve("a", "a2", 0), reserve("b", "b1", 50)
	a2.Resize(5)
	b1.Resize(60) // 105 bytes in total: b has the most
	if want := []string{"b1"}; !slices.Equal(rejected, want) {
		t.Errorf("got rejected requests %v, want %v", rejected, want)
	}
	b1.Resize(90) // no effect, since b1 is already rejected
	reserve("c", "c1", 55)
	a1.Resize(60) // 120 bytes in total: a has the most, and a2 is its newest request
	if want := []string{"b1", "a2", "a1"}; !slices.Equal(rejected, want) {
		t.Errorf("got rejected requests %v, want %v", rejected, want)
	}
	a1.Release()
	for _, r := range []*Reservation{a2, b1} {
		r.Release()
	}
	if b.used != 55 || len(b.users) != 1 {
		t.Errorf("got %d bytes of %d users, want 55 bytes of 1 user", b.used, len(b.users))
	}
}
