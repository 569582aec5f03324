package merge

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/validation"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	// clientSideManager is the only manager whose client-side applies are migrated to server-side apply.
	clientSideManager     = "kubectl"
	lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
)

// applyWithUpgrade does the same as apply, but also migrates from kubectl's client-side apply. kubectl takes over
// the fields that it set by client-side apply and that have not changed since. They cause no conflict.
func (w *write) applyWithUpgrade(
	live, applied object.Tree, managers *owners, manager string, force bool,
) (object.Tree, *owners, error) {
	merged, out, err := w.apply(live, applied, managers, manager, force)
	var conflicts merge.Conflicts
	if manager != clientSideManager || !errors.As(err, &conflicts) {
		return merged, out, err
	}
	allowed, allowedErr := w.lastApplied(live)
	if allowedErr != nil {
		return merged, out, err
	}
	if !conflicts.ToSet().Difference(allowed).Empty() {
		var remaining merge.Conflicts
		for _, c := range conflicts {
			if !allowed.Has(c.Path) {
				remaining = append(remaining, c)
			}
		}
		return nil, out, remaining
	}
	return w.apply(live, applied, managers, manager, true)
}

var errNoLastApplied = errors.New("no usable last applied annotation")

// lastApplied returns the fields that the last client-side apply set and whose values in the live object are
// unchanged.
func (w *write) lastApplied(live object.Tree) (*fieldpath.Set, error) {
	text, _ := object.Annotation(live, lastAppliedAnnotation)
	if text == "" {
		return nil, errNoLastApplied
	}
	liveTyped, err := w.typed(live)
	if err != nil {
		return nil, err
	}
	last, _, err := object.DecodeJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	if object.String(last, "apiVersion") != w.APIVersion || object.String(last, "kind") == "" {
		return nil, errNoLastApplied
	}
	if err := w.checkObject(last, w.APIVersion); err != nil {
		return nil, err
	}
	lastTyped, err := w.typed(last)
	if err != nil {
		return nil, err
	}
	set, err := lastTyped.ToFieldSet()
	if err != nil {
		return nil, err
	}
	diff, err := lastTyped.Compare(liveTyped)
	if err != nil {
		return nil, err
	}
	return set.Difference(diff.Modified).Difference(diff.Added).Difference(diff.Removed), nil
}

// refreshLastApplied updates an existing annotation of client-side apply to the applied configuration. A user can
// therefore return to client-side apply.
func refreshLastApplied(out, applied object.Tree) {
	if text, _ := object.Annotation(out, lastAppliedAnnotation); text == "" {
		return
	}
	config := object.Copy(applied)
	if annotations, ok := object.Metadata(config)["annotations"].(object.Tree); ok {
		delete(annotations, lastAppliedAnnotation)
	}
	text := string(append(object.AppendJSON(nil, config), '\n'))
	object.SetMapEntry(out, "annotations", lastAppliedAnnotation, text)
	annotations := object.StringMap(object.Metadata(out), "annotations")
	if validation.ValidateAnnotationsSize(annotations) != nil {
		delete(object.Metadata(out)["annotations"].(object.Tree), lastAppliedAnnotation)
	}
}
