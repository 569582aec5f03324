// Package lease grants leases of etcd that keys with similar TTLs share.
package lease

import (
	"context"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maxSlack and share limit how much longer than its TTL a key may live, so that keys can share a lease:
	// at most a minute, and at most a twentieth of the TTL.
	maxSlack = time.Minute
	share    = 20
	// maxKeys is the maximum number of keys per lease. etcd deletes all of them at once.
	maxKeys = 1000
)

// Leases are the leases granted to this process.
type Leases struct {
	granting chan struct{} // semaphore: only one lease is requested at a time

	mu   sync.Mutex
	ends map[clientv3.LeaseID]time.Time // approximate expiry of each lease
	keys map[clientv3.LeaseID]int       // number of keys of each lease that more keys may use
}

// New returns an empty set of leases.
func New() *Leases {
	return &Leases{granting: make(chan struct{}, 1), ends: map[clientv3.LeaseID]time.Time{},
		keys: map[clientv3.LeaseID]int{}}
}

// Expiry returns the approximate expiry of a lease, or the zero time for no lease. For the lease of another process
// it returns an arbitrary nonzero time, because only its existence is known.
func (l *Leases) Expiry(id clientv3.LeaseID) time.Time {
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
func (l *Leases) reuse(now time.Time, ttl time.Duration) (clientv3.LeaseID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, keys := range l.keys {
		left := l.ends[id].Sub(now)
		if left >= ttl && left <= ttl+slack(ttl)+time.Second {
			l.keys[id]++
			if keys+1 == maxKeys {
				delete(l.keys, id)
			}
			return id, true
		}
	}
	return clientv3.NoLease, false
}

// Forget makes the next keys use other leases.
func (l *Leases) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.keys)
}

// add records a new lease with one key, and removes expired ones.
func (l *Leases) add(id clientv3.LeaseID, now time.Time, ttl int64) {
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

func slack(ttl time.Duration) time.Duration { return min(maxSlack, ttl/share) }

// For returns a lease for a key with this TTL. It requests one from etcd if no earlier lease fits.
func (l *Leases) For(
	ctx context.Context, client *clientv3.Client, now time.Time, ttl time.Duration,
) (clientv3.LeaseID, error) {
	select {
	case l.granting <- struct{}{}:
		defer func() { <-l.granting }()
	case <-ctx.Done():
		return clientv3.NoLease, ctx.Err()
	}
	if id, ok := l.reuse(now, ttl); ok {
		return id, nil
	}
	resp, err := client.Grant(ctx, int64(math.Ceil((ttl + slack(ttl)).Seconds())))
	if err != nil {
		return clientv3.NoLease, err
	}
	l.add(resp.ID, now, resp.TTL)
	return resp.ID, nil
}
