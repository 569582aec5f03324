package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// crd addresses a CRD.
func (f *fixture) crd(name string) Target {
	f.Helper()
	t := f.target("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
	t.Name = name
	return t
}

// crdManifest is a CRD of the group example.com with a short name.
func crdManifest(plural, kind, short string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.example.com"},"spec":{"group":"example.com","scope":"Cluster",
"names":{"plural":%[1]q,"kind":%[2]q,"shortNames":[%[3]q]},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, plural, kind, short)
}

func (f *fixture) createCRD(plural, kind, short string) object.Tree {
	f.Helper()
	return treeOf(f, f.mustCreate(f.crd(""), crdManifest(plural, kind, short)))
}

// namesAccepted is the condition NamesAccepted of a CRD, and the short names that it got.
func namesAccepted(crd object.Tree) string {
	conditions, _ := valueAt(crd, "status.conditions").([]any)
	for _, c := range conditions {
		if c := c.(object.Tree); c["type"] == "NamesAccepted" {
			short, _ := valueAt(crd, "status.acceptedNames.shortNames").([]any)
			return fmt.Sprint(c["status"], " ", c["message"], " ", short)
		}
	}
	return "none"
}

const (
	accepted  = "True no conflicts found [x]"
	conflicting = `False "x" is already in use []`
)

