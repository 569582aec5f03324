package merge

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// write is one write through a Fields: it remembers what was converted.
type write struct {
	*ManagedFields
	time      string
	ignore    map[fieldpath.APIVersion]fieldpath.Filter // by version, what Reset takes from a set
	converted map[conversion]*typed.TypedValue
}

type conversion struct {
	from *typed.TypedValue
	to   fieldpath.APIVersion
}

var (
	errNoVersion = errors.New("the kind does not have this version")
	errLargeLive = errors.New("the live object is too large to compare")
)

func (f *ManagedFields) write(now time.Time) *write {
	return &write{ManagedFields: f, time: now.UTC().Format(time.RFC3339)}
}

// Except is a filter for Fields.Reset that lets pass all but the fields at dotted paths ("status").
func Except(paths ...string) fieldpath.Filter {
	set := fieldpath.NewSet()
	for _, dotted := range paths {
		var path fieldpath.Path
		for name := range strings.SplitSeq(dotted, ".") {
			path = append(path, fieldpath.FieldNameElement(name))
		}
		set.Insert(path)
	}
	return fieldpath.NewExcludeSetFilter(set)
}

// filter makes structured-merge-diff ignore what Reset does not let pass, at the endpoint's own version and at those of
// the entries.
func (w *write) filter(known *owners) {
	if w.Reset == nil {
		return
	}
	w.ignore = map[fieldpath.APIVersion]fieldpath.Filter{}
	w.ignoreAt(fieldpath.APIVersion(w.APIVersion))
	for _, vs := range known.sets {
		w.ignoreAt(vs.APIVersion())
	}
}

func (w *write) ignoreAt(version fieldpath.APIVersion) {
	if _, ok := w.ignore[version]; ok {
		return
	}
	if f := w.Reset(string(version)); f != nil {
		w.ignore[version] = f
	}
}

func (w *write) typed(t object.Tree, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return w.typedAs(t, w.APIVersion, options...)
}

func (w *write) typedAs(t object.Tree, version string, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	parseable, ok := w.Parseable(version)
	if !ok {
		return nil, errNoVersion
	}
	return parseable.FromUnstructured(t, options...)
}

// describe names an object in an error as upstream does.
func describe(t object.Tree) string {
	var gvk schema.GroupVersionKind
	if gv, err := schema.ParseGroupVersion(object.String(t, "apiVersion")); err == nil {
		gvk = gv.WithKind(object.String(t, "kind"))
	}
	return fmt.Sprintf("%v/%v; %v", object.Namespace(t), object.Name(t), gvk)
}

// update changes known to who owns what after obj replaced live. Neither has managedFields.
func (w *write) update(live, obj object.Tree, known *owners, manager string) error {
	w.filter(known)
	if err := w.reconcile(known); err != nil {
		return err
	}
	if err := known.check(live, obj); err != nil {
		return err
	}
	d, err := w.difference(live, obj, w.APIVersion, typed.AllowDuplicates)
	if err != nil {
		return err
	}
	if err := w.settle(live, obj, d, known, currentOperation, true); err != nil {
		return err
	}
	version := fieldpath.APIVersion(w.APIVersion)
	known.sets[currentOperation] = fieldpath.NewVersionedSet(d.written, version, false)
	known.strip(currentOperation)
	changed, ok := known.sets[currentOperation]
	if !ok {
		return nil
	}
	delete(known.sets, currentOperation)
	id := known.add(owner{manager: orUnknown(manager), operation: operationUpdate, apiVersion: w.APIVersion, subresource: w.Subresource})
	set := changed.Set()
	if previous, ok := known.sets[id]; ok {
		set = set.Union(previous.Set())
	}
	known.put(id, set, version, false)
	known.owners[id].time = w.time
	return nil
}

func orUnknown(manager string) string {
	if manager == "" {
		return "unknown"
	}
	return manager
}

