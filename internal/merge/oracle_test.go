package merge

import (
	"errors"
	"fmt"
	"math/rand"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
)

// widgetSchema contains all features of a CRD's schema: granular and atomic maps and lists, sets, lists of maps
// with one and two keys, and a field of any type.
const widgetSchema = `types:
- name: widget
  map:
    fields:
    - {name: apiVersion, type: {scalar: string}}
    - {name: kind, type: {scalar: string}}
    - {name: metadata, type: {namedType: meta}}
    - {name: spec, type: {namedType: spec}}
    - {name: status, type: {namedType: status}}
- name: meta
  map:
    fields:
    - {name: name, type: {scalar: string}}
    - {name: namespace, type: {scalar: string}}
    - {name: uid, type: {scalar: string}}
    - {name: resourceVersion, type: {scalar: string}}
    - {name: generation, type: {scalar: numeric}}
    - {name: creationTimestamp, type: {scalar: untyped}}
    - {name: labels, type: {map: {elementType: {scalar: string}}}}
    - {name: annotations, type: {map: {elementType: {scalar: string}}}}
    - {name: finalizers, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
    - {name: managedFields, type: {namedType: any}}
- name: spec
  map:
    fields:
    - {name: replicas, type: {scalar: numeric}}
    - {name: count, type: {scalar: numeric}}
    - {name: image, type: {scalar: string}}
    - {name: description, type: {scalar: string}}
    - {name: env, type: {map: {elementType: {scalar: string}}}}
    - {name: options, type: {map: {elementType: {scalar: string}, elementRelationship: atomic}}}
    - {name: args, type: {list: {elementType: {scalar: string}, elementRelationship: atomic}}}
    - {name: steps, type: {list: {elementType: {namedType: port}, elementRelationship: atomic}}}
    - {name: tags, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}
    - {name: ports, type: {list: {elementType: {namedType: port}, elementRelationship: associative, keys: [name]}}}
    - {name: routes, type: {list: {elementType: {namedType: route}, elementRelationship: associative, keys: [port, protocol]}}}
    - {name: extra, type: {namedType: any}}
- name: port
  map:
    fields:
    - {name: name, type: {scalar: string}}
    - {name: port, type: {scalar: numeric}}
- name: route
  map:
    fields:
    - {name: port, type: {scalar: numeric}}
    - {name: protocol, type: {scalar: string}, default: TCP}
    - {name: weight, type: {scalar: numeric}}
- name: status
  map:
    fields:
    - {name: phase, type: {scalar: string}}
    - {name: readyReplicas, type: {scalar: numeric}}
    - {name: conditions, type: {list: {elementType: {namedType: condition}, elementRelationship: associative, keys: [type]}}}
- name: condition
  map:
    fields:
    - {name: type, type: {scalar: string}}
    - {name: status, type: {scalar: string}}
    - {name: lastTransitionTime, type: {scalar: untyped}}
- name: any
  scalar: untyped
  list: {elementType: {namedType: any}, elementRelationship: atomic}
  map: {elementType: {namedType: any}, elementRelationship: separable}
`

// testKind is a kind with two versions. The field spec.replicas of v1 is called spec.count in v2.
type testKind struct {
	parseable typed.ParseableType
	others    map[string]typed.ParseableType // types of versions whose schema differs from parseable
	deduced   bool
	versions  map[string]bool
}

func newTestKind(t testing.TB, deduced bool) *testKind {
	t.Helper()
	w := &testKind{
		parseable: typed.DeducedParseableType, deduced: deduced,
		versions: map[string]bool{"g.io/v1": true, "g.io/v2": true},
	}
	if !deduced {
		parser, err := typed.NewParser(widgetSchema)
		if err != nil {
			t.Fatal(err)
		}
		w.parseable = parser.Type("widget")
	}
	return w
}

func (w *testKind) convert(t object.Tree, version string) (object.Tree, error) {
	if !w.versions[version] {
		return nil, runtime.NewNotRegisteredErrForKind("test", schema.GroupVersionKind{Version: version})
	}
	t = object.Copy(t)
	if object.String(t, "apiVersion") == version {
		return t, nil
	}
	t["apiVersion"] = version
	spec, _ := t["spec"].(object.Tree)
	from, to := "replicas", "count"
	if version == "g.io/v1" {
		from, to = to, from
	}
	if v, ok := spec[from]; ok {
		delete(spec, from)
		spec[to] = v
	}
	return t, nil
}

