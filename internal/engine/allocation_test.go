package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// crd returns the target of a CRD, or of all CRDs if name is "".
func (f *fixture) crd(name string) verb.Target {
	f.Helper()
	t := f.target("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
	t.Name = name
	return t
}

// crdManifest returns a CRD of the group example.com with one short name.
func crdManifest(plural, kind, short string) string {
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.example.com"},"spec":{"group":"example.com","scope":"Cluster",
"names":{"plural":%[1]q,"kind":%[2]q,"shortNames":[%[3]q]},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
		plural, kind, short)
}

func (f *fixture) createCRD(plural, kind, short string) object.Tree {
	f.Helper()
	return treeOf(f, f.mustCreate(f.crd(""), crdManifest(plural, kind, short)))
}

// namesAccepted returns a text with the NamesAccepted condition of a CRD and its accepted short names.
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
	accepted    = "True no conflicts found [x]"
	conflicting = `False "x" is already in use []`
)

// TestCRDNameConflicts checks that a CRD gets each of its names that is free at its commit. It does not get a name
// that another CRD has (CRD-041).
func TestCRDNameConflicts(t *testing.T) {
	rename := func(f *fixture) object.Tree {
		return treeOf(f, f.mustEdit(f.crd("foos.example.com"),
			func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) }))
	}
	for _, c := range []struct {
		name     string
		given    func(f *fixture)
		write    func(f *fixture) object.Tree
		other    func(f *fixture)
		want     string
		attempts int
	}{
		{"taken before a create", func(*fixture) {},
			func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) { f.createCRD("bars", "Bar", "x") }, conflicting, 2},
		{"something else taken before a create", func(*fixture) {},
			func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) { f.createCRD("bars", "Bar", "y") }, accepted, 2},
		{"taken before an update", func(f *fixture) { f.createCRD("foos", "Foo", "y") }, rename,
			func(f *fixture) { f.createCRD("bars", "Bar", "x") }, `False "x" is already in use [y]`, 2},
		{"free before a create", func(f *fixture) { f.createCRD("bars", "Bar", "x") },
			func(f *fixture) object.Tree { return f.createCRD("foos", "Foo", "x") },
			func(f *fixture) {
				f.delete(f.crd("bars.example.com"), metav1.DeleteOptions{})
				f.removeKey("/registry/apiextensions.k8s.io/customresourcedefinitions/bars.example.com")
			}, accepted, 2},
		{"free before an update", func(f *fixture) { f.createCRD("bars", "Bar", "x"); f.createCRD("foos", "Foo", "y") },
			rename,
			func(f *fixture) {
				f.mustEdit(f.crd("bars.example.com"),
					func(o object.Tree) { set(o, "spec.names.shortNames", []any{"z"}) })
			}, accepted, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.given(f)
			r := f.raceBeforeCommit(func(storage.Write) { c.other(f) })
			got := c.write(f)
			r.expectAttempts(c.attempts)
			equal(t, "NamesAccepted", namesAccepted(got), c.want)
			equal(t, "stored", namesAccepted(f.get(f.crd("foos.example.com"))), c.want)
		})
	}
}

// TestCRDNameConflictDuringEvaluation checks that a CRD does not get a name that another CRD takes during its
// evaluation. The other CRD takes the name after the engine has looked it up, and before the engine computes the
// guards (CRD-041).
func TestCRDNameConflictDuringEvaluation(t *testing.T) {
	f := newFixture(t)
	r := f.raceDuringEvaluation(func() { f.createCRD("bars", "Bar", "x") })
	equal(t, "NamesAccepted", namesAccepted(f.createCRD("foos", "Foo", "x")), conflicting)
	r.expectAttempts(2)
	f = newFixture(t)
	f.createCRD("foos", "Foo", "y")
	r = f.raceDuringEvaluation(func() { f.createCRD("bars", "Bar", "x") })
	got := f.mustEdit(f.crd("foos.example.com"), func(o object.Tree) { set(o, "spec.names.shortNames", []any{"x"}) })
	equal(t, "NamesAccepted", namesAccepted(treeOf(t, got)), `False "x" is already in use [y]`)
	r.expectAttempts(2)
}

