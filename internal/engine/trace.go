package engine

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Trace is what each step of a write has done, of the last attempt. Who wants one gives a Caller an empty one.
type Trace struct {
	// Sent is the object that was sent, as it was sent: what is in the first step besides was filled in. nil: the changes begin with
	// the live object.
	Sent  object.Tree `json:"-"`
	Steps []*Step     `json:"steps"`

	seen     object.Tree      // the object, as the last step that ended has left it
	reported map[string][]any // values of fields, as steps within those that are open have set them
	open     []*Step          // innermost last
	cost     int64            // of the rules, since the last step ended
}

// Step is a stage of a write, or within a stage an admission plugin, or within that what it has asked.
type Step struct {
	Name    string        `json:"name"`
	Depth   int           `json:"depth"` // 0 for a stage
	Took    time.Duration `json:"took"`  // in nanoseconds
	Changes []Change      `json:"changes,omitempty"`
	Cost    int64         `json:"cost,omitempty"`    // of the rules of a schema, in CEL's units
	Refused string        `json:"refused,omitempty"` // why the write ends here
}

// Change is one field that a step has changed. A field that is absent before or after has no value there.
type Change struct {
	Field  string `json:"field"`
	Before any    `json:"before,omitempty"`
	After  any    `json:"after,omitempty"`
}

// begin forgets an attempt that was overtaken. A Scale is sent for an object of which its caller may see no more: so the changes
// of a scale begin with the live object.
func (t *Trace) begin(scale bool) {
	if t == nil {
		return
	}
	if t.Steps, t.open, t.reported, t.seen = nil, nil, nil, t.Sent; scale {
		t.seen = nil
	}
}

// step begins a step of the write; the function that it returns ends it.
func (w *write) step(name string) (end func(error)) {
	t := w.caller.Trace
	if t == nil {
		return untraced
	}
	s, began := &Step{Name: name, Depth: len(t.open)}, time.Now()
	t.Steps, t.open = append(t.Steps, s), append(t.open, s)
	return func(err error) {
		s.Took = time.Since(began)
		t.open, s.Cost, t.cost = t.open[:s.Depth], t.cost, 0
		if err != nil {
			s.Refused = err.Error()
			return
		}
		s.Changes = slices.DeleteFunc(t.changesSinceLast(w), t.wasReported)
		t.reported = nil
	}
}

// wasReported is whether a change has been told of before.
func (t *Trace) wasReported(c Change) bool {
	return slices.ContainsFunc(t.reported[c.Field], func(after any) bool { return reflect.DeepEqual(after, c.After) })
}

func untraced(error) {}

// addStep adds a step that has ended.
func (t *Trace) addStep(name string, took time.Duration, err error, before, after object.Tree) {
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

// changesSinceLast is what has become of the object since the last step ended.
func (t *Trace) changesSinceLast(w *write) (all []Change) {
	if w.typed.pluginObj != nil {
		if err := w.applyPluginObject(); err != nil {
			return nil // it will be met where the object is needed
		}
	}
	is := w.desired
	if w.obj != nil {
		is = w.obj
	}
	if is == nil {
		return nil
	}
	before := t.seen
	if len(t.Steps) == 1 && w.isPatch && w.live != nil || before == nil { // a patch says what is to change
		before = w.live
	}
	t.seen = object.Copy(is)
	return differences(nil, "", before, t.seen)
}

// differences are the fields in which two parts of an object differ. Lists of different lengths are compared as a whole.
func differences(all []Change, field string, before, after any) []Change {
	switch is := after.(type) {
	case object.Tree:
		was, _ := before.(object.Tree)
		if field != "" && was == nil {
			break
		}
		keys := maps.Clone(is)
		maps.Copy(keys, was)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if key != "managedFields" || field != "metadata" {
				all = differences(all, joinPath(field, key), was[key], is[key])
			}
		}
		return all
	case []any:
		was, _ := before.([]any)
		if len(was) != len(is) {
			break
		}
		for i := range is {
			all = differences(all, field+"["+strconv.Itoa(i)+"]", was[i], is[i])
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