func (w *testKind) reset(version, subresource string) []string {
	if subresource == "status" {
		return []string{"metadata", "spec"}
	}
	return []string{"status"}
}

func (w *testKind) typeOf(version string) typed.ParseableType {
	if other, ok := w.others[version]; ok {
		return other
	}
	return w.parseable
}

func (w *testKind) fields(version, subresource string) *ManagedFields {
	return &ManagedFields{
		APIVersion: version, Kind: "Widget", Subresource: subresource,
		Reset: func(at string) fieldpath.Filter {
			if subresource == "" && at != version {
				return nil
			}
			return Except(w.reset(version, subresource)...)
		},
		Parseable: func(v string) (typed.ParseableType, bool) { return w.typeOf(v), w.versions[v] },
		Convert:   w.convert,
	}
}

// The following methods implement the interfaces that upstream's field manager requires.

func (w *testKind) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	t := o.(*unstructured.Unstructured).Object
	return w.typeOf(object.String(t, "apiVersion")).FromUnstructured(t, opts...)
}

func (w *testKind) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	t, ok := v.AsValue().Unstructured().(object.Tree)
	if !ok {
		return nil, errors.New("not an object")
	}
	return &unstructured.Unstructured{Object: t}, nil
}

func (w *testKind) Convert(in, out, context any) error { return errors.New("not needed") }
func (w *testKind) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	t, err := w.convert(in.(*unstructured.Unstructured).Object, gv.(schema.GroupVersion).String())
	return &unstructured.Unstructured{Object: t}, err
}
func (w *testKind) ConvertFieldLabel(schema.GroupVersionKind, string, string) (string, string, error) {
	return "", "", errors.New("not needed")
}
func (w *testKind) Default(runtime.Object) {}
func (w *testKind) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u, nil
}

