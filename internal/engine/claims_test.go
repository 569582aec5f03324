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

// definition addresses a CRD.
func (w *world) definition(name string) Target {
	w.Helper()
	t := w.at("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
	t.Name = name
	return t
}

// claiming is a CRD of the group example.com with a short name.
func claiming(plural, kind, short string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.example.com"},"spec":{"group":"example.com","scope":"Cluster",
"names":{"plural":%[1]q,"kind":%[2]q,"shortNames":[%[3]q]},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, plural, kind, short)
}

func (w *world) claim(plural, kind, short string) object.Tree {
	w.Helper()
	return treeOf(w, w.mustCreate(w.definition(""), claiming(plural, kind, short)))
}

// verdict is the condition NamesAccepted of a CRD, and the short names that it got.
func verdict(crd object.Tree) string {
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
	contested = `False "x" is already in use []`
)

// CRD-041: a CRD gets the names that are free at the moment of its commit, and is kept from those only that are taken then.
func TestNamesAreGuarded(t *testing.T) {
	rename := func(w *world) object.Tree {
		return treeOf(w, w.mustEdit(w.definition("foos.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) }))
	}
	for _, c := range []struct {
		name  string
		given func(w *world)
		write func(w *world) object.Tree
		other func(w *world)
		want  string
		tried int
	}{
		{"taken before a create", func(*world) {}, func(w *world) object.Tree { return w.claim("foos", "Foo", "x") },
			func(w *world) { w.claim("bars", "Bar", "x") }, contested, 2},
		{"something else taken before a create", func(*world) {}, func(w *world) object.Tree { return w.claim("foos", "Foo", "x") },
			func(w *world) { w.claim("bars", "Bar", "y") }, accepted, 2},
		{"taken before an update", func(w *world) { w.claim("foos", "Foo", "y") }, rename,
			func(w *world) { w.claim("bars", "Bar", "x") }, `False "x" is already in use [y]`, 2},
		{"free before a create", func(w *world) { w.claim("bars", "Bar", "x") }, func(w *world) object.Tree { return w.claim("foos", "Foo", "x") },
			func(w *world) {
				w.delete(w.definition("bars.example.com"), metav1.DeleteOptions{})
				w.remove("/registry/apiextensions.k8s.io/customresourcedefinitions/bars.example.com")
			}, accepted, 2},
		{"free before an update", func(w *world) { w.claim("bars", "Bar", "x"); w.claim("foos", "Foo", "y") }, rename,
			func(w *world) {
				w.mustEdit(w.definition("bars.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"z"}) })
			}, accepted, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.given(w)
			r := w.before(func(storage.Write) { c.other(w) })
			got := c.write(w)
			r.tried(c.tried)
			equal(t, "verdict", verdict(got), c.want)
			equal(t, "stored", verdict(w.get(w.definition("foos.example.com"))), c.want)
		})
	}
}

// CRD-041: the same where the other comes while it is judged: between the look at who has which name, and the one that says what
// that relies on.
func TestNamesTakenWhileJudged(t *testing.T) {
	w := newWorld(t)
	r := w.while(func() { w.claim("bars", "Bar", "x") })
	equal(t, "verdict", verdict(w.claim("foos", "Foo", "x")), contested)
	r.tried(2)
	w = newWorld(t)
	w.claim("foos", "Foo", "y")
	r = w.while(func() { w.claim("bars", "Bar", "x") })
	got := w.mustEdit(w.definition("foos.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) })
	equal(t, "verdict", verdict(treeOf(t, got)), `False "x" is already in use [y]`)
	r.tried(2)
}

// CRD-041: which names a CRD has got is not for clients to say: not that it has one which another kind holds, nor that it has none.
func TestNamesAreNotForClients(t *testing.T) {
	for name, change := range map[string]func(o object.Tree){
		"one that another holds": func(o object.Tree) { set(o, "status.acceptedNames.shortNames", []any{"x"}) },
		"none":                   func(o object.Tree) { delete(o["status"].(object.Tree), "acceptedNames") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("bars", "Bar", "x")
			w.claim("foos", "Foo", "x")
			r := w.before(func(storage.Write) {})
			ctx, cancel := context.WithCancel(w.ctx)
			after := w.beforeCommit
			w.beforeCommit = func(judged []storage.Write) {
				if after(judged); r.attempts > 3 {
					cancel() // it would go on for ever
				}
			}
			at, body := w.definition("foos.example.com"), w.get(w.definition("foos.example.com"))
			change(body)
			_, _, err := w.Update(ctx, at.sub("status"), Body{Tree: body}, w.caller)
			if err != nil {
				t.Fatal(err)
			}
			r.tried(1)
			equal(t, "verdict", verdict(w.get(at)), contested)
		})
	}
}

func (w *world) service(name string) Target {
	w.Helper()
	t := w.at("", "v1", "services", "default")
	t.Name = name
	return t
}

// addresses are what a Service that is about to be committed takes.
func addresses(t testing.TB, judged storage.Write) corev1.ServiceSpec {
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
func TestServiceAddressesAreGuarded(t *testing.T) {
	for spec, text := range map[string]string{
		`{"type":"NodePort","clusterIP":"10.0.0.7","ports":[{"port":80}]}`: "provided IP is already allocated",
		`{"type":"NodePort","ports":[{"port":80,"nodePort":30007}]}`:       "provided port is already allocated",
		`{"type":"NodePort","ports":[{"port":80}]}`:                        "",
	} {
		for _, how := range []string{"create", "update", "update of a revision"} {
			t.Run(spec+how, func(t *testing.T) {
				w := newWorld(t)
				body := decode(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"late"},"spec":`+spec+`}`)
				if how != "create" {
					made := treeOf(t, w.mustCreate(w.service(""), `{"metadata":{"name":"late"},"spec":{"type":"ExternalName","externalName":"example.com"}}`))
					if how != "update" {
						object.SetResourceVersion(body, object.ResourceVersion(made))
					}
				}
				r := w.before(func(judged storage.Write) {
					s := addresses(t, judged)
					w.mustCreate(w.service(""), fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"type":"NodePort","clusterIP":%q,"ports":[{"port":80,"nodePort":%d}]}}`,
						s.ClusterIP, s.Ports[0].NodePort))
				})
				var err error
				if how == "create" {
					_, err = w.Create(w.ctx, w.service(""), Body{Tree: body}, w.caller)
				} else {
					_, _, err = w.Update(w.ctx, w.service("late"), Body{Tree: body}, w.caller)
				}
				if text != "" {
					w.refused(err, 422, metav1.StatusReasonInvalid, text)
					r.tried(1)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				r.tried(2)
				a, b := w.get(w.service("first")), w.get(w.service("late"))
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
func TestServiceAddressTakenWhileJudged(t *testing.T) {
	w := newWorld(t)
	body := `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
	r := w.while(func() { w.mustCreate(w.service(""), fmt.Sprintf(body, "first")) })
	_, err := w.create(w.service(""), fmt.Sprintf(body, "late"))
	w.refused(err, 422, metav1.StatusReasonInvalid, "provided IP is already allocated")
	r.tried(1)
}
