package merge

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/trellis-k8s/trellis/internal/object"
)

// limit returns a 413 StatusError if a request needs more of a resource than the server allows. The limits in this
// package bound functions of upstream that no deadline interrupts. Each limit allows about one second of processor
// time.
func limit(resource string, need, allowed int) error {
	if need <= allowed {
		return nil
	}
	message := fmt.Sprintf("The allowed maximum is %d %s, got %d", allowed, resource, need)
	return apierrors.NewRequestEntityTooLargeError(message)
}

const (
	// maxInserts limits the work of structured-merge-diff on one object. The library inserts each item of a list or
	// map into sorted slices, in any order. Its time therefore grows with the square of their length. The limit
	// corresponds to one second, or to a map of 31,000 keys.
	maxInserts = 1_000_000_000
	// setInserts and listInserts are the costs of a set and of a list of objects with keys. The unit is the cost of
	// a map of the same length.
	setInserts, listInserts = 3, 5
	// maxPathBytes limits the total length of the paths of all fields of one object. The library builds these paths
	// for sets, conflicts and errors.
	maxPathBytes = 128 << 20
	// pathElementBytes is the size of a path element without its name.
	pathElementBytes = 8
	// maxOwnedFields limits the number of fields multiplied by the number of managers. For each manager, the
	// library merges the fields of all other managers.
	maxOwnedFields = 25_000_000
	// uncheckedManagers is the largest number of managers that needs no check. With so few managers, no body has
	// enough fields to exceed the limit.
	uncheckedManagers = 16
)

// checkObject returns a 413 StatusError for an object that structured-merge-diff cannot process in time. version is
// the object's version.
func (w *write) checkObject(t object.Tree, version string) error {
	p, _ := w.Parseable(version)
	if p.Schema == nil {
		return nil // the comparison returns the error
	}
	e := objectSize{Schema: p.Schema}
	e.value(t, p.TypeRef, 0)
	if err := limit("insertions of list items and map keys", e.inserts, maxInserts); err != nil {
		return err
	}
	return limitPaths(e.paths)
}

func limitPaths(bytes int) error {
	return limit("bytes in the paths of all fields", bytes, maxPathBytes)
}

// checkApply returns a 413 StatusError for an apply that structured-merge-diff cannot process in time.
func (w *write) checkApply(live, applied object.Tree, managers *owners) error {
	for _, t := range [...]object.Tree{applied, live} {
		if err := w.checkObject(t, w.APIVersion); err != nil {
			return err
		}
	}
	paths := 0
	for _, vs := range managers.sets { // each member of the set may be a conflict
		paths += pathsOf(vs.Set(), 0)
	}
	if err := limitPaths(paths); err != nil {
		return err
	}
	return managers.check(live, applied)
}

// check returns a 413 StatusError if there are too many managers for structured-merge-diff to compare with the
// fields of objects in time.
func (o *owners) check(objects ...object.Tree) error {
	if len(o.sets) <= uncheckedManagers {
		return nil
	}
	fields := 0
	for _, t := range objects {
		fields += leaves(t)
	}
	for _, vs := range o.sets {
		fields += vs.Set().Size()
	}
	return limit("pairs of a field and a manager", fields*len(o.sets), maxOwnedFields)
}

// leaves returns the number of scalars and empty objects in v.
func leaves(v any) (n int) {
	switch v := v.(type) {
	case object.Tree:
		for _, below := range v {
			n += leaves(below)
		}
	case []any:
		for _, below := range v {
			n += leaves(below)
		}
	}
	return max(n, 1)
}

// pathsOf returns the total length in bytes of the paths of all members of a set.
func pathsOf(set *fieldpath.Set, path int) (n int) {
	for element := range set.Members.All() {
		n += path + lengthOf(element)
	}
	for element := range set.Children.All() {
		below, _ := set.Children.Get(element)
		n += pathsOf(below, path+lengthOf(element))
	}
	return n
}

func lengthOf(element fieldpath.PathElement) int {
	n := pathElementBytes
	switch {
	case element.FieldName != nil:
		n += len(*element.FieldName)
	case element.Value != nil:
		n += textLength((*element.Value).Unstructured())
	case element.Key != nil:
		for _, field := range *element.Key {
			n += len(field.Name) + textLength(field.Value.Unstructured())
		}
	}
	return n
}

func textLength(v any) int {
	s, _ := v.(string)
	return len(s)
}

// objectSize measures an object along its schema.
type objectSize struct {
	*schema.Schema
	inserts int // work units of maxInserts
	paths   int // bytes of maxPathBytes
}

// value adds the size of a value. path is the length of the value's path in bytes.
func (e *objectSize) value(v any, ref schema.TypeRef, path int) {
	e.paths += path
	atom, _ := e.Resolve(ref) // a value without a type causes no insertions
	switch v := v.(type) {
	case object.Tree:
		if m := atom.Map; m != nil && m.ElementRelationship != schema.Atomic {
			e.inserts += len(v) * len(v)
		}
		for key, below := range v {
			e.value(below, fieldType(atom.Map, key), path+pathElementBytes+len(key))
		}
	case []any:
		var keys []string
		var ref schema.TypeRef
		associative := false
		if atom.List != nil {
			keys, ref = atom.List.Keys, atom.List.ElementType
			associative = atom.List.ElementRelationship == schema.Associative
		}
		switch {
		case associative && len(keys) > 0:
			e.inserts += listInserts * len(v) * len(v)
		case associative:
			e.inserts += setInserts * len(v) * len(v)
		}
		for _, below := range v {
			n := path + pathElementBytes
			if associative {
				n += itemLength(below, keys)
			}
			e.value(below, ref, n)
		}
	}
}

func itemLength(v any, keys []string) (n int) {
	t, _ := v.(object.Tree)
	for _, key := range keys {
		n += len(key) + textLength(t[key])
	}
	return n + textLength(v)
}

// fieldType returns the type of a field. It returns the empty type for an unknown field.
func fieldType(m *schema.Map, key string) schema.TypeRef {
	if m == nil {
		return schema.TypeRef{}
	}
	if f, ok := m.FindField(key); ok {
		return f.Type
	}
	return m.ElementType
}