func (w *testKind) upstreamManager(t testing.TB, version, subresource string) *managedfields.FieldManager {
	t.Helper()
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for v := range w.versions {
		if v != version && subresource == "" {
			continue
		}
		set := fieldpath.NewSet()
		for _, field := range w.reset(v, subresource) {
			set.Insert(fieldpath.MakePathOrDie(field))
		}
		reset[fieldpath.APIVersion(v)] = set
	}
	m, err := managedfields.NewDefaultCRDFieldManager(
		w, w, w, w, gv.WithKind("Widget"), schema.GroupVersion{Group: "g.io", Version: "v1"}, subresource,
		fieldpath.NewExcludeFilterSetMap(reset),
	)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// scenario is a random sequence of writes to one object, which are executed with this package and with upstream.
type scenario struct {
	*testing.T
	*testKind
	r     *rand.Rand
	state object.Tree // at g.io/v1, nil before the create
	now   time.Time
	log   []string
	// mostlyUpdates makes applies rare, so that many entries for updates accumulate.
	mostlyUpdates bool
	// corruptFields makes the stored managedFields invalid or unusual at random.
	corruptFields bool
	// keepMismatches makes fields that do not match the schema stay in the object at random.
	keepMismatches bool
}

func newScenario(t *testing.T, seed int64, deduced bool) *scenario {
	return &scenario{
		T: t, testKind: newTestKind(t, deduced), r: rand.New(rand.NewSource(seed)),
		now: time.Now().Add(-time.Hour).UTC().Truncate(time.Second),
	}
}

func (s *scenario) pick(list ...string) string { return list[s.r.Intn(len(list))] }

func (s *scenario) scalar() any {
	return [...]any{"a", "b", "c"}[s.r.Intn(3)]
}

func (s *scenario) stringMap() object.Tree {
	m := object.Tree{}
	for range s.r.Intn(3) {
		m[s.pick("a", "b", "c", "d/e.f")] = s.scalar()
	}
	return m
}

func (s *scenario) stringList() []any {
	l := []any{}
	for _, v := range s.r.Perm(4)[:s.r.Intn(4)] {
		l = append(l, string(rune('a'+v)))
	}
	if len(l) > 0 && s.r.Intn(16) == 0 {
		l = append(l, l[0])
	}
	return l
}

// anything returns a value for a field of any type.
func (s *scenario) anything() any {
	switch s.r.Intn(8) {
	case 0:
		return s.scalar()
	case 1:
		return s.stringList()
	case 2:
		return nil
	}
	return object.Tree{"x": s.stringMap(), "l": s.stringList(), "n": [...]any{1.5, int64(2), 2.0}[s.r.Intn(3)]}
}

func (s *scenario) spec(version string) object.Tree {
	spec := object.Tree{}
	set := func(key string, make func() any) {
		if s.r.Intn(3) == 0 {
			spec[key] = make()
		}
	}
	count := "replicas"
	if version == "g.io/v2" {
		count = "count"
	}
	set(count, func() any { return int64(s.r.Intn(3)) })
	set("image", s.scalar)
	set("description", func() any { return nil })
	orNull := func(v any) any {
		if s.r.Intn(6) == 0 {
			return nil
		}
		return v
	}
	set("env", func() any { return orNull(s.stringMap()) })
	set("options", func() any { return s.stringMap() })
	set("args", func() any { return s.stringList() })
	set("tags", func() any { return orNull(s.stringList()) })
	set("extra", s.anything)
	set("ports", func() any {
		l := []any{}
		for _, name := range s.stringList() {
			l = append(l, object.Tree{"name": name, "port": int64(s.r.Intn(3))})
		}
		return l
	})
	set("routes", func() any {
		l := []any{}
		for _, p := range s.r.Perm(3)[:s.r.Intn(3)] {
			route := object.Tree{"port": int64(p), "weight": int64(s.r.Intn(3))}
			if s.r.Intn(2) == 0 {
				route["protocol"] = "UDP"
			}
			l = append(l, route)
		}
		return l
	})
	return spec
}

func (s *scenario) config(version string) object.Tree {
	t := object.Tree{"apiVersion": version, "kind": "Widget", "metadata": object.Tree{"name": "w", "namespace": "ns"}}
	if s.r.Intn(4) > 0 {
		t["spec"] = s.spec(version)
	}
	if s.r.Intn(3) == 0 {
		object.Metadata(t)["labels"] = s.stringMap()
	}
	if s.r.Intn(3) == 0 {
		object.Metadata(t)["finalizers"] = s.stringList()
	}
	if s.r.Intn(4) == 0 {
		t["status"] = object.Tree{
			"phase": s.scalar(), "conditions": []any{object.Tree{"type": s.scalar(), "status": "True"}},
		}
	}
	if s.r.Intn(30) == 0 && !s.deduced {
		t["bogus"] = object.Tree{"x": "y"}
	}
	return t
}

// mutate returns a copy of the object with random changes, including changes of managedFields.
func (s *scenario) mutate(t object.Tree, version string) object.Tree {
	t = object.Copy(t)
	other := s.config(version)
	meta := object.EnsureMetadata(t)
	for _, key := range []string{"labels", "finalizers"} {
		if v, ok := object.Metadata(other)[key]; ok {
			meta[key] = v
		} else if s.r.Intn(6) == 0 {
			delete(meta, key)
		}
	}
	spec, _ := other["spec"].(object.Tree)
	mine, _ := t["spec"].(object.Tree)
	if mine == nil {
		t["spec"] = spec
	} else {
		for k, v := range spec {
			mine[k] = v
		}
		if s.r.Intn(4) == 0 {
			delete(mine, s.pick("env", "ports", "image", "routes", "tags", "extra"))
		}
	}
	if t["spec"] == nil || len(t["spec"].(object.Tree)) == 0 && s.r.Intn(2) == 0 {
		delete(t, "spec")
	}
	for _, key := range []string{"status", "bogus"} {
		if v, ok := other[key]; ok {
			t[key] = v
		}
	}
	if s.r.Intn(3) > 0 {
		spec, _ := t["spec"].(object.Tree)
		env, _ := spec["env"].(object.Tree)
		if env != nil {
			env[s.pick(
				"e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8",
			)+s.pick("x", "y", "z")] = fmt.Sprint(s.r.Intn(100))
		}
	}
	switch s.r.Intn(40) {
	case 10, 11:
		meta["managedFields"] = s.badFields(version)
	case 0:
		meta["managedFields"] = []any{}
	case 1:
		meta["managedFields"] = []any{object.Tree{}}
	case 2:
		meta["managedFields"] = []any{object.Tree{"manager": "x"}}
	case 3:
		meta["managedFields"] = "junk"
	case 4, 5, 6:
		delete(meta, "managedFields")
	case 7:
		meta["managedFields"] = s.sentFields(version)
	case 8, 12:
		object.SetMapEntry(t, "annotations", lastAppliedAnnotation, string(object.AppendJSON(nil, s.config(version))))
	case 9, 13, 14:
		object.SetMapEntry(
			t, "annotations", lastAppliedAnnotation, string(object.AppendJSON(nil, withoutManagedFields(t))),
		)
	}
	return t
}

// sentFields returns entries sent by a client, in an unusual but valid form.
func (s *scenario) sentFields(version string) []any {
	return []any{
		object.Tree{
			"manager": "sent", "operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1",
			"time": "2020-01-01T02:00:00+02:00", "unknown": "x",
			"fieldsV1": object.Tree{"f:spec": object.Tree{
				".": object.Tree{}, "f:image": object.Tree{".": object.Tree{}},
				"q:what": object.Tree{}, "f:gone": object.Tree{"z:z": object.Tree{}},
				"f:ports": object.Tree{
					`k:{"name": "a"}`: object.Tree{".": object.Tree{}, "f:port": nil},
					"i:1":             object.Tree{}, `v:1.0`: object.Tree{},
				},
			}},
		},
		object.Tree{
			"manager": "old", "operation": "Update", "apiVersion": "g.io/v0", "fieldsType": "FieldsV1",
			"fieldsV1": object.Tree{"f:spec": object.Tree{"f:image": object.Tree{}}},
		},
		object.Tree{
			"operation": "Update", "apiVersion": s.pick("g.io/v1", "g.io/v2"), "fieldsType": "FieldsV1",
			"subresource": "status", "fieldsV1": object.Tree{"f:status": object.Tree{"f:phase": object.Tree{}}},
		},
	}
}

// badFields returns one entry with one invalid or unusual part.
func (s *scenario) badFields(version string) []any {
	e := object.Tree{
		"manager": "bad", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1",
		"time": "2020-01-01T00:00:00Z", "fieldsV1": object.Tree{"f:spec": object.Tree{}},
	}
	switch s.r.Intn(22) {
	case 0:
		return []any{nil}
	case 1:
		e["operation"] = "Delete"
	case 2:
		delete(e, "apiVersion")
	case 3:
		delete(e, "fieldsType")
	case 4:
		e["fieldsType"] = "FieldsV2"
	case 5:
		e["time"] = "yesterday"
	case 6:
		e["time"] = ""
	case 7:
		e["time"] = nil
	case 8:
		e["manager"] = int64(5)
	case 9:
		e["manager"] = ""
	case 10:
		delete(e, "fieldsV1")
	case 11:
		e["fieldsV1"] = nil
	case 12:
		e["fieldsV1"] = "text"
	case 13:
		e["fieldsV1"] = object.Tree{"f:spec": int64(5)}
	case 14:
		e["fieldsV1"] = object.Tree{"i:x": object.Tree{}}
	case 15:
		e["fieldsV1"] = object.Tree{`k:{"a`: object.Tree{}}
	case 16:
		e["fieldsV1"] = object.Tree{
			".": object.Tree{}, "f:spec": object.Tree{".": int64(1), "f:image": object.Tree{}}, "x": object.Tree{},
		}
	case 17:
		e["fieldsV1"] = object.Tree{"f:spec": []any{}}
	case 18:
		e["subresource"] = []any{}
	case 19:
		e["fieldsV1"] = object.Tree{"f:spec": object.Tree{"f:ports": object.Tree{`k:{"name": "a"}`: object.Tree{}}}}
	case 20:
		e["fieldsV1"] = object.Tree{
			"f:spec": object.Tree{
				"f:routes": object.Tree{
					`k:{"protocol":"UDP","port":1.0}`: object.Tree{}, `k:{"port":2,"protocol":"<"}`: object.Tree{},
				},
			},
		}
	case 21:
		e["fieldsV1"] = object.Tree{
			"f:spec": object.Tree{
				"f:tags": object.Tree{`v:1.0`: object.Tree{}, `v: "a"`: object.Tree{}, "i:01": object.Tree{}},
			},
		}
	}
	return []any{e}
}

func (s *scenario) at(version string) object.Tree {
	if s.state == nil {
		return nil
	}
	t, err := s.convert(s.state, version)
	if err != nil {
		s.Fatal(err)
	}
	return t
}

func wrap(t object.Tree) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object.Copy(t)}
}

