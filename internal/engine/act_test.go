package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// pods addresses a Pod, or all.
func (w *world) pods(name string) Target {
	w.Helper()
	t := w.at("", "v1", "pods", "default")
	t.Name = name
	return t
}

func (w *world) pod(name string) {
	w.Helper()
	w.mustCreate(w.pods(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`, name))
}

// bind posts a Binding.
func (w *world) bind(name, text string) error {
	w.Helper()
	t := w.pods(name).sub("binding")
	body := Body{Tree: decode(w, text)}
	body.Tree["apiVersion"], body.Tree["kind"] = "v1", "Binding"
	_, _, err := w.PostSubresource(w.ctx, t, body, w.caller)
	return err
}

// SCD-040: admission sees a Binding where one is posted, as the creation of one. What it makes of it is what is done, what it relies on
// is a guard of that, and it is not asked about the Pod.
func TestAdmissionOfABinding(t *testing.T) {
	w := newWorld(t)
	w.pod("p")
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"policy"}}`)
	w.caller.Options = &metav1.CreateOptions{FieldManager: "x"}
	var seen []string
	note := func(stage string, then func(context.Context, *admission.Request, object.Tree) error) func(context.Context, *admission.Request) error {
		return func(ctx context.Context, r *admission.Request) error {
			o, ok := r.Options().(*metav1.CreateOptions)
			next, err := r.New(ctx, r.Version)
			if err != nil {
				return err
			}
			old, err := r.Old(ctx, r.Version)
			if err != nil {
				return err
			}
			entries, _ := object.Metadata(next)["managedFields"].([]any)
			seen = append(seen, fmt.Sprint(stage, r.Operation, r.Resource, r.Subresource, r.Version.GroupVersionKind(), r.Namespace, r.Name,
				next["kind"], valueAt(next, "target.name"), len(entries), old == nil, ok && o.FieldManager == "x"))
			return then(ctx, r, next)
		}
	}
	w.Admission = admission.Plugins{&plugin{
		admit: note("admit", func(ctx context.Context, r *admission.Request, next object.Tree) error {
			r.Read(w.policies(), "default", "policy")
			set(next, "metadata.labels.zone", "z")
			return r.Replace(ctx, next, r.Version)
		}),
		validate: note("validate", func(context.Context, *admission.Request, object.Tree) error { return nil }),
	}}
	tries := 0
	w.beforeCommit = func(writes []storage.Write) {
		if tries++; tries == 1 {
			w.commit(storage.Write{Key: w.policies().Key("default", "policy"), Value: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"policy","namespace":"default"}}`),
				Expected: w.Store.Head().Get(w.policies().Key("default", "policy")).Modified})
		}
	}
	if err := w.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	equal(t, "times that each was asked", []any{len(seen), tries}, []any{4, 2}) // again after what it relies on has changed
	for i, line := range seen {
		stage := []string{"admit", "validate"}[i%2]
		equal(t, "asked", line, fmt.Sprint(stage, "CREATE", "/v1, Resource=pods", "binding", "/v1, Kind=Binding", "default", "p", "Binding", "m", 1, true, true))
	}
	got := w.get(w.pods("p"))
	equal(t, "bound", []any{valueAt(got, "spec.nodeName"), valueAt(got, "metadata.labels.zone"), valueAt(got, "metadata.generation")}, []any{"m", "z", 1})
}

// SCD-040: labels and annotations of a Binding become the Pod's as they are, whatever they are, and nobody owns them.
func TestMetadataOfABinding(t *testing.T) {
	w := newWorld(t)
	w.pod("p")
	owners := valueAt(w.get(w.pods("p")), "metadata.managedFields")
	w.caller.DryRun = true
	const binding = `{"metadata":{"name":"p","labels":{"!":"x"},"annotations":{"/":"y"},"finalizers":["!"],"ownerReferences":[{"uid":"u"},{"uid":"u"}]},"target":{"name":"m"}}`
	if err := w.bind("p", binding); err != nil {
		t.Fatal(err)
	}
	equal(t, "after a dry run", valueAt(w.get(w.pods("p")), "spec.nodeName"), nil)
	w.caller.DryRun, w.warnings = false, nil
	if err := w.bind("p", binding); err != nil {
		t.Fatal(err)
	}
	got := w.get(w.pods("p"))
	md := object.Metadata(got)
	equal(t, "bound", []any{md["labels"], md["annotations"], md["finalizers"], md["ownerReferences"], md["managedFields"]},
		[]any{object.Tree{"!": "x"}, object.Tree{"/": "y"}, nil, nil, owners})
	if len(w.warnings) != 1 || !strings.Contains(w.warnings[0], "duplicate entries") {
		t.Errorf("warnings %q", w.warnings)
	}
}

// A Binding that another write of the Pod comes before is done to what that has left.
func TestBindingOvertaken(t *testing.T) {
	w := newWorld(t)
	w.pod("p")
	tries := 0
	w.beforeCommit = func([]storage.Write) {
		if tries++; tries == 1 {
			w.mustPatch(w.pods("p"), merging, `{"metadata":{"annotations":{"other":"yes"}}}`)
		}
	}
	if err := w.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	got := w.get(w.pods("p"))
	equal(t, "both", []any{tries, valueAt(got, "spec.nodeName"), valueAt(got, "metadata.annotations.other")}, []any{3, "m", "yes"})
}
