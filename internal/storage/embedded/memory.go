package embedded

import (
	"context"
	"strings"
	"sync"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// memory is a log in memory. Close discards it.
type memory struct {
	mu     sync.Mutex
	events []*storage.Event // all events after extent.oldest, without gaps
	extent logstore.Extent
}

func newMemory() *memory {
	return &memory{extent: logstore.Extent{Revision: format.FirstRevision, Oldest: format.FirstRevision}}
}

// Load implements log. A new log is empty.
func (m *memory) Load(func(*storage.Record) error) (logstore.Extent, error) { return m.extent, nil }

// Append implements log.
func (m *memory) Append(_ context.Context, events []*storage.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, events...)
	for _, e := range events {
		m.extent.Bytes += e.HistoryCost()
	}
	m.extent.Revision += int64(len(events))
	return nil
}

// between returns the events in (after, until].
func (m *memory) between(after, until int64) ([]*storage.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if oldest := m.extent.Oldest; after < oldest {
		return nil, &storage.CompactedError{Requested: after, Oldest: oldest}
	}
	return m.events[after-m.extent.Oldest : until-m.extent.Oldest], nil
}

// Replay implements storage.HistoryReader.
func (m *memory) Replay(_ context.Context, prefix string, after, until int64) ([]*storage.Event, int64, error) {
	until = min(until, after+engine.ReplayRevisions)
	all, err := m.between(after, until)
	if err != nil {
		return nil, after, err
	}
	var events []*storage.Event
	for _, e := range all {
		if strings.HasPrefix(e.Key, prefix) {
			events = append(events, e)
		}
	}
	return events, until, nil
}

// ReadAt implements storage.HistoryReader. The state of a key at target is the Previous of the first later event
// that changed the key.
func (m *memory) ReadAt(
	_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	events, err := m.between(target, base.Revision())
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, e := range events {
		if !seen[e.Key] {
			seen[e.Key] = true
			put(e.Key, e.Previous)
		}
	}
	return nil
}

// Compact implements log.
func (m *memory) Compact(revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := revision - m.extent.Oldest
	if n <= 0 {
		return nil
	}
	for _, e := range m.events[:n] {
		m.extent.Bytes -= e.HistoryCost()
	}
	m.events = append([]*storage.Event(nil), m.events[n:]...) // readers may still hold the old array
	m.extent.Oldest = revision
	return nil
}

// Close implements log.
func (m *memory) Close() error { return nil }