// step executes one write with both implementations, compares the results, and continues with the result.
func (s *scenario) step() {
	s.now = s.now.Add(time.Duration(1+s.r.Intn(3)) * time.Second)
	version := s.pick("g.io/v1", "g.io/v1", "g.io/v2")
	subresource := s.pick("", "", "", "status")
	if s.state == nil {
		subresource = ""
	}
	if !s.versions[version] {
		version = "g.io/v1"
	}
	if s.mostlyUpdates && s.state != nil && s.r.Intn(3) > 0 {
		env := object.Tree{}
		if spec, ok := s.state["spec"].(object.Tree); ok {
			env, _ = spec["env"].(object.Tree)
		}
		if len(env) == 0 {
			s.state["spec"] = object.Tree{"env": object.Tree{"a": "b"}}
		}
	}
	manager := s.pick("alice", "bob", "kubectl", fmt.Sprint("m", s.r.Intn(20)), "")
	if s.r.Intn(2) == 0 || s.mostlyUpdates {
		obj := s.config(version)
		if s.state != nil {
			obj = s.mutate(s.at(version), version)
		}
		s.write(version, subresource, manager, obj)
		return
	}
	config, force := s.config(version), s.r.Intn(2) == 0
	switch s.r.Intn(60) {
	case 0:
		config["apiVersion"] = s.pick("g.io/v2", "g.io/v1", "v1", "a/b/c", "")
	case 1:
		config["kind"] = "Gadget"
	case 2:
		object.Metadata(config)["managedFields"] = [...]any{nil, []any{}, "x", []any{object.Tree{}}}[s.r.Intn(4)]
	}
	s.apply(version, subresource, manager, config, force)
}