// apply merges applied into live. The object is nil where nothing changed. known
// is not modified; what is returned in its place is it, or follows from it.
func (w *write) apply(live, applied object.Tree, known *owners, manager string, force bool) (object.Tree, *owners, error) {
	if len(known.sets) == 0 {
		known = known.clone()
		empty := w.empty(object.String(applied, "kind"))
		if err := w.update(empty, live, known, beforeFirstApply); err != nil {
			return nil, known, fmt.Errorf("failed to create manager for existing fields: %w", err)
		}
		known.capUpdates()
	}
	appliedTyped, err := w.typed(applied)
	if err != nil {
		return nil, known, fmt.Errorf("failed to create typed patch object (%v): %w", describe(applied), err)
	}
	liveTyped, err := w.typed(live, typed.AllowDuplicates)
	if err != nil {
		return nil, known, fmt.Errorf("failed to create typed live object (%v): %w", describe(live), err)
	}
	w.filter(known)
	out := known.clone()
	id := out.add(owner{manager: orUnknown(manager), operation: operationApply, apiVersion: w.APIVersion, subresource: w.Subresource})
	merged, err := w.merge(live, liveTyped, appliedTyped, out, id, force)
	if err != nil {
		return nil, known, err
	}
	out.strip(id)
	if merged == nil {
		return live, out, nil
	}
	out.owners[id].time = w.time
	return merged, out, nil
}

// merge gives what live becomes, nil if that is the same, and changes known accordingly.
func (w *write) merge(live object.Tree, liveTyped, applied *typed.TypedValue, known *owners, id string, force bool) (object.Tree, error) {
	version := fieldpath.APIVersion(w.APIVersion)
	set, err := applied.ToFieldSet()
	if err != nil {
		return nil, fmt.Errorf("failed to get field set: %w", err)
	}
	if filter := w.ignore[version]; filter != nil {
		set = filter.Filter(set)
	}
	if last, ok := known.sets[id]; ok && (last.APIVersion() != version || !last.Set().Difference(set).Empty()) {
		return w.mergeAndPrune(liveTyped, applied, known, id, force)
	}
	if err := w.reconcile(known); err != nil {
		return nil, err
	}
	mergedTyped, err := liveTyped.Merge(applied)
	if err != nil {
		return nil, fmt.Errorf("failed to merge config: %w", err)
	}
	merged, err := treeOfTyped(mergedTyped)
	if err != nil {
		return nil, err
	}
	d, err := w.difference(live, merged, w.APIVersion, typed.AllowDuplicates)
	if err != nil {
		return nil, err
	}
	known.sets[id] = fieldpath.NewVersionedSet(set, version, true)
	if err := w.settle(live, merged, d, known, id, force); err != nil || d.same {
		return nil, err
	}
	return merged, nil
}

// mergeAndPrune is merge for the case that something that the manager applied
// before may have to go.
func (w *write) mergeAndPrune(live, applied *typed.TypedValue, known *owners, id string, force bool) (object.Tree, error) {
	builder := merge.UpdaterBuilder{Converter: converter{w}, IgnoreFilter: w.ignore}
	merged, sets, err := builder.BuildUpdater().Apply(live, applied, fieldpath.APIVersion(w.APIVersion), known.sets, id, force)
	if err != nil {
		return nil, err
	}
	known.sets = sets
	if merged == nil {
		return nil, nil
	}
	return treeOfTyped(merged)
}

func treeOfTyped(v *typed.TypedValue) (object.Tree, error) {
	tree, ok := v.AsValue().Unstructured().(object.Tree)
	if !ok {
		return nil, errors.New("failed to convert new typed object to object")
	}
	return tree, nil
}

// converter translates typed objects between versions for structured-merge-diff.
type converter struct{ w *write }

// Convert implements merge.Converter.
func (c converter) Convert(v *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	w := c.w
	t, ok := v.AsValue().Unstructured().(object.Tree)
	if !ok || object.String(t, "apiVersion") == string(version) {
		return v, nil
	}
	key := conversion{v, version}
	if out, ok := w.converted[key]; ok {
		return out, nil
	}
	if _, ok := w.Parseable(string(version)); !ok {
		return v, errNoVersion
	}
	converted, err := w.ManagedFields.Convert(t, string(version))
	if err != nil {
		return v, err
	}
	out, err := w.typedAs(converted, string(version))
	if err != nil {
		return v, err
	}
	if w.converted == nil {
		w.converted = map[conversion]*typed.TypedValue{}
	}
	w.converted[key] = out
	return out, nil
}

// IsMissingVersionError implements merge.Converter.
func (converter) IsMissingVersionError(err error) bool { return errors.Is(err, errNoVersion) }
