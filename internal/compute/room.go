package compute

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Budget bounds the memory of requests that wait: for a slot, or for the rest of their body. At the bound, the newest request of the user
// whose requests have the most memory is refused. It is safe for concurrent use.
type Budget struct {
	mu    sync.Mutex
	most  int64 // bytes
	used  int64
	users map[string]*occupant
}

// occupant is a user with requests in a Room.
type occupant struct {
	name   string
	memory int64
	stays  []*Reservation // the oldest first
}

// Reservation is the time that one request spends in a Room.
type Reservation struct {
	room   *Budget
	of     *occupant
	memory int64
	refuse func()
	over   bool
}

// NewBudget returns a Room for a number of bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most, users: map[string]*occupant{}} }

// Reserve adds a request of a user, which has no memory yet. refuse is called at most once, by any goroutine, if the request has to leave.
func (r *Budget) Reserve(user string, refuse func()) *Reservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.users[user]
	if o == nil {
		o = &occupant{name: user}
		r.users[user] = o
	}
	s := &Reservation{room: r, of: o, refuse: refuse}
	o.stays = append(o.stays, s)
	return s
}

// Resize sets the memory of the request in bytes. It refuses requests, which may include this one, until the rest fits.
func (s *Reservation) Resize(memory int64) {
	r := s.room
	r.mu.Lock()
	var refused []*Reservation
	if !s.over {
		r.add(s, memory-s.memory)
		for r.used > r.most {
			refused = append(refused, r.evict())
		}
	}
	r.mu.Unlock()
	for _, other := range refused {
		other.refuse()
	}
}

// Release removes the request. A second call does nothing.
func (s *Reservation) Release() {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.room.remove(s)
}

func (r *Budget) add(s *Reservation, n int64) {
	s.memory += n
	s.of.memory += n
	r.used += n
}

// evict removes the newest request with memory of the user with the most memory. There is one, because memory is in use.
func (r *Budget) evict() *Reservation {
	largest := slices.MaxFunc(slices.Collect(maps.Values(r.users)), func(a, b *occupant) int { return cmp.Compare(a.memory, b.memory) })
	i := len(largest.stays) - 1
	for largest.stays[i].memory == 0 {
		i--
	}
	s := largest.stays[i]
	r.remove(s)
	return s
}

func (r *Budget) remove(s *Reservation) {
	if s.over {
		return
	}
	s.over = true
	r.add(s, -s.memory)
	o := s.of
	if i := slices.Index(o.stays, s); i >= 0 {
		o.stays = slices.Delete(o.stays, i, i+1)
	}
	if len(o.stays) == 0 {
		delete(r.users, o.name)
	}
}
