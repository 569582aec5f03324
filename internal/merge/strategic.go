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
	// maxListComparisons limits the comparisons of list items that one strategic merge patch causes. A comparison of two scalars
	// takes up to 15 ns, so the limit stands for one second.
	maxListComparisons = 56_000_000
	// objectComparison is the cost of a comparison of two objects by their merge key, in comparisons of two scalars.
	objectComparison = 3

	setElementOrder         = "$setElementOrder/"
	deleteFromPrimitiveList = "$deleteFromPrimitiveList/" // takes time in proportion to its length
)

// Strategic applies a strategic merge patch by the struct tags of goType, a pointer to
// a struct of k8s.io/api. What doc and the result share is as in Merge.
// duplicates as in object.DecodeJSON. Errors are 400 and 422 StatusErrors where
// upstream's are, and otherwise what upstream makes a 500 of. A patch that exceeds maxListComparisons is a 413 StatusError.
func Strategic(doc object.Tree, patch []byte, goType any) (out object.Tree, duplicates []string, err error) {
	change, duplicates, err := object.DecodeJSON(patch)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if bytes.IndexByte(patch, '[') >= 0 {
		if err := limit("comparisons of list items in a strategic merge patch", comparisons(doc, change, goType), maxListComparisons); err != nil {
			return nil, nil, err
		}
	}
	out, err = strategicpatch.StrategicMergeMapPatch(copyButEntries(doc), strategicpatch.JSONMap(change), goType)
	switch {
	case err == nil:
		return out, duplicates, nil
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
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

// comparisons estimates how often StrategicMergeMapPatch compares two list items. The function scans lists for each item, so the
// estimate grows with the square of their lengths.
func comparisons(doc, change object.Tree, goType any) int {
	schema, err := strategicpatch.NewPatchMetaFromStruct(goType)
	if err != nil {
		return 0 // the merge returns the error
	}
	var c comparing
	c.object(doc, []object.Tree{change}, schema)
	return c.total
}

// comparing adds up comparisons.
type comparing struct{ total int }

// object adds the cost of changes that are merged into one live object, one after the other. There are several if a list in the
// patch repeats a merge key.
func (c *comparing) object(live object.Tree, changes []object.Tree, schema strategicpatch.LookupPatchMeta) {
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
			if of := liveItems[key]; len(of) > 0 {
				below = of[0]
			}
			c.object(below, changes, sub)
		}
	}
}

// listChange is what a patch does to one list.
type listChange struct {
	live, items    []any
	patched, order int // lengths in the change that is next
	grown          int // length of the items that were merged before
}

func (l *listChange) add(list []any, ordered bool) {
	if ordered {
		l.order = len(list)
		return
	}
	l.patched = len(list)
	l.items = append(l.items, list...)
}

// merge returns the comparisons of the next change.
func (l *listChange) merge() int {
	if l.patched == 0 && l.order == 0 {
		return 0
	}
	had, sorted := len(l.live)+l.grown, max(l.patched, l.order)
	n := (had + l.patched) * (had + l.patched + l.order)
	n += sorted * sorted * bits.Len(uint(sorted)) * 3 / 4 // the items of the patch are sorted by a scan of the order
	l.grown, l.patched, l.order = l.grown+l.patched, 0, 0
	if objects(l.live) || objects(l.items) {
		n *= objectComparison
	}
	return n
}

// objects reports whether the items of a list are objects.
func objects(list []any) bool {
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
