// Package trace records the steps of a write and the changes that each step makes to the object.
package trace

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Trace records the steps of a write's last attempt. To trace a write, set Caller.Trace to an empty Trace.
type Trace struct {
	// Sent is the object as the client sent it. The changes of the first step are the differences from Sent, so
	// they include defaults. If Sent is nil, they are the differences from the live object.
	Sent  object.Tree `json:"-"`
	Steps []*Step     `json:"steps"`

	seen     object.Tree      // the object at the end of the last step
	reported map[string][]any // values that nested steps have already reported, by field
	open     []*Step          // started steps, the innermost last
	cost     int64            // CEL cost since the end of the last step
}

// Step is a stage of a write, an admission plugin within a stage, or a webhook or policy within a plugin.
type Step struct {
	Name    string        `json:"name"`
	Depth   int           `json:"depth"` // 0 for a stage
	Took    time.Duration `json:"took"`  // in nanoseconds
	Changes []Change      `json:"changes,omitempty"`
	Cost    int64         `json:"cost,omitempty"`    // of the schema's CEL rules, in CEL's cost units
	Refused string        `json:"refused,omitempty"` // the error that ended the write
}

// Change is one field that a step has changed. A nil Before or After means that the field is absent.
type Change struct {
	Field  string `json:"field"`
	Before any    `json:"before,omitempty"`
	After  any    `json:"after,omitempty"`
}

// Begin discards the steps of an attempt that has ended in a conflict. For a write to /scale, the changes of the
// first step are the differences from the live object. The caller may not be allowed to read the rest of the
// object.
func (t *Trace) Begin(scale bool) {
	if t == nil {
		return
	}
	if t.Steps, t.open, t.reported, t.seen = nil, nil, nil, t.Sent; scale {
		t.seen = nil
	}
}

// Start starts a step. The caller ends the step with a call of the function end. Its parameter current is the object
// at the end of the step, or nil. If the object of no earlier step is known, or if the first step is a patch, the
// changes are the differences from live.
func (t *Trace) Start(name string) (end func(err error, current, live object.Tree, patch bool)) {
	s, started := &Step{Name: name, Depth: len(t.open)}, time.Now()
	t.Steps, t.open = append(t.Steps, s), append(t.open, s)
	return func(err error, current, live object.Tree, patch bool) {
		s.Took = time.Since(started)
		t.open, s.Cost, t.cost = t.open[:s.Depth], t.cost, 0
		if err != nil {
			s.Refused = err.Error()
			return
		}
		if current != nil {
			before := t.seen
			if len(t.Steps) == 1 && patch && live != nil || before == nil { // a patch applies to the live object
				before = live
			}
			t.seen = object.Copy(current)
			s.Changes = slices.DeleteFunc(differences(nil, "", before, t.seen), t.wasReported)
		}
		t.reported = nil
	}
}

// CountCost returns a context in which the costs of the schema's CEL rules count for the current step.
func (t *Trace) CountCost(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	return cel.CountCost(ctx, &t.cost)
}

// wasReported reports whether a nested step has already reported a change.
func (t *Trace) wasReported(c Change) bool {
	return slices.ContainsFunc(t.reported[c.Field], func(after any) bool { return reflect.DeepEqual(after, c.After) })
}

// Add adds a finished step. If after is nil, the step has changed nothing.
func (t *Trace) Add(name string, took time.Duration, err error, before, after object.Tree) {
	if t == nil {
		return
	}
	s := &Step{Name: name, Depth: len(t.open), Took: took}
	if err != nil {
		s.Refused = err.Error()
	}
	if after != nil {
		s.Changes = differences(nil, "", before, after)
		if t.reported == nil {
			t.reported = map[string][]any{}
		}
		for _, c := range s.Changes {
			t.reported[c.Field] = append(t.reported[c.Field], c.After)
		}
	}
	t.Steps = append(t.Steps, s)
}

// differences appends to all the fields in which two parts of an object differ. It compares lists of different
// lengths as a whole.
func differences(all []Change, field string, before, after any) []Change {
	switch after := after.(type) {
	case object.Tree:
		before, _ := before.(object.Tree)
		if field != "" && before == nil {
			break
		}
		keys := maps.Clone(after)
		maps.Copy(keys, before)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if key != "managedFields" || field != "metadata" {
				all = differences(all, joinPath(field, key), before[key], after[key])
			}
		}
		return all
	case []any:
		before, _ := before.([]any)
		if len(before) != len(after) {
			break
		}
		for i := range after {
			all = differences(all, field+"["+strconv.Itoa(i)+"]", before[i], after[i])
		}
		return all
	}
	if reflect.DeepEqual(before, after) {
		return all
	}
	return append(all, Change{field, before, after})
}

func joinPath(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}
