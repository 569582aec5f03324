package control

import "sync"

// waiting is a set of names that something is waited for; its zero value is empty.
type waiting struct{ names sync.Map }

func (w *waiting) add(name string)      { w.names.Store(name, true) }
func (w *waiting) remove(name string)   { w.names.Delete(name) }
func (w *waiting) has(name string) bool { _, ok := w.names.Load(name); return ok }