// write executes a create or an update with both implementations.
func (s *scenario) write(version, subresource, manager string, obj object.Tree) {
	s.Helper()
	s.logf("update by %q %s %q of %s", manager, version, subresource, object.AppendJSON(nil, obj))
	live := s.at(version)
	want := s.upstreamManager(s.T, version, subresource).UpdateNoErrors(s.liveObject(version), wrap(obj), manager)
	got, err := s.fields(version, subresource).Update(live, obj, manager, s.now)
	s.finish(got, want.(*unstructured.Unstructured).Object, err, nil)
}

func (s *scenario) apply(version, subresource, manager string, config object.Tree, force bool) {
	s.Helper()
	s.logf("apply by %q %s %q force %v of %s", manager, version, subresource, force, object.AppendJSON(nil, config))
	var want object.Tree
	live := s.at(version)
	out, wantErr := s.upstreamManager(s.T, version, subresource).Apply(
		s.liveObject(version), wrap(config), manager, force,
	)
	if wantErr == nil {
		var err error
		if want, err = s.convert(out.(*unstructured.Unstructured).Object, version); err != nil {
			s.Fatal(err)
		}
	}
	before := object.Copy(live)
	got, gotErr := s.fields(version, subresource).Apply(live, config, manager, force, s.now)
	if !object.Equal(before, live) {
		s.Fatal("Apply modified the live object")
	}
	s.finish(got, want, gotErr, wantErr)
}

func (s *scenario) liveObject(version string) *unstructured.Unstructured {
	if live := s.at(version); live != nil {
		return &unstructured.Unstructured{Object: live}
	}
	return wrap(object.Tree{"apiVersion": version, "kind": "Widget"})
}

