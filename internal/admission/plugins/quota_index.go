package plugins

import (
	"maps"
	"strings"
	"sync/atomic"

	store "github.com/trellis-k8s/trellis/internal/storage"
)

const resourceQuotas = "/registry/resourcequotas/"

// quotaIndex holds the namespaces that have a ResourceQuota in the latest state of the store. Every write reads it.
type quotaIndex struct {
	store.Follower
	counts      atomic.Pointer[map[string]int]          // number of quotas by namespace; the map is immutable
	next        map[string]int                          // the new value of counts; nil means no change
	replaceFunc func(oldRec, newRec *store.Record) bool // holds the method replace; avoids an allocation per call
}

func newQuotaIndex(head func() *store.Snapshot) *quotaIndex {
	b := &quotaIndex{}
	b.replaceFunc = b.replace
	b.Head, b.Advance = head, b.advance
	b.counts.Store(&map[string]int{})
	return b
}

// has reports whether a namespace has a quota.
func (b *quotaIndex) has(namespace string) bool {
	b.Refresh()
	return (*b.counts.Load())[namespace] > 0
}

func (b *quotaIndex) advance(seen, head *store.Snapshot) {
	b.next = nil
	head.Since(seen, resourceQuotas)(b.replaceFunc)
	if next := b.next; next != nil {
		b.counts.Store(&next)
	}
}

func (b *quotaIndex) replace(oldRec, newRec *store.Record) bool {
	if (oldRec == nil) == (newRec == nil) {
		return true // an update, mostly of the status
	}
	if b.next == nil {
		b.next = maps.Clone(*b.counts.Load())
	}
	if newRec != nil {
		b.next[namespaceOf(newRec)]++
	} else if ns := namespaceOf(oldRec); b.next[ns] > 1 {
		b.next[ns]--
	} else {
		delete(b.next, ns)
	}
	return true
}

func namespaceOf(quota *store.Record) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(quota.Key, resourceQuotas), "/")
	return namespace
}
