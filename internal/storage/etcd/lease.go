package etcd

import (
	"context"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// leaseSlack and leaseShare are how much longer than asked for a key may live, so that one lease does for
	// many: at most a minute, and at most a twentieth.
	leaseSlack = time.Minute
	leaseShare = 20
	// leaseKeys is how many keys one lease has at most: they all go at once.
	leaseKeys = 1000
)

// leases are those that this process has been granted.
type leases struct {
	turn chan struct{} // has the one who may ask for one

	mu   sync.Mutex
	ends map[clientv3.LeaseID]time.Time // about
	last clientv3.LeaseID
	keys int // of last
}

func newLeases() leases {
	return leases{turn: make(chan struct{}, 1), ends: map[clientv3.LeaseID]time.Time{}}
}

// end is about when a lease ends; the zero time for none. Of a lease that another process was granted nothing is known
// but that it ends.
func (l *leases) end(id clientv3.LeaseID) time.Time {
	if id == clientv3.NoLease {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.ends[id]; ok {
		return at
	}
	return time.Unix(1, 0)
}

// use takes the last lease for one more key that is to live for ttl.
func (l *leases) use(now time.Time, ttl time.Duration) (clientv3.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.ends[l.last].Sub(now)
	if l.last == clientv3.NoLease || l.keys >= leaseKeys || left < ttl || left > ttl+slack(ttl)+time.Second {
		return clientv3.NoLease, false
	}
	l.keys++
	return l.last, true
}

// granted notes a new lease, and forgets those that are over.
func (l *leases) granted(id clientv3.LeaseID, now time.Time, ttl int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range l.ends {
		if at.Before(now) {
			delete(l.ends, id)
		}
	}
	l.ends[id] = now.Add(time.Duration(ttl) * time.Second)
	l.last, l.keys = id, 1
}

func slack(ttl time.Duration) time.Duration { return min(leaseSlack, ttl/leaseShare) }

// lease returns one for a key that is to live for ttl.
func (s *Store) lease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	select {
	case s.leases.turn <- struct{}{}:
		defer func() { <-s.leases.turn }()
	case <-ctx.Done():
		return clientv3.NoLease, ctx.Err()
	}
	now := s.options.Now()
	if id, ok := s.leases.use(now, ttl); ok {
		return id, nil
	}
	resp, err := s.client.Grant(ctx, int64(math.Ceil((ttl + slack(ttl)).Seconds())))
	if err != nil {
		return clientv3.NoLease, err
	}
	s.leases.granted(resp.ID, now, resp.TTL)
	return resp.ID, nil
}
