package merge

import (
	"maps"

	"github.com/trellis-k8s/trellis/internal/object"
)

// KeepTimes gives obj the times of live's managedFields where the two differ in
// nothing but those times and the resourceVersion: such a write then changes
// nothing. It modifies obj's metadata only.
func KeepTimes(live, obj object.Tree) {
	old, _ := object.Metadata(live)[managedFields].([]any)
	now, _ := object.Metadata(obj)[managedFields].([]any)
	if len(old) == 0 || len(old) != len(now) {
		return
	}
	changed := false
	for i := range old {
		a, _ := old[i].(object.Tree)
		b, _ := now[i].(object.Tree)
		if a == nil || b == nil || !equalWithout(a, b, "time", "") {
			return
		}
		changed = changed || object.String(a, "time") != object.String(b, "time")
	}
	if !changed || !sameBut(live, obj) {
		return
	}
	for i := range now {
		e := maps.Clone(now[i].(object.Tree))
		object.SetString(e, "time", object.String(old[i].(object.Tree), "time"))
		now[i] = e
	}
}

// sameBut compares two objects without managedFields and resourceVersion.
func sameBut(a, b object.Tree) bool {
	return equalWithout(a, b, "metadata", "") &&
		equalWithout(object.Metadata(a), object.Metadata(b), managedFields, "resourceVersion")
}

func equalWithout(a, b object.Tree, skip, skipToo string) bool {
	n := 0
	for k, v := range a {
		if k == skip || k == skipToo {
			continue
		}
		w, ok := b[k]
		if !ok || !object.Equal(v, w) {
			return false
		}
		n++
	}
	for _, k := range [...]string{skip, skipToo} {
		if _, ok := b[k]; ok {
			n++
		}
	}
	return n == len(b)
}
