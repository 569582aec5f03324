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

// write is one write through a ManagedFields. It caches converted objects.
type write struct {
	*ManagedFields
	time      string
	ignore    map[fieldpath.APIVersion]fieldpath.Filter // filters from Reset, by version
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

// Except returns a filter for ManagedFields.Reset that excludes the fields at dotted paths, such as "status".
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

// setFilters sets the filters that make structured-merge-diff ignore the fields excluded by Reset. It sets them for
// the endpoint's version and for the versions of the entries.
func (w *write) setFilters(managers *owners) {
	if w.Reset == nil {
		return
	}
	w.ignore = map[fieldpath.APIVersion]fieldpath.Filter{}
	w.addFilter(fieldpath.APIVersion(w.APIVersion))
	for _, vs := range managers.sets {
		w.addFilter(vs.APIVersion())
	}
}

func (w *write) addFilter(version fieldpath.APIVersion) {
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

// describe returns upstream's description of an object for errors.
func describe(t object.Tree) string {
	var gvk schema.GroupVersionKind
	if gv, err := schema.ParseGroupVersion(object.String(t, "apiVersion")); err == nil {
		gvk = gv.WithKind(object.String(t, "kind"))
	}
	return fmt.Sprintf("%v/%v; %v", object.Namespace(t), object.Name(t), gvk)
}

// update updates managers after a write that replaces live by obj. Neither object has managedFields.
func (w *write) update(live, obj object.Tree, managers *owners, manager string) error {
	w.setFilters(managers)
	if err := w.reconcileWithSchema(managers); err != nil {
		return err
	}
	if err := managers.check(live, obj); err != nil {
		return err
	}
	d, err := w.difference(live, obj, w.APIVersion, typed.AllowDuplicates)
	if err != nil {
		return err
	}
	if err := w.takeOwnership(live, obj, d, managers, currentOperation, true); err != nil {
		return err
	}
	version := fieldpath.APIVersion(w.APIVersion)
	managers.sets[currentOperation] = fieldpath.NewVersionedSet(d.written, version, false)
	managers.dropNeverOwned(currentOperation)
	changed, ok := managers.sets[currentOperation]
	if !ok {
		return nil
	}
	delete(managers.sets, currentOperation)
	id := managers.add(owner{
		manager: orUnknown(manager), operation: operationUpdate, apiVersion: w.APIVersion, subresource: w.Subresource,
	})
	set := changed.Set()
	if previous, ok := managers.sets[id]; ok {
		set = set.Union(previous.Set())
	}
	managers.setFields(id, set, version, false)
	managers.owners[id].time = w.time
	return nil
}

func orUnknown(manager string) string {
	if manager == "" {
		return "unknown"
	}
	return manager
}

// apply merges applied into live. The returned object is nil if nothing changed. apply does not modify managers. It
// returns managers or a changed copy.
func (w *write) apply(
	live, applied object.Tree, managers *owners, manager string, force bool,
) (object.Tree, *owners, error) {
	if len(managers.sets) == 0 {
		managers = managers.clone()
		empty := w.empty(object.String(applied, "kind"))
		if err := w.update(empty, live, managers, beforeFirstApply); err != nil {
			return nil, managers, fmt.Errorf("failed to create manager for existing fields: %w", err)
		}
		managers.capUpdates()
	}
	appliedTyped, err := w.typed(applied)
	if err != nil {
		return nil, managers, fmt.Errorf("failed to create typed patch object (%v): %w", describe(applied), err)
	}
	liveTyped, err := w.typed(live, typed.AllowDuplicates)
	if err != nil {
		return nil, managers, fmt.Errorf("failed to create typed live object (%v): %w", describe(live), err)
	}
	w.setFilters(managers)
	out := managers.clone()
	id := out.add(owner{
		manager: orUnknown(manager), operation: operationApply, apiVersion: w.APIVersion, subresource: w.Subresource,
	})
	merged, err := w.merge(live, liveTyped, appliedTyped, out, id, force)
	if err != nil {
		return nil, managers, err
	}
	out.dropNeverOwned(id)
	if merged == nil {
		return live, out, nil
	}
	out.owners[id].time = w.time
	return merged, out, nil
}

// merge returns the result of merging applied into live, or nil if the result equals live. It updates managers.
func (w *write) merge(
	live object.Tree, liveTyped, applied *typed.TypedValue, managers *owners, id string, force bool,
) (object.Tree, error) {
	version := fieldpath.APIVersion(w.APIVersion)
	set, err := applied.ToFieldSet()
	if err != nil {
		return nil, fmt.Errorf("failed to get field set: %w", err)
	}
	if filter := w.ignore[version]; filter != nil {
		set = filter.Filter(set)
	}
	if last, ok := managers.sets[id]; ok && (last.APIVersion() != version || !last.Set().Difference(set).Empty()) {
		return w.mergeAndPrune(liveTyped, applied, managers, id, force)
	}
	if err := w.reconcileWithSchema(managers); err != nil {
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
	managers.sets[id] = fieldpath.NewVersionedSet(set, version, true)
	if err := w.takeOwnership(live, merged, d, managers, id, force); err != nil || d.unchanged {
		return nil, err
	}
	return merged, nil
}

// mergeAndPrune does the same as merge, but also removes fields that the manager applied before and no longer
// applies.
func (w *write) mergeAndPrune(
	live, applied *typed.TypedValue, managers *owners, id string, force bool,
) (object.Tree, error) {
	builder := merge.UpdaterBuilder{Converter: converter{w}, IgnoreFilter: w.ignore}
	version := fieldpath.APIVersion(w.APIVersion)
	merged, sets, err := builder.BuildUpdater().Apply(live, applied, version, managers.sets, id, force)
	if err != nil {
		return nil, err
	}
	managers.sets = sets
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

// converter converts typed objects between versions for structured-merge-diff.
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
