package engine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// upstreamScale is upstream's field management of the fields of a Scale.
type upstreamScale struct {
	*managedfields.FieldManager
	gv schema.GroupVersion
	t  *testing.T
}

func newUpstreamScale(t *testing.T) upstreamScale {
	t.Helper()
	kind := autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	m, err := managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(), scheme.Scheme,
		scheme.Scheme, scheme.Scheme,
		kind, autoscalingv1.SchemeGroupVersion, "scale", nil)
	if err != nil {
		t.Fatal(err)
	}
	return upstreamScale{m, schema.GroupVersion{Group: "stable.example.com", Version: "v1"}, t}
}

// write writes n replicas as manager. It returns the resulting replicas and the owners of fields. If n is nil, it
// is an apply without replicas.
func (u upstreamScale) write(live object.Tree, n *int32, manager string, apply, force bool) (replicas int64,
	owners []string, err error) {
	cr := (&unstructured.Unstructured{Object: live}).DeepCopy()
	path := fieldpath.MakePathOrDie("spec", "replicas")
	handler := managedfields.NewScaleHandler(cr.GetManagedFields(), u.gv,
		managedfields.ResourcePathMappings{u.gv.String(): path})
	before, _, _ := unstructured.NestedInt64(cr.Object, "spec", "replicas")
	scale := &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{Name: cr.GetName(), Namespace: cr.GetNamespace(), UID: cr.GetUID(),
			ResourceVersion: cr.GetResourceVersion(), CreationTimestamp: cr.GetCreationTimestamp()},
		Spec: autoscalingv1.ScaleSpec{Replicas: int32(before)}}
	if scale.ManagedFields, err = handler.ToSubresource(); err != nil {
		return 0, nil, err
	}
	var out runtime.Object
	if apply {
		config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale",
			"metadata": map[string]any{"name": cr.GetName()}}}
		if n != nil {
			config.Object["spec"] = map[string]any{"replicas": int64(*n)}
		}
		out, err = u.Apply(scale, config, manager, force)
	} else {
		next := scale.DeepCopy()
		next.ManagedFields = nil
		next.Spec.Replicas = *n
		out, err = u.Update(scale, next, manager)
	}
	if err != nil {
		return 0, nil, err
	}
	written := out.(*autoscalingv1.Scale)
	entries, err := handler.ToParent(written.ManagedFields)
	return int64(written.Spec.Replicas), ownerLines(u.t, entries), err
}

// ownerLines returns a line for each manager with the fields that it owns, but without times. A manager may have
// two entries in upstream.
func ownerLines(t *testing.T, entries []metav1.ManagedFieldsEntry) (all []string) {
	t.Helper()
	sets := map[string]*fieldpath.Set{}
	for _, e := range entries {
		owner, set := fmt.Sprintf("%s %s %s %q", e.Manager, e.Operation, e.APIVersion, e.Subresource), &fieldpath.Set{}
		if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
			t.Fatal(err)
		}
		if sets[owner] == nil {
			sets[owner] = &fieldpath.Set{}
		}
		sets[owner] = sets[owner].Union(set)
	}
	for owner, set := range sets {
		all = append(all, owner+" "+set.String())
	}
	sort.Strings(all)
	return all
}

// owners returns the ownerLines of an object.
func owners(t *testing.T, tree object.Tree) []string {
	t.Helper()
	u := &unstructured.Unstructured{Object: tree}
	return ownerLines(t, u.GetManagedFields())
}

// TestScaleOwnersMatchUpstream writes an object and its Scale at random. It checks that the replicas have the same
// owners as in upstream (SUB-012, SUB-026, SUB-032).
func TestScaleOwnersMatchUpstream(t *testing.T) {
	f := newFixture(t)
	u := newUpstreamScale(t)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 5))
	conflicts := 0
	for round := range 40 {
		name := fmt.Sprintf("a%d", round)
		f.caller.FieldManager = "creator"
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"replicas":1,"image":"i"}}`, name))
		for range 12 {
			f.now = f.now.Add(time.Second)
			f.caller.FieldManager = []string{"creator", "hpa", "keda"}[r.IntN(3)]
			n := int32(r.IntN(3))
			if r.IntN(3) == 0 { // writes the object itself
				data := fmt.Sprintf(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":%q},`+
					`"spec":{"replicas":%d,"color":"c%d"}}`, name, n, r.IntN(2))
				_, _, err := f.Patch(f.ctx, f.cron(name), verb.Patch{Type: applyPatch, Data: []byte(data), Force: true},
					f.caller)
				if err != nil {
					t.Fatal(err)
				}
				continue
			}
			live := f.get(f.cron(name))
			apply, force, none := r.IntN(2) == 0, r.IntN(2) == 0, false
			var err error
			var wantReplicas int64
			var want []string
			var wantErr error
			if !apply {
				wantReplicas, want, wantErr = u.write(live, &n, f.caller.FieldManager, false, false)
				_, err = f.patch(
					subresource(f.cron(name), "scale"),
					mergePatch,
					fmt.Sprintf(`{"spec":{"replicas":%d}}`, n),
				)
			} else {
				data, sent := fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":%q},`+
					`"spec":{"replicas":%d}}`, name, n), &n
				if none = r.IntN(8) == 0; none {
					data, sent = fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":%q}}`,
						name), nil
				}
				wantReplicas, want, wantErr = u.write(live, sent, f.caller.FieldManager, true, force)
				_, _, err = f.Patch(f.ctx, subresource(f.cron(name), "scale"),
					verb.Patch{Type: applyPatch, Data: []byte(data), Force: force}, f.caller)
			}
			operation := fmt.Sprintf("seed %d: %s writes %d (apply %v force %v none %v) to %s", seed,
				f.caller.FieldManager, n, apply, force, none, object.AppendJSON(nil, live))
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%s:\ngot  %v\nwant %v", operation, err, wantErr)
			}
			if err != nil {
				conflicts++
				if err.Error() != wantErr.Error() {
					t.Fatalf("%s:\ngot  %v\nwant %v", operation, err, wantErr)
				}
				continue
			}
			after := f.get(f.cron(name))
			equal(t, operation+" replicas", valueAt(after, "spec.replicas"), wantReplicas)
			equal(t, operation, strings.Join(owners(t, after), "\n"), strings.Join(want, "\n"))
		}
	}
	if conflicts == 0 {
		t.Error("got no conflicts, want some")
	}
}
