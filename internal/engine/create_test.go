package engine

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const cronTab = `{"metadata":{"name":"my-cron"},"spec":{"cronSpec":"* * * * */5","image":"awesome"}}`

// TestCreate checks the created object and its metadata. A get and a list return the same object (CRD-018, CRD-019,
// CRD-023, CRD-025, SUB-013).
func TestCreate(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	equal(t, "spec", created["spec"], map[string]any{"cronSpec": "* * * * */5", "image": "awesome"})
	equal(t, "generation", valueAt(created, "metadata.generation"), 1)
	equal(t, "creationTimestamp", valueAt(created, "metadata.creationTimestamp"), "2026-05-06T07:08:09Z")
	equal(t, "namespace", valueAt(created, "metadata.namespace"), "default")
	if object.ResourceVersion(created) == "" || len(object.UID(created)) != 36 ||
		valueAt(created, "metadata.selfLink") != nil {
		t.Fatalf("unexpected metadata %v", created["metadata"])
	}
	equal(t, "object read back", f.get(f.cron("my-cron")), created)
	list, err := f.List(f.ctx, f.cron(""), read.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
}

// TestCreateManagedFields checks the managedFields entry of a created object (CRD-057).
func TestCreateManagedFields(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	entries := valueAt(created, "metadata.managedFields").([]any)
	entry := entries[0].(object.Tree)
	equal(t, "entry", entry, map[string]any{
		"apiVersion": "stable.example.com/v1", "manager": "tester", "operation": "Update",
		"time":       "2026-05-06T07:08:09Z",
		"fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{".": map[string]any{},
			"f:cronSpec": map[string]any{}, "f:image": map[string]any{}}},
	})
}

// TestCreateExisting checks the errors for a create of an existing object and for a get of a missing one
// (CRD-052).
func TestCreateExisting(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	_, err := f.create(f.cron(""), cronTab)
	s := f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists,
		`crontabs.stable.example.com "my-cron" already exists`)
	equal(t, "details", s.Details, metav1.StatusDetails{Name: "my-cron", Group: "stable.example.com", Kind: "crontabs"})
	_, err = f.Get(f.ctx, f.cron("x"), "")
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "x" not found`)
}

// TestGenerateName checks the names that are generated from generateName, their maximum length, and the error for
// an invalid prefix (CRD-054).
func TestGenerateName(t *testing.T) {
	f := newFixture(t)
	seen := map[string]bool{}
	for range 20 {
		name := object.Name(treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"generateName":"job-"}}`)))
		if len(name) != len("job-")+5 || !strings.HasPrefix(name, "job-") || seen[name] {
			t.Fatalf("got generated name %q, want a new one with 5 random characters", name)
		}
		seen[name] = true
	}
	long := strings.Repeat("a", 70)
	name := object.Name(treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"generateName":"`+long+`"}}`)))
	equal(t, "length", len(name), 63)
	_, err := f.create(f.cron(""), `{"metadata":{"generateName":"Not-valid-"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "metadata.generateName")
}

