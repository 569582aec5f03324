package plugins

import (
	"maps"
	"strings"
	"sync/atomic"

	store "github.com/trellis-k8s/trellis/internal/storage"
)

const resourceQuotas = "/registry/resourcequotas/"

// bounds are the namespaces in which there is a ResourceQuota, at the head of the store: every write asks.
type bounds struct {
	store.Follower
	counts atomic.Pointer[map[string]int]   // of quotas by namespace; never modified
	next   map[string]int                   // nil: as counts
	read   func(was, is *store.Record) bool // replace, made once: nothing is allocated where nothing has changed
}

func newBounds(head func() *store.Snapshot) *bounds {
	b := &bounds{}
	b.read = b.replace
	b.Head, b.Advance = head, b.advance
	b.counts.Store(&map[string]int{})
	return b
}

// has says whether there is a quota in a namespace.
func (b *bounds) has(namespace string) bool {
	b.Refresh()
	return (*b.counts.Load())[namespace] > 0
}

func (b *bounds) advance(seen, head *store.Snapshot) {
	b.next = nil
	head.Since(seen, resourceQuotas)(b.read)
	if next := b.next; next != nil {
		b.counts.Store(&next)
	}
}

func (b *bounds) replace(was, is *store.Record) bool {
	if (was == nil) == (is == nil) {
		return true // its status, most often
	}
	if b.next == nil {
		b.next = maps.Clone(*b.counts.Load())
	}
	if is != nil {
		b.next[namespaceOf(is)]++
	} else if ns := namespaceOf(was); b.next[ns] > 1 {
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
