package merge

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/bits"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	// maxListComparisons limits the comparisons of list items in one strategic merge patch. A comparison of two
	// scalars takes up to 15 ns, so the limit corresponds to one second.
	maxListComparisons = 56_000_000
	// objectComparison is the cost of comparing two objects by their merge key. The unit is a comparison of two
	// scalars.
	objectComparison = 3

	setElementOrder         = "$setElementOrder/"
	deleteFromPrimitiveList = "$deleteFromPrimitiveList/" // its cost is proportional to the length of the list
)

// Strategic applies a strategic merge patch by the struct tags of goType, a pointer to a struct of k8s.io/api. The
// result shares memory with doc in the same way as the result of Merge. duplicates has the same meaning as in
// object.DecodeJSON. Errors are 400 and 422 StatusErrors for the same causes as in upstream. For all other causes
// they are plain errors, which upstream reports as a 500. A patch that exceeds maxListComparisons is a 413
// StatusError.
func Strategic(doc object.Tree, patch []byte, goType any) (out object.Tree, duplicates []string, err error) {
	change, duplicates, err := object.DecodeJSON(patch)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if bytes.IndexByte(patch, '[') >= 0 {
		n := comparisons(doc, change, goType)
		if err := limit("comparisons of list items in a strategic merge patch", n, maxListComparisons); err != nil {
			return nil, nil, err
		}
	}
	live := copyExceptManagedFields(doc)
	out, err = strategicpatch.StrategicMergeMapPatch(live, strategicpatch.JSONMap(change), goType)
	switch {
	case err == nil:
		return out, duplicates, nil
	case errors.Is(err, mergepatch.ErrBadJSONDoc),
		errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys),
		errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return nil, nil, apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return nil, nil, unprocessable(err)
	}
	var typeError *json.UnmarshalTypeError
	if errors.As(err, &typeError) {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return nil, nil, err
}

// comparisons estimates the number of comparisons of two list items in StrategicMergeMapPatch. That function scans
// lists for each item, so the estimate grows with the square of their lengths.
func comparisons(doc, change object.Tree, goType any) int {
	schema, err := strategicpatch.NewPatchMetaFromStruct(goType)
	if err != nil {
		return 0 // the later merge returns this error
	}
	var c comparisonCounter
	c.object(doc, []object.Tree{change}, schema)
	return c.total
}

// comparisonCounter adds up comparisons.
type comparisonCounter struct{ total int }

// object adds the cost of merging changes into one live object, one after another. There are several changes if a
// list in the patch repeats a merge key.
func (c *comparisonCounter) object(live object.Tree, changes []object.Tree, schema strategicpatch.LookupPatchMeta) {
	objects := map[string][]object.Tree{}
	lists := map[string]*listChange{}
	for _, change := range changes {
		for key, v := range change {
			if strings.HasPrefix(key, deleteFromPrimitiveList) {
				continue
			}
			name, ordered := strings.CutPrefix(key, setElementOrder)
			switch v := v.(type) {
			case object.Tree:
				objects[name] = append(objects[name], v)
			case []any:
				if lists[name] == nil {
					live, _ := live[name].([]any)
					lists[name] = &listChange{live: live}
				}
				lists[name].add(v, ordered)
			}
		}
		for _, l := range lists {
			c.total += l.merge()
		}
	}
	for name, changes := range objects {
		below, _ := live[name].(object.Tree)
		if sub, _, err := schema.LookupPatchMetadataForStruct(name); err == nil {
			c.object(below, changes, sub)
		}
	}
	for name, l := range lists {
		sub, meta, err := schema.LookupPatchMetadataForSlice(name)
		if err != nil || meta.GetPatchMergeKey() == "" {
			continue
		}
		liveItems, changed := byKey(l.live, meta.GetPatchMergeKey()), byKey(l.items, meta.GetPatchMergeKey())
		for key, changes := range changed {
			var below object.Tree
			if items := liveItems[key]; len(items) > 0 {
				below = items[0]
			}
			c.object(below, changes, sub)
		}
	}
}

// listChange is the change of one list by a patch.
type listChange struct {
	live, items    []any
	patched, order int // list lengths in the next change
	merged         int // number of items merged by earlier changes
}

func (l *listChange) add(list []any, ordered bool) {
	if ordered {
		l.order = len(list)
		return
	}
	l.patched = len(list)
	l.items = append(l.items, list...)
}

// merge returns the number of comparisons for the next change.
func (l *listChange) merge() int {
	if l.patched == 0 && l.order == 0 {
		return 0
	}
	existing, sorted := len(l.live)+l.merged, max(l.patched, l.order)
	n := (existing + l.patched) * (existing + l.patched + l.order)
	n += sorted * sorted * bits.Len(uint(sorted)) * 3 / 4 // sorting the patch's items scans the order list
	l.merged, l.patched, l.order = l.merged+l.patched, 0, 0
	if hasObjects(l.live) || hasObjects(l.items) {
		n *= objectComparison
	}
	return n
}

// hasObjects reports whether the items of a list are objects.
func hasObjects(list []any) bool {
	if len(list) == 0 {
		return false
	}
	_, ok := list[0].(object.Tree)
	return ok
}

// byKey groups the objects of a list by the value of their merge key.
func byKey(list []any, mergeKey string) map[any][]object.Tree {
	groups := make(map[any][]object.Tree, len(list))
	for _, v := range list {
		t, _ := v.(object.Tree)
		switch key := t[mergeKey].(type) {
		case string, int64, float64, bool:
			groups[key] = append(groups[key], t)
		}
	}
	return groups
}
