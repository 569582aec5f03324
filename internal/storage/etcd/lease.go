package etcd

import (
	"context"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// leaseSlack and leaseShare limit how much longer than its TTL a key may live, so that keys can share a lease:
	// at most a minute, and at most a twentieth of the TTL.
	leaseSlack = time.Minute
	leaseShare = 20
	// leaseKeys is the maximum number of keys per lease. etcd deletes all of them at once.
	leaseKeys = 1000
)

// leases are the leases granted to this process.
type leases struct {
	granting chan struct{} // semaphore: only one lease is requested at a time

	mu   sync.Mutex
	ends map[clientv3.LeaseID]time.Time // approximate expiry of each lease
	keys map[clientv3.LeaseID]int       // number of keys of each lease that more keys may use
}

func newLeases() leases {
	return leases{granting: make(chan struct{}, 1), ends: map[clientv3.LeaseID]time.Time{},
		keys: map[clientv3.LeaseID]int{}}
}

// expiry returns the approximate expiry of a lease, or the zero time for no lease. For the lease of another process
// it returns an arbitrary nonzero time, because only its existence is known.
func (l *leases) expiry(id clientv3.LeaseID) time.Time {
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

// reuse returns a lease that one more key with this TTL can use.
func (l *leases) reuse(now time.Time, ttl time.Duration) (clientv3.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, keys := range l.keys {
		left := l.ends[id].Sub(now)
		if left >= ttl && left <= ttl+slack(ttl)+time.Second {
			if l.keys[id]++; keys+1 == leaseKeys {
				delete(l.keys, id)
			}
			return id, true
		}
	}
	return clientv3.NoLease, false
}

// forget makes the next keys use other leases.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.keys)
}

// add records a new lease with one key, and removes expired ones.
func (l *leases) add(id clientv3.LeaseID, now time.Time, ttl int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range l.ends {
		if at.Before(now) {
			delete(l.ends, id)
			delete(l.keys, id)
		}
	}
	l.ends[id] = now.Add(time.Duration(ttl) * time.Second)
	l.keys[id] = 1
}

func slack(ttl time.Duration) time.Duration { return min(leaseSlack, ttl/leaseShare) }

// lease returns a lease for a key with this TTL.
func (s *Store) lease(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	select {
	case s.leases.granting <- struct{}{}:
		defer func() { <-s.leases.granting }()
	case <-ctx.Done():
		return clientv3.NoLease, ctx.Err()
	}
	now := s.options.Now()
	if id, ok := s.leases.reuse(now, ttl); ok {
		return id, nil
	}
	resp, err := s.client.Grant(ctx, int64(math.Ceil((ttl + slack(ttl)).Seconds())))
	if err != nil {
		return clientv3.NoLease, err
	}
	s.leases.add(resp.ID, now, resp.TTL)
	return resp.ID, nil
}