// TestCreateWrongKind checks the errors for a body whose apiVersion, kind, field types or namespace do not match
// the request (CRD-014).
func TestCreateWrongKind(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ body, text string }{
		{`{"apiVersion":"stable.example.com/v2","metadata":{"name":"a"}}`,
			"the API version in the data (stable.example.com/v2) does not match the expected API version " +
				"(stable.example.com/v1)"},
		{`{"kind":"","metadata":{"name":"a"}}`, "Object 'Kind' is missing"},
		{`{"metadata":{"name":"a","labels":{"x":1}}}`,
			`CronTab in version "v1" cannot be handled as a CronTab: json: cannot unmarshal number into Go struct ` +
				`field ObjectMeta.labels of type string`},
		{`{"metadata":{"name":"a","namespace":"other"}}`,
			"the namespace of the provided object does not match the namespace sent on the request"},
	} {
		_, err := f.create(f.cron(""), c.body)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, c.text)
	}
	_, err := f.create(f.cron(""), `{"kind":"Foo","metadata":{"name":"a"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		`Foo.stable.example.com "a" is invalid: kind: Invalid value: "Foo": must be CronTab`)
}

// TestCreateInvalidMetadata checks the validation errors of metadata, and the warnings for unqualified finalizers
// (CRD-020, CRD-054, CRD-072, SUB-036, SUB-045).
func TestCreateInvalidMetadata(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ body, text string }{
		{`{"metadata":{}}`, "metadata.name: Required value: name or generateName is required"},
		{`{"metadata":{"name":"Upper"}}`, "metadata.name: Invalid value: \"Upper\": a lowercase RFC 1123 subdomain"},
		{`{"metadata":{"name":"a","labels":{"-x":"y"}}}`, "metadata.labels: Invalid value: \"-x\""},
		{`{"metadata":{"name":"a","finalizers":["no good/x"]}}`, "metadata.finalizers"},
		{`{"metadata":{"name":"a","annotations":{"big":"` + strings.Repeat("x", 256<<10) + `"}}}`,
			"metadata.annotations: Too long"},
		{`{"metadata":{"name":"a","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p"}]}}`,
			"metadata.ownerReferences[0].uid: Required value"},
	} {
		_, err := f.create(f.cron(""), c.body)
		s := f.expectStatus(err, 422, metav1.StatusReasonInvalid, c.text)
		if s.Details.Kind != "CronTab" || s.Details.Group != "stable.example.com" || len(s.Details.Causes) == 0 {
			t.Fatalf("unexpected details %v", s.Details)
		}
	}
	_, err := f.create(f.cron(""), `{"metadata":{"name":"a","resourceVersion":"7"}}`)
	f.expectStatus(err, 500, metav1.StatusReasonUnknown, "resourceVersion should not be set on objects to be created")
	f.caller.DryRun = true
	dry := f.mustCreate(f.cron(""), `{"metadata":{"name":"a","resourceVersion":"7"}}`)
	equal(t, "resourceVersion of a dry run", object.ResourceVersion(treeOf(t, dry)), "7")
	f.caller.DryRun = false
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":["short","example.com","example.com/fine"]}}`)
	equal(t, "warnings", f.warnings, []string{
		`metadata.finalizers: "example.com": prefer a domain-qualified finalizer name including a path (/) to avoid ` +
			`accidental conflicts with other finalizer writers`,
		`metadata.finalizers: "short": prefer a domain-qualified finalizer name to avoid accidental conflicts with ` +
			`other finalizer writers`,
	})
}

// TestCreateIgnoresSystemFields checks that a create and a creating apply ignore the metadata fields that the
// server sets (CRD-072).
func TestCreateIgnoresSystemFields(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""),
		`{"metadata":{"name":"a","uid":"mine","generation":7,"selfLink":"/x",`+
			`"creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z",`+
			`"deletionGracePeriodSeconds":5}}`))
	equal(t, "generation", valueAt(created, "metadata.generation"), 1)
	equal(t, "creationTimestamp", valueAt(created, "metadata.creationTimestamp"), "2026-05-06T07:08:09Z")
	for _, field := range []string{"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		equal(t, field, valueAt(created, "metadata."+field), nil)
	}
	if object.UID(created) == "mine" {
		t.Fatal("got the UID of the request, want a generated one")
	}
	equal(t, "managedFields", valueAt(created, "metadata.managedFields"), nil)
	created = f.mustPatch(f.cron("b"), applyPatch,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"b","selfLink":"/x",`+
			`"generation":7,"creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z",`+
			`"deletionGracePeriodSeconds":5}}`)
	equal(t, "generation", valueAt(created, "metadata.generation"), 1)
	equal(t, "creationTimestamp", valueAt(created, "metadata.creationTimestamp"), "2026-05-06T07:08:09Z")
	for _, field := range []string{"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"} {
		equal(t, field+" after an apply", valueAt(created, "metadata."+field), nil)
	}
}

// TestFieldValidation checks the treatment of unknown and duplicate fields with fieldValidation Strict, Ignore and
// Warn (CRD-059).
func TestFieldValidation(t *testing.T) {
	f := newFixture(t)
	body := `{"metadata":{"name":"a","bar":1},"spec":{"foo":1,"image":"i"}}`
	_, err := f.create(f.cron(""), body)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest,
		`CronTab in version "v1" cannot be handled as a CronTab: strict decoding error: unknown field `+
			`"metadata.bar", unknown field "spec.foo"`)
	f.caller.Validation = "Ignore"
	created := treeOf(t, f.mustCreate(f.cron(""), body))
	equal(t, "spec", created["spec"], map[string]any{"image": "i"})
	equal(t, "warnings", f.warnings, nil)
	f.caller.Validation = "Warn"
	f.mustCreate(f.cron(""), strings.Replace(body, `"a"`, `"b"`, 1))
	equal(t, "warnings", f.warnings, []string{`unknown field "metadata.bar"`, `unknown field "spec.foo"`})
	b := f.body(f.cron(""), `{"metadata":{"name":"c"}}`)
	b.Strict = []string{`duplicate field "spec.image"`}
	f.caller.Validation = "Strict"
	_, err = f.Create(f.ctx, f.cron(""), b, f.caller)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, `strict decoding error: duplicate field "spec.image"`)
	_, err = f.create(f.configMap(""), `{"metadata":{"name":"a"},"dat":{}}`)
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dat"`)
}

