package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// pods returns the target of a Pod, or of all Pods if name is "".
func (f *fixture) pods(name string) verb.Target {
	f.Helper()
	t := f.target("", "v1", "pods", "default")
	t.Name = name
	return t
}

// createPod creates a Pod without a node.
func (f *fixture) createPod(name string) {
	f.Helper()
	f.mustCreate(f.pods(""), fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		name))
}

// bind posts a Binding to a Pod.
func (f *fixture) bind(name, text string) error {
	f.Helper()
	t := subresource(f.pods(name), "binding")
	body := verb.Body{Tree: decode(f, text)}
	body.Tree["apiVersion"], body.Tree["kind"] = "v1", "Binding"
	_, _, err := f.PostSubresource(f.ctx, t, body, f.caller)
	return err
}

// TestBindingAdmission checks that admission sees the POST of a Binding as a CREATE of the subresource, and is not
// called for the Pod. The Pod gets the values of the Binding that admission has returned. The write is retried if
// an object that a plugin has read changes before the commit (SCD-040).
func TestBindingAdmission(t *testing.T) {
	f := newFixture(t)
	f.createPod("p")
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"policy"}}`)
	f.caller.Options = &metav1.CreateOptions{FieldManager: "x"}
	var seen []string
	type admitFunc = func(context.Context, *admission.Request) error
	record := func(
		stage string, then func(context.Context, *admission.Request, object.Tree) error,
	) admitFunc {
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
			seen = append(seen, fmt.Sprint(stage, r.Operation, r.Resource, r.Subresource, r.Version.GroupVersionKind(),
				r.Namespace, r.Name,
				next["kind"], valueAt(next, "target.name"), len(entries), old == nil, ok && o.FieldManager == "x"))
			return then(ctx, r, next)
		}
	}
	f.Admission = admission.Plugins{&plugin{
		admit: record("admit", func(ctx context.Context, r *admission.Request, next object.Tree) error {
			r.Read(f.policies(), "default", "policy")
			set(next, "metadata.labels.zone", "z")
			return r.Replace(ctx, next, r.Version)
		}),
		validate: record("validate", func(context.Context, *admission.Request, object.Tree) error { return nil }),
	}}
	attempts := 0
	f.beforeCommit = func(writes []storage.Write) {
		if attempts++; attempts == 1 {
			f.commit(storage.Write{Key: f.policies().Key("default", "policy"),
				Value: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"policy",` +
					`"namespace":"default"}}`),
				Expected: f.Store.Head().Get(f.policies().Key("default", "policy")).Modified})
		}
	}
	if err := f.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	// The policy changed before the first commit, so the write was retried.
	equal(t, "number of calls and of commits", []any{len(seen), attempts}, []any{4, 2})
	for i, line := range seen {
		stage := []string{"admit", "validate"}[i%2]
		equal(t, "call", line, fmt.Sprint(stage, "CREATE", "/v1, Resource=pods", "binding", "/v1, Kind=Binding",
			"default", "p", "Binding", "m", 1, true, true))
	}
	got := f.get(f.pods("p"))
	equal(t, "bound", []any{valueAt(got, "spec.nodeName"), valueAt(got, "metadata.labels.zone"),
		valueAt(got, "metadata.generation")}, []any{"m", "z", 1})
}

// TestBindingMetadata checks that a Binding's labels and annotations are copied to the Pod without validation and
// without a field manager (SCD-040).
func TestBindingMetadata(t *testing.T) {
	f := newFixture(t)
	f.createPod("p")
	owners := valueAt(f.get(f.pods("p")), "metadata.managedFields")
	f.caller.DryRun = true
	const binding = `{"metadata":{"name":"p","labels":{"!":"x"},"annotations":{"/":"y"},"finalizers":["!"],` +
		`"ownerReferences":[{"uid":"u"},{"uid":"u"}]},"target":{"name":"m"}}`
	if err := f.bind("p", binding); err != nil {
		t.Fatal(err)
	}
	equal(t, "after a dry run", valueAt(f.get(f.pods("p")), "spec.nodeName"), nil)
	f.caller.DryRun, f.warnings = false, nil
	if err := f.bind("p", binding); err != nil {
		t.Fatal(err)
	}
	got := f.get(f.pods("p"))
	md := object.Metadata(got)
	equal(t, "bound", []any{md["labels"], md["annotations"], md["finalizers"], md["ownerReferences"],
		md["managedFields"]},
		[]any{object.Tree{"!": "x"}, object.Tree{"/": "y"}, nil, nil, owners})
	if len(f.warnings) != 1 || !strings.Contains(f.warnings[0], "duplicate entries") {
		t.Errorf("got warnings %q, want one about duplicate entries", f.warnings)
	}
}

// TestBindingConflict checks that the server retries a Binding on the newest Pod if another write has changed the
// Pod.
func TestBindingConflict(t *testing.T) {
	f := newFixture(t)
	f.createPod("p")
	attempts := 0
	f.beforeCommit = func([]storage.Write) {
		if attempts++; attempts == 1 {
			f.mustPatch(f.pods("p"), mergePatch, `{"metadata":{"annotations":{"other":"yes"}}}`)
		}
	}
	if err := f.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
		t.Fatal(err)
	}
	got := f.get(f.pods("p"))
	equal(t, "attempts and both changes", []any{attempts, valueAt(got, "spec.nodeName"),
		valueAt(got, "metadata.annotations.other")}, []any{3, "m", "yes"})
}
