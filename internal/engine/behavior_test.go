package engine

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// What a built-in kind has to say to a write is asked, by each verb.
func TestBuiltinKindsAreAsked(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"fixed"},"immutable":true,"data":{"k":"1"}}`)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	w.mustCreate(w.definition(""), claiming("foos", "Foo", "x"))
	patch := func(at Target, data string) error {
		_, err := w.patch(at, merging, data)
		return err
	}
	create := func(at Target, data string) error {
		_, err := w.create(at, data)
		return err
	}
	for text, err := range map[string]error{
		"data: Forbidden: field is immutable when `immutable` is set":        patch(w.configMap("fixed"), `{"data":{"k":"2"}}`),
		`data[no good]: Invalid value`:                                       patch(w.configMap("a"), `{"data":{"no good":"2"}}`),
		`data[not good]: Invalid value`:                                      create(w.configMap(""), `{"metadata":{"name":"b"},"data":{"not good":"2"}}`),
		`metadata.name: Invalid value: "a.b"`:                                create(w.namespace(""), `{"metadata":{"name":"a.b"}}`),
		`spec.scope: Unsupported value: "Galaxy"`:                            create(w.definition(""), strings.Replace(claiming("bars", "Bar", "y"), `"Cluster"`, `"Galaxy"`, 1)),
		`spec.versions: Invalid value`:                                       patch(w.definition("foos.example.com"), `{"spec":{"versions":[{"name":"v1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`),
		`metadata.name: Invalid value: "bars.example.com": must be spec.nam`: create(w.definition(""), strings.Replace(claiming("bars", "Bar", "y"), `"plural":"bars"`, `"plural":"cars"`, 1)),
	} {
		w.refused(err, 422, metav1.StatusReasonInvalid, text)
	}
}

// What is stored and no longer valid is refused with each write, that of its status included, as upstream does.
func TestWritesOfWhatIsInvalid(t *testing.T) {
	w := newWorld(t)
	ns := treeOf(t, w.mustCreate(w.namespace(""), `{"metadata":{"name":"n"}}`))
	set(ns, "metadata.finalizers", []any{"bare"})
	key := "/registry/namespaces/n"
	w.commit(storage.Write{Key: key, Value: object.Pack(ns, 0).JSON(), Expected: w.Store.Head().Get(key).Modified})
	for sub, data := range map[string]string{"": `{"metadata":{"labels":{"a":"b"}}}`, "status": `{"status":{"conditions":[{"type":"C","status":"True"}]}}`} {
		_, err := w.patch(w.namespace("n").sub(sub), merging, data)
		w.refused(err, 422, metav1.StatusReasonInvalid, "name is neither a standard finalizer name nor is it fully qualified")
	}
}

// A kind's warnings are given by a create and by an update.
func TestWarningsOfKinds(t *testing.T) {
	const warning = "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
	w := newWorld(t)
	w.mustCreate(w.service(""), `{"metadata":{"name":"a"},"spec":{"externalIPs":["192.0.2.1"],"ports":[{"port":80}]}}`)
	w.mustCreate(w.service(""), `{"metadata":{"name":"b"},"spec":{"ports":[{"port":80}]}}`)
	equal(t, "of the creates", w.warnings, []string{warning})
	w.mustPatch(w.service("b"), merging, `{"spec":{"externalIPs":["192.0.2.1"]}}`)
	equal(t, "with the update", w.warnings, []string{warning, warning})
}

// Of many problems the first thousand are told.
func TestProblemsAreBounded(t *testing.T) {
	w := newWorld(t)
	var bad []string
	for i := range maxProblems + 1 {
		bad = append(bad, fmt.Sprintf(`"no good %d"`, i))
	}
	_, err := w.create(w.configMap(""), fmt.Sprintf(`{"metadata":{"name":"a","finalizers":[%s]}}`, strings.Join(bad, ",")))
	s := w.refused(err, 422, metav1.StatusReasonInvalid, "metadata.finalizers")
	equal(t, "causes", len(s.Details.Causes), maxProblems)
}

// CRD-034: a CRD in its legacy form is judged as its author wrote it.
func TestLegacyFormIsJudged(t *testing.T) {
	w := newWorld(t)
	at := w.at("apiextensions.k8s.io", "v1beta1", "customresourcedefinitions", "")
	const manifest = `{"metadata":{"name":"foos.example.com"},"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"foos","kind":"Foo"},
"preserveUnknownFields":false,"validation":{"openAPIV3Schema":{"type":"object"}},"versions":[{"name":"v1","served":true,"storage":true%s}]}}`
	twice := fmt.Sprintf(manifest, `,"schema":{"openAPIV3Schema":{"type":"object"}}`)
	_, err := w.create(at, twice)
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.versions: Invalid value")
	w.mustCreate(at, fmt.Sprintf(manifest, ""))
	at.Name = "foos.example.com"
	w.mustPatch(at, merging, `{"metadata":{"labels":{"a":"b"}}}`)
	_, err = w.edit(at, func(o object.Tree) { o["spec"] = decode(t, twice)["spec"] })
	w.refused(err, 422, metav1.StatusReasonInvalid, "spec.versions: Invalid value")
}
