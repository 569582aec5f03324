package compute

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Budget limits the memory of waiting requests. They wait for a slot or for the rest of their body. When the limit
// is exceeded, Budget rejects the newest request of the user with the most memory. Budget is safe for concurrent
// use.
type Budget struct {
	mu    sync.Mutex
	limit int64 // bytes
	used  int64
	users map[string]*userReservations
}

// userReservations holds the reservations of one user.
type userReservations struct {
	name         string
	memory       int64
	reservations []*Reservation // oldest first
}

// Reservation is the memory that one request has reserved in a Budget.
type Reservation struct {
	budget   *Budget
	user     *userReservations
	memory   int64
	reject   func()
	released bool
}

// NewBudget returns a Budget of limit bytes.
func NewBudget(limit int64) *Budget {
	return &Budget{limit: limit, users: map[string]*userReservations{}}
}

// Reserve adds a reservation of 0 bytes for a request of user. If the request must stop waiting, the Budget calls
// the function reject once, from any goroutine.
func (b *Budget) Reserve(user string, reject func()) *Reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.users[user]
	if u == nil {
		u = &userReservations{name: user}
		b.users[user] = u
	}
	r := &Reservation{budget: b, user: u, reject: reject}
	u.reservations = append(u.reservations, r)
	return r
}

// Resize sets the size of the reservation in bytes. It rejects requests until the remaining ones fit. The request
// of this reservation may be among the rejected ones.
func (r *Reservation) Resize(memory int64) {
	b := r.budget
	b.mu.Lock()
	var evicted []*Reservation
	if !r.released {
		b.add(r, memory-r.memory)
		for b.used > b.limit {
			evicted = append(evicted, b.evict())
		}
	}
	b.mu.Unlock()
	for _, other := range evicted {
		other.reject()
	}
}

// Release removes the reservation. A second call does nothing.
func (r *Reservation) Release() {
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.budget.remove(r)
}

func (b *Budget) add(r *Reservation, n int64) {
	r.memory += n
	r.user.memory += n
	b.used += n
}

// evict removes the newest non-empty reservation of the user with the most memory. The caller ensures that memory
// is in use.
func (b *Budget) evict() *Reservation {
	largest := slices.MaxFunc(slices.Collect(maps.Values(b.users)), func(x, y *userReservations) int {
		return cmp.Compare(x.memory, y.memory)
	})
	i := len(largest.reservations) - 1
	for largest.reservations[i].memory == 0 {
		i--
	}
	r := largest.reservations[i]
	b.remove(r)
	return r
}

func (b *Budget) remove(r *Reservation) {
	if r.released {
		return
	}
	r.released = true
	b.add(r, -r.memory)
	u := r.user
	if i := slices.Index(u.reservations, r); i >= 0 {
		u.reservations = slices.Delete(u.reservations, i, i+1)
	}
	if len(u.reservations) == 0 {
		delete(b.users, u.name)
	}
}
