package crd_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// server is a fixture with helpers for CustomResourceDefinitions.
type server struct {
	*fixture.Env
	kind *resource.Version // CustomResourceDefinition

	mu       sync.Mutex
	warnings []string
}

func serve(t testing.TB) *server { return serveKinds(t, kinds.Config{}) }

func serveKinds(t testing.TB, c kinds.Config) *server {
	env := fixture.Open(t, c)
	return &server{Env: env, kind: env.Live.Load().Find("apiextensions.k8s.io", "v1", "customresourcedefinitions")}
}

func (s *server) caller() verb.Caller {
	return verb.Caller{FieldManager: "test", Validation: "Strict", Warn: func(text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.warnings = append(s.warnings, text)
	}}
}

func (s *server) target(name, sub string) verb.Target {
	return verb.Target{Version: s.kind, Name: name, Subresource: sub}
}

func (s *server) decode(crd string) verb.Body {
	s.Helper()
	d, err := s.kind.Type.Decode([]byte(crd))
	if err != nil {
		s.Fatal(err)
	}
	return verb.Body{Tree: d.Tree, Strict: d.Strict}
}

func (s *server) createCRD(crd string) (object.Tree, error) {
	s.Helper()
	o, err := s.Engine.Create(s.Context(), s.target("", ""), s.decode(crd), s.caller())
	if err != nil {
		return nil, err
	}
	return s.tree(o), nil
}

func (s *server) mustCreateCRD(crd string) object.Tree {
	s.Helper()
	t, err := s.createCRD(crd)
	if err != nil {
		s.Fatal(err)
	}
	return t
}

func (s *server) tree(o record.Object) object.Tree {
	s.Helper()
	t, err := o.Tree()
	if err != nil {
		s.Fatal(err)
	}
	return t
}

func (s *server) updateCRD(t object.Tree, sub string) (object.Tree, error) {
	s.Helper()
	o, _, err := s.Engine.Update(s.Context(), s.target(object.Name(t), sub), verb.Body{Tree: t}, s.caller())
	if err != nil {
		return nil, err
	}
	return s.tree(o), nil
}

