package engine

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestBuiltinKindValidation checks that every verb validates objects of built-in kinds.
func TestBuiltinKindValidation(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"fixed"},"immutable":true,"data":{"k":"1"}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.crd(""), crdManifest("foos", "Foo", "x"))
	patch := func(at verb.Target, data string) error {
		_, err := f.patch(at, mergePatch, data)
		return err
	}
	create := func(at verb.Target, data string) error {
		_, err := f.create(at, data)
		return err
	}
	for text, err := range map[string]error{
		"data: Forbidden: field is immutable when `immutable` is set": patch(f.configMap("fixed"),
			`{"data":{"k":"2"}}`),
		`data[no good]: Invalid value`: patch(f.configMap("a"),
			`{"data":{"no good":"2"}}`),
		`data[not good]: Invalid value`: create(f.configMap(""),
			`{"metadata":{"name":"b"},"data":{"not good":"2"}}`),
		`metadata.name: Invalid value: "a.b"`: create(f.namespace(""),
			`{"metadata":{"name":"a.b"}}`),
		`spec.scope: Unsupported value: "Galaxy"`: create(f.crd(""),
			strings.Replace(crdManifest("bars", "Bar", "y"), `"Cluster"`, `"Galaxy"`, 1)),
		`spec.versions: Invalid value`: patch(f.crd("foos.example.com"),
			`{"spec":{"versions":[{"name":"v1","served":true,"storage":false,`+
				`"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`),
		`metadata.name: Invalid value: "bars.example.com": must be spec.nam`: create(f.crd(""),
			strings.Replace(crdManifest("bars", "Bar", "y"), `"plural":"bars"`, `"plural":"cars"`, 1)),
	} {
		f.expectStatus(err, 422, metav1.StatusReasonInvalid, text)
	}
}

// TestWritesToInvalidObject checks that a stored object that has become invalid cannot be written, as in upstream.
// This includes writes of its status.
func TestWritesToInvalidObject(t *testing.T) {
	f := newFixture(t)
	ns := treeOf(t, f.mustCreate(f.namespace(""), `{"metadata":{"name":"n"}}`))
	set(ns, "metadata.finalizers", []any{"bare"})
	key := "/registry/namespaces/n"
	f.commit(storage.Write{Key: key, Value: object.Pack(ns, 0).JSON(), Expected: f.Store.Head().Get(key).Modified})
	for sub, data := range map[string]string{"": `{"metadata":{"labels":{"a":"b"}}}`,
		"status": `{"status":{"conditions":[{"type":"C","status":"True"}]}}`} {
		_, err := f.patch(subresource(f.namespace("n"), sub), mergePatch, data)
		f.expectStatus(err, 422, metav1.StatusReasonInvalid,
			"name is neither a standard finalizer name nor is it fully qualified")
	}
}

// TestKindWarnings checks that creates and updates return the warnings of their kind.
func TestKindWarnings(t *testing.T) {
	const warning = "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
	f := newFixture(t)
	f.mustCreate(f.service(""), `{"metadata":{"name":"a"},"spec":{"externalIPs":["192.0.2.1"],"ports":[{"port":80}]}}`)
	f.mustCreate(f.service(""), `{"metadata":{"name":"b"},"spec":{"ports":[{"port":80}]}}`)
	equal(t, "warnings of the creates", f.warnings, []string{warning})
	f.mustPatch(f.service("b"), mergePatch, `{"spec":{"externalIPs":["192.0.2.1"]}}`)
	equal(t, "warnings after the update", f.warnings, []string{warning, warning})
}

// TestValidationErrorLimit checks that a Status lists at most 1,000 causes.
func TestValidationErrorLimit(t *testing.T) {
	f := newFixture(t)
	var bad []string
	for i := range 1001 {
		bad = append(bad, fmt.Sprintf(`"no good %d"`, i))
	}
	_, err := f.create(f.configMap(""), fmt.Sprintf(`{"metadata":{"name":"a","finalizers":[%s]}}`,
		strings.Join(bad, ",")))
	s := f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.finalizers")
	equal(t, "causes", len(s.Details.Causes), 1000)
}

// TestLegacyCRDValidation checks that the server validates a v1beta1 CRD in its v1beta1 form, as the client sent it
// (CRD-034).
func TestLegacyCRDValidation(t *testing.T) {
	f := newFixture(t)
	at := f.target("apiextensions.k8s.io", "v1beta1", "customresourcedefinitions", "")
	const manifest = `{"metadata":{"name":"foos.example.com"},"spec":{"group":"example.com","scope":"Cluster",
"names":{"plural":"foos","kind":"Foo"},
"preserveUnknownFields":false,"validation":{"openAPIV3Schema":{"type":"object"}},"versions":[{"name":"v1",
"served":true,"storage":true%s}]}}`
	duplicate := fmt.Sprintf(manifest, `,"schema":{"openAPIV3Schema":{"type":"object"}}`)
	_, err := f.create(at, duplicate)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.versions: Invalid value")
	f.mustCreate(at, fmt.Sprintf(manifest, ""))
	at.Name = "foos.example.com"
	f.mustPatch(at, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	_, err = f.edit(at, func(o object.Tree) { o["spec"] = decode(t, duplicate)["spec"] })
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "spec.versions: Invalid value")
}