// CRD-041: a CRD gets the names that are free at the moment of its commit, and is kept from those only that are taken then.
func TestCRDNameConflicts(t *testing.T) {
	rename := func(f *fixture) object.Tree {
		return treeOf(f, f.mustEdit(f.crd("foos.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) }))
	}
	for _, c := range []struct {
		name  string
		given func(f *fixture)
		write func(f *fixture) object.Tree
		other func(f *fixture)
		want  string
		tried int
	}{
		{"taken before a create", func(*fixture) {}, func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) { f.createCRD("bars", "Bar", "x") }, conflicting, 2},
		{"something else taken before a create", func(*fixture) {}, func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) { f.createCRD("bars", "Bar", "y") }, accepted, 2},
		{"taken before an update", func(f *fixture) { f.createCRD("foos", "Foo", "y") }, rename,
			func(f *fixture) { f.createCRD("bars", "Bar", "x") }, `False "x" is already in use [y]`, 2},
		{"free before a create", func(f *fixture) { f.createCRD("bars", "Bar", "x") }, func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) {
				f.delete(f.crd("bars.example.com"), metav1.DeleteOptions{})
				f.removeKey("/registry/apiextensions.k8s.io/customresourcedefinitions/bars.example.com")
			}, accepted, 2},
		{"free before an update", func(f *fixture) { f.createCRD("bars", "Bar", "x"); f.createCRD("foos", "Foo", "y") }, rename,
			func(f *fixture) {
				f.mustEdit(f.crd("bars.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"z"}) })
			}, accepted, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.given(f)
			r := f.raceBeforeCommit(func(storage.Write) { c.other(f) })
			got := c.write(f)
			r.expectAttempts(c.tried)
			equal(t, "verdict", namesAccepted(got), c.want)
			equal(t, "stored", namesAccepted(f.get(f.crd("foos.example.com"))), c.want)
		})
	}
}

// CRD-041: the same where the other comes while it is judged: between the look at who has which name, and the one that says what
// that relies on.
func TestCRDNameConflictDuringEvaluation(t *testing.T) {
	f := newFixture(t)
	r := f.raceDuringEvaluation(func() { f.createCRD("bars", "Bar", "x") })
	equal(t, "verdict", namesAccepted(f.createCRD("foos", "Foo", "x")), conflicting)
	r.expectAttempts(2)
	f = newFixture(t)
	f.createCRD("foos", "Foo", "y")
	r = f.raceDuringEvaluation(func() { f.createCRD("bars", "Bar", "x") })
	got := f.mustEdit(f.crd("foos.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) })
	equal(t, "verdict", namesAccepted(treeOf(t, got)), `False "x" is already in use [y]`)
	r.expectAttempts(2)
}

// CRD-041: which names a CRD has got is not for clients to say: not that it has one which another kind holds, nor that it has none.
func TestAcceptedNamesAreReadOnly(t *testing.T) {
	for name, change := range map[string]func(o object.Tree){
		"one that another holds": func(o object.Tree) { set(o, "status.acceptedNames.shortNames", []any{"x"}) },
		"none":                   func(o object.Tree) { delete(o["status"].(object.Tree), "acceptedNames") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCRD("bars", "Bar", "x")
			f.createCRD("foos", "Foo", "x")
			r := f.raceBeforeCommit(func(storage.Write) {})
			ctx, cancel := context.WithCancel(f.ctx)
			after := f.beforeCommit
			f.beforeCommit = func(judged []storage.Write) {
				if after(judged); r.attempts > 3 {
					cancel() // it would go on for ever
				}
			}
			at, body := f.crd("foos.example.com"), f.get(f.crd("foos.example.com"))
			change(body)
			_, _, err := f.Update(ctx, at.sub("status"), Body{Tree: body}, f.caller)
			if err != nil {
				t.Fatal(err)
			}
			r.expectAttempts(1)
			equal(t, "verdict", namesAccepted(f.get(at)), conflicting)
		})
	}
}

func (f *fixture) service(name string) Target {
	f.Helper()
	t := f.target("", "v1", "services", "default")
	t.Name = name
	return t
}

// serviceSpec are what a Service that is about to be committed takes.
func serviceSpec(t testing.TB, judged storage.Write) corev1.ServiceSpec {
	t.Helper()
	raw, _ := object.Field(judged.Value, "spec")
	var spec corev1.ServiceSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// What a Service takes is free at the moment of its commit: what was asked for is refused if it is taken, and what was chosen
// is chosen again.
func TestServiceAllocationConflicts(t *testing.T) {
	for spec, text := range map[string]string{
		`{"type":"NodePort","clusterIP":"10.0.0.7","ports":[{"port":80}]}`: "provided IP is already allocated",
		`{"type":"NodePort","ports":[{"port":80,"nodePort":30007}]}`:       "provided port is already allocated",
		`{"type":"NodePort","ports":[{"port":80}]}`:                        "",
	} {
		for _, how := range []string{"create", "update", "update of a revision"} {
			t.Run(spec+how, func(t *testing.T) {
				f := newFixture(t)
				body := decode(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"late"},"spec":`+spec+`}`)
				if how != "create" {
					made := treeOf(t, f.mustCreate(f.service(""), `{"metadata":{"name":"late"},"spec":{"type":"ExternalName","externalName":"example.com"}}`))
					if how != "update" {
						object.SetResourceVersion(body, object.ResourceVersion(made))
					}
				}
				r := f.raceBeforeCommit(func(judged storage.Write) {
					s := serviceSpec(t, judged)
					f.mustCreate(f.service(""), fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"type":"NodePort","clusterIP":%q,"ports":[{"port":80,"nodePort":%d}]}}`,
						s.ClusterIP, s.Ports[0].NodePort))
				})
				var err error
				if how == "create" {
					_, err = f.Create(f.ctx, f.service(""), Body{Tree: body}, f.caller)
				} else {
					_, _, err = f.Update(f.ctx, f.service("late"), Body{Tree: body}, f.caller)
				}
				if text != "" {
					f.expectStatus(err, 422, metav1.StatusReasonInvalid, text)
					r.expectAttempts(1)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				r.expectAttempts(2)
				a, b := f.get(f.service("first")), f.get(f.service("late"))
				for _, path := range []string{"spec.clusterIP", "spec.ports"} {
					if fmt.Sprint(valueAt(a, path)) == fmt.Sprint(valueAt(b, path)) {
						t.Errorf("both have %v", valueAt(a, path))
					}
				}
			})
		}
	}
}

// The same where the other comes while it is judged.
func TestServiceAllocationConflictDuringEvaluation(t *testing.T) {
	f := newFixture(t)
	body := `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
	r := f.raceDuringEvaluation(func() { f.mustCreate(f.service(""), fmt.Sprintf(body, "first")) })
	_, err := f.create(f.service(""), fmt.Sprintf(body, "late"))
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "provided IP is already allocated")
	r.expectAttempts(1)
}
