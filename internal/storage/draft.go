package storage

import (
	"time"

	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

// Draft is the state that follows a snapshot, with the events that lead there.
type Draft struct {
	Revision int64 // of the newest change
	Events   []*Event
	edit     *tree.Editor[*Record]
}

// Draft starts one.
func (s *Snapshot) Draft() *Draft { return &Draft{Revision: s.revision, edit: s.tree.Edit()} }

// Check returns a *ConflictError unless all guards, and then all writes, may be carried out.
func (d *Draft) Check(writes []Write, guards []Guard) error {
	for i := range guards {
		if err := d.guard(&guards[i]); err != nil {
			return err
		}
	}
	for i := range writes {
		w := &writes[i]
		current, _ := d.edit.Get(w.Key)
		if modified(current) != w.Expected {
			return &ConflictError{Key: w.Key, Current: current, Revision: d.Revision}
		}
	}
	return nil
}

func (d *Draft) guard(g *Guard) error {
	var current *Record
	holds := false
	if g.Prefix {
		var newest int64
		current, newest = d.edit.Newest(g.Key)
		holds = newest <= g.Revision
	} else {
		current, _ = d.edit.Get(g.Key)
		holds = modified(current) == g.Revision
	}
	if holds {
		return nil
	}
	return &ConflictError{Key: g.Key, Guard: true, Current: current, Revision: d.Revision}
}

// Write carries out a write that has been checked, at a revision that is not older than the draft's.
func (d *Draft) Write(w *Write, revision int64, expires time.Time) *Event {
	e := &Event{Revision: revision, Key: w.Key}
	if w.Value != nil {
		e.Record = &Record{Key: w.Key, Value: w.Value, Created: revision, Modified: revision, Expires: expires}
		if w.Derived != nil {
			e.Record.Derived.Store(w.Derived)
		}
	}
	d.Add(e)
	if e.Record != nil && e.Previous != nil {
		e.Record.Created = e.Previous.Created
	}
	return e
}

// Add carries out a change that lacks nothing but Previous.
func (d *Draft) Add(e *Event) {
	d.Revision = e.Revision
	d.Events = append(d.Events, e)
	e.Previous, _ = d.edit.Get(e.Key)
	if e.Record == nil {
		d.edit.Delete(e.Key)
		return
	}
	d.edit.Put(e.Key, e.Revision, e.Record)
}

// Snapshot is the state so far.
func (d *Draft) Snapshot() *Snapshot { return &Snapshot{tree: d.edit.Tree(), revision: d.Revision} }

// modified is the revision of r, 0 for nil.
func modified(r *Record) int64 {
	if r == nil {
		return 0
	}
	return r.Modified
}