// finish compares the results of both implementations and continues with the result of this package.
func (s *scenario) finish(got, want object.Tree, gotErr, wantErr error) {
	s.Helper()
	s.compare(got, want, gotErr, wantErr)
	if gotErr != nil {
		return
	}
	next, err := s.convert(got, "g.io/v1")
	if err != nil {
		s.Fatal(err)
	}
	s.state = next
	object.Metadata(next)["uid"] = "u"
	// If a field that does not match the schema remained in the object, upstream would never track fields again.
	if !s.keepMismatches || s.r.Intn(3) == 0 {
		delete(next, "bogus")
	}
	if s.corruptFields && s.r.Intn(80) == 0 {
		object.Metadata(next)["managedFields"] = s.badFields("g.io/v1")
	}
}

// evolve changes the kind's schema or removes a version, at random.
func (s *scenario) evolve() {
	switch s.r.Intn(4) {
	case 0:
		s.logf("remove v2")
		delete(s.versions, "g.io/v2")
	case 1:
		if !s.deduced {
			s.logf("make maps and lists atomic")
			s.parseable = atomicWidget(s.T)
		}
	}
}

func atomicWidget(t *testing.T) typed.ParseableType {
	parser, err := typed.NewParser(typed.YAMLObject(strings.NewReplacer(
		"- {name: env, type: {map: {elementType: {scalar: string}",
		"- {name: env, type: {map: {elementType: {scalar: string}, elementRelationship: atomic",
		"elementRelationship: associative, keys: [name]", "elementRelationship: atomic",
		"elementRelationship: associative, keys: [type]", "elementRelationship: atomic",
		"- {name: extra, type: {namedType: any}}",
		"- {name: extra, type: {map: {elementType: {namedType: any}, elementRelationship: atomic}}}",
	).Replace(widgetSchema)))
	if err != nil {
		t.Fatal(err)
	}
	return parser.Type("widget")
}

func (s *scenario) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *scenario) compare(got, want object.Tree, gotErr, wantErr error) {
	s.Helper()
	g, w := describeError(gotErr), describeError(wantErr)
	// The library reports only some of several mismatches, in random order.
	if s.keepMismatches || strings.Contains(g+w, "duplicate entries") {
		g, w = mismatchDetails.ReplaceAllString(g, "…"), mismatchDetails.ReplaceAllString(w, "…")
	}
	if g != w {
		s.Fatalf("%s\n got error %s\nwant error %s", strings.Join(s.log, "\n"), g, w)
	}
	if gotErr != nil {
		return
	}
	// Upstream uses the system clock. All recent times in its result are replaced by s.now.
	entries, _ := object.Metadata(want)["managedFields"].([]any)
	for _, e := range entries {
		if at, err := time.Parse(
			time.RFC3339, object.String(e.(object.Tree), "time"),
		); err == nil && time.Since(at) < time.Minute {
			e.(object.Tree)["time"] = s.now.Format(time.RFC3339)
		}
	}
	if g, w = string(object.AppendJSON(nil, got)), string(object.AppendJSON(nil, want)); g != w {
		s.Fatalf("%s\n got %s\nwant %s", strings.Join(s.log, "\n"), g, w)
	}
}

// mismatchDetails matches the part of an error that lists the mismatching fields.
var mismatchDetails = regexp.MustCompile(`(?s)(errors:|  \.|\.[a-z]+[.:]).*`)

// describeError returns the parts of an error that a client receives, sorted because upstream's order is random.
func describeError(err error) string {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		// The rest of upstream's message is a printed Go struct.
		text, _, _ := strings.Cut(fmt.Sprint(err), "error decoding versioned set from ")
		return text
	}
	var causes []string
	if d := status.ErrStatus.Details; d != nil {
		for _, c := range d.Causes {
			causes = append(causes, fmt.Sprint(c))
		}
	}
	slices.Sort(causes)
	lines := strings.Split(status.ErrStatus.Message, "\n")
	slices.Sort(lines)
	return fmt.Sprint(status.ErrStatus.Code, status.ErrStatus.Reason, lines, causes)
}