// TestAcceptedNamesAreReadOnly checks that a client can neither add a taken name to status.acceptedNames nor remove
// acceptedNames (CRD-041).
func TestAcceptedNamesAreReadOnly(t *testing.T) {
	for name, change := range map[string]func(o object.Tree){
		"taken name": func(o object.Tree) { set(o, "status.acceptedNames.shortNames", []any{"x"}) },
		"none":       func(o object.Tree) { delete(o["status"].(object.Tree), "acceptedNames") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.createCRD("bars", "Bar", "x")
			f.createCRD("foos", "Foo", "x")
			r := f.raceBeforeCommit(func(storage.Write) {})
			ctx, cancel := context.WithCancel(f.ctx)
			after := f.beforeCommit
			f.beforeCommit = func(write []storage.Write) {
				if after(write); r.attempts > 3 {
					cancel() // prevents endless retries
				}
			}
			at, body := f.crd("foos.example.com"), f.get(f.crd("foos.example.com"))
			change(body)
			_, _, err := f.Update(ctx, subresource(at, "status"), verb.Body{Tree: body}, f.caller)
			if err != nil {
				t.Fatal(err)
			}
			r.expectAttempts(1)
			equal(t, "NamesAccepted", namesAccepted(f.get(at)), conflicting)
		})
	}
}

func (f *fixture) service(name string) verb.Target {
	f.Helper()
	t := f.target("", "v1", "services", "default")
	t.Name = name
	return t
}

// serviceSpec returns the spec of the Service in write.
func serviceSpec(t testing.TB, write storage.Write) corev1.ServiceSpec {
	t.Helper()
	raw, _ := object.Field(write.Value, "spec")
	var spec corev1.ServiceSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestServiceAllocationConflicts checks that the addresses and ports of a Service are free at its commit. If
// another Service has taken a requested value, the write is rejected. If it has taken an allocated value, the
// server allocates another value.
func TestServiceAllocationConflicts(t *testing.T) {
	for spec, text := range map[string]string{
		`{"type":"NodePort","clusterIP":"10.0.0.7","ports":[{"port":80}]}`: "provided IP is already allocated",
		`{"type":"NodePort","ports":[{"port":80,"nodePort":30007}]}`:       "provided port is already allocated",
		`{"type":"NodePort","ports":[{"port":80}]}`:                        "",
	} {
		for _, operation := range []string{"create", "update", "update of a revision"} {
			t.Run(spec+operation, func(t *testing.T) {
				f := newFixture(t)
				body := decode(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"late"},"spec":`+spec+`}`)
				if operation != "create" {
					created := treeOf(t, f.mustCreate(f.service(""),
						`{"metadata":{"name":"late"},"spec":{"type":"ExternalName","externalName":"example.com"}}`))
					if operation != "update" {
						object.SetResourceVersion(body, object.ResourceVersion(created))
					}
				}
				r := f.raceBeforeCommit(func(write storage.Write) {
					s := serviceSpec(t, write)
					f.mustCreate(f.service(""),
						fmt.Sprintf(`{"metadata":{"name":"first"},"spec":{"type":"NodePort","clusterIP":%q,`+
							`"ports":[{"port":80,"nodePort":%d}]}}`,
							s.ClusterIP, s.Ports[0].NodePort))
				})
				var err error
				if operation == "create" {
					_, err = f.Create(f.ctx, f.service(""), verb.Body{Tree: body}, f.caller)
				} else {
					_, _, err = f.Update(f.ctx, f.service("late"), verb.Body{Tree: body}, f.caller)
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
						t.Errorf("both Services have %v", valueAt(a, path))
					}
				}
			})
		}
	}
}

// TestServiceAllocationConflictDuringEvaluation checks that a Service does not get an address that another Service
// takes during its evaluation.
func TestServiceAllocationConflictDuringEvaluation(t *testing.T) {
	f := newFixture(t)
	body := `{"metadata":{"name":%q},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`
	r := f.raceDuringEvaluation(func() { f.mustCreate(f.service(""), fmt.Sprintf(body, "first")) })
	_, err := f.create(f.service(""), fmt.Sprintf(body, "late"))
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "provided IP is already allocated")
	r.expectAttempts(1)
}
