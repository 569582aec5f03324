package storage

import (
	"time"

	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

// Draft is a state under construction: a snapshot, and the events applied to it so far.
type Draft struct {
	Revision int64 // revision of the newest change
	Events   []*Event
	edit     *tree.Editor[*Record]
}

// Draft returns a draft that starts from s.
func (s *Snapshot) Draft() *Draft { return &Draft{Revision: s.revision, edit: s.tree.Edit()} }

// Check returns a *ConflictError for the first guard that does not hold. If all guards hold, it does the
// same for the expected revisions of the writes.
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

// Write applies a write that Check has accepted. revision must not be lower than the revision of the draft.
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

// Add applies an event and sets its Previous. All other fields must be set.
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

// Snapshot returns the current state of the draft.
func (d *Draft) Snapshot() *Snapshot { return &Snapshot{tree: d.edit.Tree(), revision: d.Revision} }

// modified returns r.Modified, or 0 if r is nil.
func modified(r *Record) int64 {
	if r == nil {
		return 0
	}
	return r.Modified
}