func runScenario(t *testing.T, seed int64, deduced bool) {
	s := newScenario(t, seed, deduced)
	s.corruptFields = true
	s.mostlyUpdates = s.r.Intn(4) == 0
	steps := 25 + 25*s.r.Intn(2)
	for i := range steps {
		if i == steps/2 {
			s.evolve()
		}
		s.step()
	}
}

// TestFieldsAsUpstream checks that random writes result in the same managedFields and conflicts as in upstream's
// field manager.
//
// CRD-056, CRD-057
func TestFieldsAsUpstream(t *testing.T) {
	n := int64(80)
	if testing.Short() {
		n = 20
	}
	for _, deduced := range []bool{false, true} {
		t.Run(fmt.Sprintf("deduced=%v", deduced), func(t *testing.T) {
			for seed := range n {
				runScenario(t, seed, deduced)
			}
		})
	}
}

// TestSchemaMismatchesAsUpstream checks that fields that do not match the schema are detected anywhere in the
// object. The schema is that of the written version, or of another manager's version. An update then leaves
// managedFields unchanged, and an apply is rejected.
//
// CRD-056, CRD-057
func TestSchemaMismatchesAsUpstream(t *testing.T) {
	other, err := typed.NewParser(typed.YAMLObject(strings.NewReplacer(
		"{name: image, type: {scalar: string}}", "{name: image, type: {scalar: numeric}}",
		"{name: extra, type: {namedType: any}}",
		"{name: extra, type: {list: {elementType: {scalar: string}, elementRelationship: associative}}}",
	).Replace(widgetSchema)))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range int64(60) {
		s := newScenario(t, seed, false)
		s.others = map[string]typed.ParseableType{"g.io/v2": other.Type("widget")}
		s.keepMismatches, s.mostlyUpdates = true, s.r.Intn(3) > 0
		for range 20 {
			s.step()
		}
	}
}

// TestManyUpdaters checks that the oldest entries for updates of a version are merged if there are more than ten.
func TestManyUpdaters(t *testing.T) {
	s := newScenario(t, 1, false)
	for i := range 30 {
		version := [...]string{"g.io/v1", "g.io/v2"}[i%5/4]
		obj := s.at(version)
		if obj == nil {
			obj = object.Tree{
				"apiVersion": version, "kind": "Widget", "metadata": object.Tree{"name": "w"},
				"spec": object.Tree{"env": object.Tree{}},
			}
		}
		obj["spec"].(object.Tree)["env"].(object.Tree)[fmt.Sprint("e", i)] = "x"
		s.write(version, "", fmt.Sprint("m", i), obj)
		if n := len(object.Metadata(s.state)["managedFields"].([]any)); n != min(i+1, maxUpdateManagers) {
			t.Fatalf("after %d managers: got %d entries, want %d", i+1, n, min(i+1, maxUpdateManagers))
		}
		s.now = s.now.Add(time.Second)
	}
}

// TestApplyAtAnotherVersion checks that a field that a manager no longer applies is removed, even if the manager
// applied it at another version.
func TestApplyAtAnotherVersion(t *testing.T) {
	s := newScenario(t, 1, false)
	config := func(version, fields string) object.Tree {
		return decode(t, `{"apiVersion":"`+version+`","kind":"Widget","metadata":{"name":"w"},"spec":{`+fields+`}}`)
	}
	s.apply("g.io/v1", "", "me", config("g.io/v1", `"replicas":1,"image":"x"`), false)
	s.apply("g.io/v2", "", "me", config("g.io/v2", `"image":"x"`), false)
	if spec := s.state["spec"].(object.Tree); len(spec) != 1 {
		t.Fatalf("got spec %v, want 1 field", spec)
	}
	s.apply("g.io/v1", "", "me", config("g.io/v1", `"replicas":1,"image":"x"`), false)
	s.apply("g.io/v2", "", "you", config("g.io/v2", `"count":1`), false)
	s.apply("g.io/v2", "", "me", config("g.io/v2", `"image":"x"`), false)
	if spec := s.state["spec"].(object.Tree); len(spec) != 2 {
		t.Fatalf("got spec %v, want 2 fields", spec)
	}
}

func FuzzFields(f *testing.F) {
	f.Add(int64(1), false)
	f.Fuzz(func(t *testing.T, seed int64, deduced bool) { runScenario(t, seed, deduced) })
}