// crd returns a CRD in JSON. The parameter names holds further fields of spec.names.
func crd(group, plural, kind, names string) string {
	return fmt.Sprintf(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.%[1]s"},
"spec":{"group":%[1]q,"scope":"Namespaced","names":{"plural":%[2]q,"kind":%[3]q%[4]s},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]},
"status":{"acceptedNames":{"kind":"","plural":""},"conditions":[],"storedVersions":[]}}`, group, plural, kind, names)
}

func status(t object.Tree) object.Tree {
	s, _ := t["status"].(object.Tree)
	return s
}

// conditions returns "status/reason/message" of each condition, by type.
func conditions(t object.Tree) map[string]string {
	out := map[string]string{}
	all, _ := status(t)["conditions"].([]any)
	for _, c := range all {
		c := c.(object.Tree)
		out[c["type"].(string)] = fmt.Sprintf("%v/%v/%v", c["status"], c["reason"], c["message"])
	}
	return out
}

func (s *server) expect(t object.Tree, condition, want string) {
	s.Helper()
	if got := conditions(t)[condition]; got != want {
		s.Errorf("%s: got condition %s %q, want %q", object.Name(t), condition, got, want)
	}
}

const (
	established = "True/InitialNamesAccepted/the initial names have been accepted"
	noConflicts = "True/NoConflicts/no conflicts found"
)

// TestCreateEstablishes checks that a CRD is established and served when its create returns (CRD-001, CRD-015, CRD-038,
// CRD-040).
func TestCreateEstablishes(t *testing.T) {
	s := serve(t)
	got := s.mustCreateCRD(crd("stable.example.com", "crontabs", "CronTab", `,"shortNames":["ct"]`))
	s.expect(got, "Established", established)
	s.expect(got, "NamesAccepted", noConflicts)
	if n := len(conditions(got)); n != 2 {
		t.Errorf("got %d conditions, want 2", n)
	}
	names, _ := status(got)["acceptedNames"].(object.Tree)
	if names["singular"] != "crontab" || names["listKind"] != "CronTabList" ||
		fmt.Sprint(names["shortNames"]) != "[ct]" {
		t.Errorf("got accepted names %v, want the defaults and the short name", names)
	}
	if stored := object.Strings(status(got), "storedVersions"); len(stored) != 1 || stored[0] != "v1" {
		t.Errorf("got stored versions %v, want v1", stored)
	}
	if status(got)["observedGeneration"] != int64(1) || object.Generation(got) != 1 {
		t.Errorf("got generation %v, observed %v; want 1, 1", object.Generation(got), status(got)["observedGeneration"])
	}
	if conversion := got["spec"].(object.Tree)["conversion"]; fmt.Sprint(conversion) != "map[strategy:None]" {
		t.Errorf("got conversion %v, want None", conversion)
	}
	empty := strings.Replace(crd("stable.example.com", "empties", "Empty", ""), `"scope"`,
		`"conversion":{"strategy":"None","webhook":{}},"scope"`, 1)
	conversion := s.mustCreateCRD(empty)["spec"].(object.Tree)["conversion"]
	if fmt.Sprint(conversion) != "map[strategy:None]" {
		t.Errorf("empty webhook: got conversion %v, want None", conversion)
	}
	c, err := s.Live.Current(t.Context())
	if err != nil || c.Find("stable.example.com", "v1", "crontabs") == nil {
		t.Errorf("the custom resource is not served: %v", err)
	}
}

// TestInvalidCRDs checks that each error for an invalid CRD is returned once.
// CRD-005, CRD-009, CRD-036, CRD-037, CRD-039, CRD-046
func TestInvalidCRDs(t *testing.T) {
	s := serve(t)
	for name, want := range map[string]struct{ crd, message string }{
		"name": {strings.Replace(crd("stable.example.com", "crontabs", "CronTab", ""), "crontabs.stable",
			"other.stable", 1),
			`CustomResourceDefinition.apiextensions.k8s.io "other.stable.example.com" is invalid: metadata.name: Invalid value: "other.stable.example.com": must be spec.names.plural+"."+spec.group`},
		"group": {crd("stable", "crontabs", "CronTab", ""), "should be a domain with at least one dot"},
		"kind": {crd("stable.example.com", "crontabs", "CronTab", `,"listKind":"CronTab"`),
			"kind and listKind may not be the same"},
		"storage": {strings.Replace(crd("stable.example.com", "crontabs", "CronTab", ""), `"storage":true`,
			`"storage":false`, 1), "must have exactly one version marked as storage version"},
		"approval": {crd("stable.k8s.io", "crontabs", "CronTab", ""),
			`metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111`},
		"schema": {strings.Replace(crd("stable.example.com", "crontabs", "CronTab", ""), `{"type":"object"}`,
			`{"type":"array"}`, 1),
			"spec.validation.openAPIV3Schema.type: Invalid value: \"array\": must be object at the root"},
	} {
		_, err := s.createCRD(want.crd)
		if !apierrors.IsInvalid(err) || strings.Count(err.Error(), want.message) != 1 {
			t.Errorf("%s: got %v, want %s", name, err, want.message)
		}
	}
}

// TestNameConflicts checks that a CRD with a taken name is not established. An update of its status accepts the name
// after it has become free (CRD-041).
func TestNameConflicts(t *testing.T) {
	s := serve(t)
	s.mustCreateCRD(crd("example.com", "firsts", "First", `,"singular":"one","shortNames":["f"]`))
	second := s.mustCreateCRD(crd("example.com", "seconds", "Second", `,"singular":"one","shortNames":["f"]`))
	s.expect(second, "NamesAccepted", `False/ShortNamesConflict/"f" is already in use`)
	s.expect(second, "Established", "False/NotAccepted/not all names are accepted")
	if accepted := status(second)["acceptedNames"].(object.Tree); accepted["plural"] != "seconds" ||
		accepted["singular"] != nil || accepted["kind"] != "Second" {
		t.Errorf("got accepted names %v, want plural and kind", accepted)
	}
	s.expect(s.mustCreateCRD(crd("other.com", "seconds", "First", `,"singular":"one","shortNames":["f"]`)),
		"Established", established)
	s.expect(s.mustCreateCRD(crd("example.com", "thirds", "Second", `,"listKind":"Thirds"`)), "NamesAccepted",
		`False/KindConflict/"Second" is already in use`)
	s.expect(s.mustCreateCRD(crd("example.com", "fourths", "Fourth", `,"listKind":"FirstList"`)), "NamesAccepted",
		`False/ListKindConflict/"FirstList" is already in use`)
	s.expect(s.mustCreateCRD(crd("example.com", "one", "Fifth", "")), "NamesAccepted",
		`False/PluralConflict/"one" is already in use`)

	if _, gone, err := s.Engine.Delete(t.Context(), s.target("firsts.example.com", ""), metav1.DeleteOptions{},
		s.caller()); err != nil || gone {
		t.Fatalf("delete: got gone %v, error %v; want a finalizer", gone, err)
	}
	first, err := s.Engine.Get(t.Context(), s.target("firsts.example.com", ""), "")
	if err != nil {
		t.Fatal(err)
	}
	deleted := s.tree(first)
	s.expect(deleted, "Terminating", "True/InstanceDeletionInProgress/CustomResource deletion is in progress")
	if f := object.Finalizers(deleted); len(f) != 1 || f[0] != "customresourcecleanup.apiextensions.k8s.io" ||
		object.Generation(deleted) != 1 {
		t.Errorf("got finalizers %v, generation %d", f, object.Generation(deleted)) // CRD-043
	}
	object.SetFinalizers(deleted, nil)
	if _, err := s.updateCRD(deleted, ""); err != nil {
		t.Fatal(err)
	}
	o, err := s.Engine.Get(t.Context(), s.target("seconds.example.com", ""), "")
	if err != nil {
		t.Fatal(err)
	}
	updated, err := s.updateCRD(s.tree(o), "status")
	if err != nil {
		t.Fatal(err)
	}
	s.expect(updated, "NamesAccepted", noConflicts)
	s.expect(updated, "Established", established)
}

// TestShortNamesOfTheSameKind checks that creates and updates accept short names that equal the plural or the singular
// of their own CRD, but not those that equal a name of another CRD (CRD-041).
func TestShortNamesOfTheSameKind(t *testing.T) {
	s := serve(t)
	s.mustCreateCRD(crd("example.com", "firsts", "First", ""))
	s.expect(s.mustCreateCRD(crd("example.com", "thirds", "Third", `,"shortNames":["third"]`)), "NamesAccepted",
		noConflicts)
	second := s.mustCreateCRD(crd("example.com", "seconds", "Second", `,"shortNames":["s"]`))
	for _, names := range [][]any{{"second"}, {"s", "seconds", "second"}} {
		second["spec"].(object.Tree)["names"].(object.Tree)["shortNames"] = names
		got, err := s.updateCRD(second, "")
		if err != nil {
			t.Fatal(err)
		}
		s.expect(got, "NamesAccepted", noConflicts)
		accepted := status(got)["acceptedNames"].(object.Tree)["shortNames"]
		if fmt.Sprint(accepted) != fmt.Sprint(names) {
			t.Errorf("got accepted short names %v, want %v", accepted, names)
		}
		second = got
	}
	second["spec"].(object.Tree)["names"].(object.Tree)["shortNames"] = []any{"firsts"}
	got, err := s.updateCRD(second, "")
	if err != nil {
		t.Fatal(err)
	}
	s.expect(got, "NamesAccepted", `False/ShortNamesConflict/"firsts" is already in use`)
}

// TestEstablishedLosesOnlyTheContestedName checks an established CRD that requests a taken name. It retains its old
// name and remains established (CRD-041).
func TestEstablishedLosesOnlyTheContestedName(t *testing.T) {
	s := serve(t)
	s.mustCreateCRD(crd("example.com", "firsts", "First", `,"singular":"one"`))
	second := s.mustCreateCRD(crd("example.com", "seconds", "Second", ""))
	second["spec"].(object.Tree)["names"].(object.Tree)["singular"] = "one"
	got, err := s.updateCRD(second, "")
	if err != nil {
		t.Fatal(err)
	}
	s.expect(got, "NamesAccepted", `False/SingularConflict/"one" is already in use`)
	s.expect(got, "Established", established)
	if accepted := status(got)["acceptedNames"].(object.Tree); accepted["singular"] != "second" {
		t.Errorf("got accepted names %v, want the singular second", accepted)
	}
	if object.Generation(got) != 2 || status(got)["observedGeneration"] != int64(2) {
		t.Errorf("got generation %d, observed %v; want 2, 2", object.Generation(got), status(got)["observedGeneration"])
	}
}

// TestBuiltinNamesAreTaken checks that a CRD cannot have the names of a built-in kind in its group.
func TestBuiltinNamesAreTaken(t *testing.T) {
	s := serve(t)
	leases := strings.Replace(crd("coordination.k8s.io", "leases", "Lease", ""), `"metadata":{`,
		`"metadata":{"annotations":{"api-approved.kubernetes.io":"unapproved, a test"},`, 1)
	got := s.mustCreateCRD(leases)
	s.expect(got, "NamesAccepted", `False/ListKindConflict/"LeaseList" is already in use`)
	s.expect(got, "KubernetesAPIApprovalPolicyConformant",
		`False/UnapprovedAnnotation/not approved: "unapproved, a test"`)
}

// TestUpdates checks the immutable fields of a CRD, and status.storedVersions. The server adds each storage version to
// that list, ignores the list in an update of the CRD, and rejects the removal of a version in it.
// CRD-042 CRD-048 VER-036 VER-038 VER-040
func TestUpdates(t *testing.T) {
	s := serve(t)
	base := s.mustCreateCRD(crd("example.com", "foos", "Foo", ""))
	change := func(f func(spec object.Tree)) error {
		c := object.Copy(base)
		f(c["spec"].(object.Tree))
		_, err := s.updateCRD(c, "")
		return err
	}
	for name, f := range map[string]func(object.Tree){
		"spec.scope":        func(spec object.Tree) { spec["scope"] = "Cluster" },
		"spec.group":        func(spec object.Tree) { spec["group"] = "other.com" },
		"spec.names.plural": func(spec object.Tree) { spec["names"].(object.Tree)["plural"] = "bars" },
		"spec.names.kind":   func(spec object.Tree) { spec["names"].(object.Tree)["kind"] = "Bar" },
	} {
		if err := change(f); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name+": Invalid value") ||
			!strings.Contains(err.Error(), "field is immutable") {
			t.Errorf("%s: %v", name, err)
		}
	}
	moved := object.Copy(base)
	versions := moved["spec"].(object.Tree)["versions"].([]any)
	v2 := object.Copy(versions[0].(object.Tree))
	v2["name"] = "v2"
	versions[0].(object.Tree)["storage"] = false
	moved["spec"].(object.Tree)["versions"] = append(versions, v2)
	moved["status"] = object.Tree{"storedVersions": []any{"v9"}}
	got, err := s.updateCRD(moved, "")
	if err != nil {
		t.Fatal(err)
	}
	if stored := fmt.Sprint(object.Strings(status(got), "storedVersions")); stored != "[v1 v2]" {
		t.Errorf("got stored versions %s, want [v1 v2]", stored)
	}
	s.expect(got, "Established", established)
	got["spec"].(object.Tree)["versions"] = got["spec"].(object.Tree)["versions"].([]any)[1:]
	if _, err := s.updateCRD(object.Copy(got), ""); err == nil ||
		!strings.Contains(err.Error(), "v1 was previously a storage version") {
		t.Errorf("removal of a stored version: got %v, want an error", err)
	}
	status(got)["storedVersions"] = []any{"v2"}
	if got, err = s.updateCRD(got, "status"); err != nil {
		t.Fatal(err)
	}
	if n := len(got["spec"].(object.Tree)["versions"].([]any)); n != 2 {
		t.Errorf("update of /status: got %d versions in spec, want 2", n)
	}
}

// TestConcurrentConflicts checks that only one of many concurrent CRDs with the same name is accepted (CRD-041).
func TestConcurrentConflicts(t *testing.T) {
	s := serve(t)
	var g sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for i := range 12 {
		g.Go(func() {
			o, err := s.Engine.Create(t.Context(), s.target("", ""),
				s.decode(crd("example.com", fmt.Sprintf("kind%ds", i), fmt.Sprint("Kind", i),
					`,"shortNames":["same"]`)), s.caller())
			if err != nil {
				t.Error(err)
				return
			}
			tree, err := o.Tree()
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if conditions(tree)["NamesAccepted"] == noConflicts {
				accepted++
			}
		})
	}
	g.Wait()
	if accepted != 1 {
		t.Errorf("got %d CRDs with the name, want 1", accepted)
	}
}

// TestWarnings checks the warnings about unknown formats and unmergeable sets in a schema.
func TestWarnings(t *testing.T) {
	s := serve(t)
	s.mustCreateCRD(strings.Replace(crd("example.com", "foos", "Foo", ""), `{"type":"object"}`,
		`{"type":"object","properties":{"a":{"type":"string","format":"odd"},"b":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object","x-kubernetes-map-type":"atomic"}}}}`, 1))
	want := []string{`unrecognized format "odd"`,
		`x-kubernetes-list-type: set for items of type "object" is not supported by server-side apply or CEL validation rules`}
	if fmt.Sprint(s.warnings) != fmt.Sprint(want) {
		t.Errorf("got warnings %q, want %q", s.warnings, want)
	}
}

// BenchmarkCreateCRD measures the create of a small CRD in the engine, with an in-memory store.
func BenchmarkCreateCRD(b *testing.B) {
	s := serve(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		body := s.decode(crd(fmt.Sprintf("g%d.example.com", i), "foos", "Foo", ""))
		if _, err := s.Engine.Create(context.Background(), s.target("", ""), body,
			verb.Caller{FieldManager: "b", Validation: "Ignore", Warn: func(string) {}}); err != nil {
			b.Fatal(err)
		}
	}
}
