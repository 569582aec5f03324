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
	last clientv3.LeaseID
	keys int // number of keys of last
}

func newLeases() leases {
	return leases{granting: make(chan struct{}, 1), ends: map[clientv3.LeaseID]time.Time{}}
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

// reuse returns the last lease if one more key with this TTL can use it.
func (l *leases) reuse(now time.Time, ttl time.Duration) (clientv3.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.ends[l.last].Sub(now)
	if l.last == clientv3.NoLease || l.keys >= leaseKeys || left < ttl || left > ttl+slack(ttl)+time.Second {
		return clientv3.NoLease, false
	}
	l.keys++
	return l.last, true
}

// forget makes the next key use another lease.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = clientv3.NoLease
}

// add records a new lease with one key, and removes expired ones.
func (l *leases) add(id clientv3.LeaseID, now time.Time, ttl int64) {
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