// TestCreateDryRun checks that a dry run stores nothing, and returns the same errors as a create (CRD-058).
func TestCreateDryRun(t *testing.T) {
	f := newFixture(t)
	f.caller.DryRun = true
	before := f.Store.Head().Revision()
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	if object.UID(created) == "" || object.ResourceVersion(created) != "" || len(f.eventsAfter(before)) > 0 {
		t.Fatalf("got %v from a dry run, want a UID, no resourceVersion, and no change in the store", created)
	}
	f.caller.DryRun = false
	f.mustCreate(f.cron(""), cronTab)
	f.caller.DryRun = true
	_, err := f.create(f.cron(""), cronTab)
	f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists, "already exists")
	_, err = f.create(f.cron(""), `{"metadata":{"name":"Bad_Name"}}`)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, `metadata.name: Invalid value: "Bad_Name"`)
}

// TestCreateDropsStatus checks that a create ignores the status (SUB-006).
func TestCreateDropsStatus(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"status":{"phase":"Done"}}`))
	equal(t, "status", created["status"], nil)
}

// TestCreateInNamespaces checks creates in a missing, an existing and a terminating namespace (CRD-031).
func TestCreateInNamespaces(t *testing.T) {
	f := newFixture(t)
	other := f.cron("")
	other.Namespace = "other"
	_, err := f.create(other, cronTab)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `namespaces "other" not found`)
	f.mustCreate(f.target("", "v1", "namespaces", ""), `{"metadata":{"name":"other"}}`)
	f.mustCreate(other, cronTab)
	ns := f.target("", "v1", "namespaces", "")
	ns.Name = "other"
	f.delete(ns, metav1.DeleteOptions{})
	_, err = f.create(other, `{"metadata":{"name":"late"}}`)
	s := f.expectStatus(err, 403, metav1.StatusReasonForbidden,
		`crontabs.stable.example.com "late" is forbidden: unable to create new content in namespace other because `+
			`it is being terminated`)
	equal(t, "causes", s.Details.Causes,
		[]metav1.StatusCause{{Type: "NamespaceTerminating", Message: "namespace other is being terminated",
			Field: "metadata.namespace"}})
}

// TestCreateWhileTerminating checks that no object can be created while its CRD is terminating (CRD-044).
func TestCreateWhileTerminating(t *testing.T) {
	f := newFixture(t)
	stale := f.cron("")
	f.writeCRD(strings.Replace(cronTabs(cronTabSchema, cronTabSchema), `"type":"NamesAccepted"`,
		`"type":"Terminating","status":"True"},{"type":"NamesAccepted"`, 1))
	for _, target := range []verb.Target{f.cron(""), stale} { // the guard fails for the stale target
		_, err := f.create(target, cronTab)
		f.expectStatus(err, 403, metav1.StatusReasonForbidden,
			`crontabs.stable.example.com "my-cron" is forbidden: create not allowed while custom resource `+
				`definition is terminating`)
	}
}

// TestCreateAfterCRDDeletion checks that a create whose CRD has just been deleted returns NotFound and stores
// nothing (CRD-027, CRD-029).
func TestCreateAfterCRDDeletion(t *testing.T) {
	f := newFixture(t)
	stale := f.cron("")
	f.commit(storage.Write{Key: cronTabKey, Expected: f.Store.Head().Get(cronTabKey).Modified})
	_, err := f.create(stale, cronTab)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	if n := f.Store.Head().Count("/registry/stable.example.com/", ""); n != 0 {
		t.Fatalf("got %d stored objects, want 0", n)
	}
}

// TestDuplicateOwners checks that a create drops a duplicate owner reference and returns a warning (CRD-066).
func TestDuplicateOwners(t *testing.T) {
	f := newFixture(t)
	owner := `{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"u1"}`
	created := treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a","ownerReferences":[`+owner+`,`+owner+`]}}`))
	if refs := object.OwnerReferences(created); len(refs) != 1 {
		t.Fatalf("got owner references %v, want one", refs)
	}
	if len(f.warnings) != 1 || !strings.Contains(f.warnings[0], "duplicate UID(s) observed: u1") {
		t.Fatalf("got warnings %v, want one about duplicate UIDs", f.warnings)
	}
}
