package corpus_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/testserver"
)

// suite is a declarative test suite of github.com/openshift/api. It lists objects that a CRD must accept or reject.
type suite struct {
	CRDName      string   `json:"crdName"`
	FeatureGates []string `json:"featureGates"`
	Tests        struct {
		OnCreate []suiteCase `json:"onCreate"`
		OnUpdate []suiteCase `json:"onUpdate"`
	} `json:"tests"`

	dir string
}

type suiteCase struct {
	Name                string          `json:"name"`
	InitialCRDPatches   json.RawMessage `json:"initialCRDPatches"`
	Initial             string          `json:"initial"`
	Updated             string          `json:"updated"`
	Expected            string          `json:"expected"`
	ExpectedError       string          `json:"expectedError"`
	ExpectedStatusError string          `json:"expectedStatusError"`
}

func readSuites(t *testing.T) (all []suite) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "suites", "openshift-api", "*", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("got no suites (%v)", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := suite{dir: filepath.Dir(path)}
		if err := yaml.Unmarshal(data, &s); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, s)
	}
	return all
}

// crd returns the first variant of the CRD that has the version of the suite's objects. It begins with the merged
// variant. If that lacks the version, the variant of a feature gate has it.
func (s *suite) crd(t *testing.T) []byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(s.dir, "crd", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append([]string{s.merged()}, paths...) {
		if crd := readCRD(t, path); s.servedBy(crd) {
			return crd
		}
	}
	t.Fatalf("got no CRD %s with the version of its suite", s.CRDName)
	return nil
}

// merged returns the path of the CRD that is merged from its variants. If the suite has a disabled feature gate, it
// returns the path of the ungated variant.
func (s *suite) merged() string {
	path := filepath.Join(root, "crds", "openshift-operator", s.CRDName+".yaml")
	if slices.ContainsFunc(s.FeatureGates, func(gate string) bool { return strings.HasPrefix(gate, "-") }) {
		path = filepath.Join(s.dir, "crd", "AAA_ungated.yaml")
	}
	return path
}

func readCRD(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	crd, _, err := object.DecodeYAML(data)
	if err != nil {
		t.Fatal(err)
	}
	delete(object.Metadata(crd), "annotations") // the variants have an annotation without a name
	return object.AppendJSON(nil, crd)
}

// servedBy reports whether a CRD has the version of the suite's objects.
func (s *suite) servedBy(js []byte) bool {
	cases := slices.Concat(s.Tests.OnCreate, s.Tests.OnUpdate)
	t, _, _ := object.DecodeYAML([]byte(cases[0].Initial))
	_, version, _ := strings.Cut(object.String(t, "apiVersion"), "/")
	crd, _, _ := object.DecodeJSON(js)
	return slices.ContainsFunc(nested[[]any](crd, "spec", "versions"),
		func(v any) bool { return nested[string](v, "name") == version })
}

// suiteRun is the run of a suite against a server.
type suiteRun struct {
	*client
	suite *suite
	crd   []byte
	cases int
}

const crdsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// TestSuites checks that the cases of OpenShift's suites have the expected results
// (VAL-028 VAL-029 VAL-030 VAL-031 VAL-033 VAL-049 VAL-139 VAL-166 DEF-002).
func TestSuites(t *testing.T) {
	requireCorpus(t)
	c := newClient(t, testserver.Start(t).Config)
	cases := 0
	for i, s := range readSuites(t) {
		if smallRun() && i%8 != 0 {
			continue
		}
		r := &suiteRun{client: c, suite: &s, crd: s.crd(t)}
		r.run(t)
		cases += r.cases
	}
	t.Logf("%d cases", cases)
	if cases < 90 {
		t.Errorf("got %d cases, want at least 90", cases)
	}
}

func (r *suiteRun) run(t *testing.T) {
	if _, err := r.do("POST", crdsPath, "application/json", r.crd); err != nil {
		t.Errorf("%s: %v", r.suite.CRDName, err)
		return
	}
	defer func() {
		path := crdsPath + "/" + r.suite.CRDName
		for _, err := r.do("DELETE", path, "", nil); err == nil; _, err = r.get(path) {
			runtime.Gosched() // until its objects are deleted
		}
	}()
	for _, c := range r.suite.Tests.OnCreate {
		r.cases++
		if err := r.onCreate(&c); err != nil {
			t.Errorf("%s: onCreate: %s: %v", filepath.Base(r.suite.dir), c.Name, err)
		}
	}
	for _, c := range r.suite.Tests.OnUpdate {
		r.cases++
		if err := r.onUpdate(&c); err != nil {
			t.Errorf("%s: onUpdate: %s: %v", filepath.Base(r.suite.dir), c.Name, err)
		}
	}
}

func (r *suiteRun) onCreate(c *suiteCase) error {
	created, err := r.create(c.Initial)
	if err != nil || c.ExpectedError != "" {
		return matches(c.ExpectedError, err)
	}
	defer r.delete(created)
	return sameAs(c.Expected, created)
}

func (r *suiteRun) onUpdate(c *suiteCase) error {
	if len(c.InitialCRDPatches) > 0 {
		if err := r.patchCRD(c.InitialCRDPatches); err != nil {
			return err
		}
	}
	created, err := r.create(c.Initial)
	if err == nil {
		defer r.delete(created)
		created, err = r.writeStatus(created, c.Initial)
	}
	if len(c.InitialCRDPatches) > 0 {
		if err := r.putCRD(r.crd); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("create initial object: %w", err)
	}
	updated, _, err := object.DecodeYAML([]byte(c.Updated))
	if err != nil {
		return err
	}
	md := object.EnsureMetadata(updated)
	for _, k := range []string{"name", "namespace", "resourceVersion", "uid"} {
		if v, ok := object.Metadata(created)[k]; ok {
			md[k] = v
		}
	}
	got, err := r.put(r.path(created), updated)
	if err != nil || c.ExpectedError != "" {
		return matches(c.ExpectedError, err)
	}
	got, err = r.writeStatus(got, c.Updated)
	if err != nil || c.ExpectedStatusError != "" {
		return matches(c.ExpectedStatusError, err)
	}
	return sameAs(c.Expected, got)
}

// patchCRD replaces the CRD's spec by a patched one.
func (r *suiteRun) patchCRD(patches json.RawMessage) error {
	patch, err := jsonpatch.DecodePatch(patches)
	if err != nil {
		return err
	}
	patched, err := patch.Apply(r.crd)
	if err != nil {
		return err
	}
	return r.putCRD(patched)
}

// putCRD replaces the CRD's spec.
func (r *suiteRun) putCRD(crd []byte) error {
	current, err := r.get(crdsPath + "/" + r.suite.CRDName)
	if err != nil {
		return err
	}
	wanted, _, err := object.DecodeJSON(crd)
	if err != nil {
		return err
	}
	current["spec"] = wanted["spec"]
	_, err = r.put(crdsPath+"/"+r.suite.CRDName, current)
	return err
}

func (r *suiteRun) get(path string) (object.Tree, error) { return r.exchange("GET", path, nil) }

func (r *suiteRun) put(path string, t object.Tree) (object.Tree, error) {
	return r.exchange("PUT", path, t)
}

func (r *suiteRun) exchange(method, path string, t object.Tree) (object.Tree, error) {
	var body []byte
	if t != nil {
		body = object.AppendJSON(nil, t)
	}
	out, err := r.do(method, path, "application/json", body)
	if err != nil {
		return nil, statusError{out}
	}
	answer, _, err := object.DecodeJSON(out)
	return answer, err
}

// statusError is an error with the message of a Status.
type statusError struct{ body []byte }

func (e statusError) Error() string {
	t, _, err := object.DecodeJSON(e.body)
	if err != nil {
		return string(e.body)
	}
	return object.String(t, "message")
}

func (r *suiteRun) create(manifest string) (object.Tree, error) {
	t, _, err := object.DecodeYAML([]byte(manifest))
	if err != nil {
		return nil, err
	}
	if md := object.EnsureMetadata(t); md["name"] == nil && md["generateName"] == nil {
		md["generateName"] = "test-"
	}
	if ns := object.Namespace(t); ns != "" {
		_, _ = r.do("POST", "/api/v1/namespaces", asYAML, []byte("metadata: {name: "+ns+"}")) // it may exist
	}
	return r.exchange("POST", r.collection(t), t)
}

func (r *suiteRun) collection(t object.Tree) string {
	crd, _, _ := object.DecodeJSON(r.crd)
	path := "/apis/" + object.String(t, "apiVersion")
	if nested[string](crd, "spec", "scope") == "Namespaced" {
		path += "/namespaces/" + cmp.Or(object.Namespace(t), "default")
	}
	return path + "/" + nested[string](crd, "spec", "names", "plural")
}

func (r *suiteRun) path(t object.Tree) string { return r.collection(t) + "/" + object.Name(t) }

func (r *suiteRun) delete(t object.Tree) { _, _ = r.do("DELETE", r.path(t), "", nil) }

// writeStatus writes the status of a manifest to t, if it has one.
func (r *suiteRun) writeStatus(t object.Tree, manifest string) (object.Tree, error) {
	wanted, _, err := object.DecodeYAML([]byte(manifest))
	if err != nil || wanted["status"] == nil {
		return t, err
	}
	t["status"] = wanted["status"]
	return r.put(r.path(t)+"/status", t)
}

// printedValue matches a value in an error message of a Kubernetes release before v1.37. Release v1.37 prints values
// as JSON or omits them.
var printedValue = regexp.MustCompile(`(Invalid|Duplicate) value: ("(object|array|string|integer|number|boolean|null)"|map\[string\]interface \{\}\{[^}]*\}?)(: )?`)

// matches returns an error unless the message of err contains want. Values in the message may differ. If want is "",
// err must be nil.
func matches(want string, err error) error {
	switch {
	case want == "" && err == nil:
		return nil
	case want == "":
		return err
	case err == nil:
		return fmt.Errorf("got no error, want %q", want)
	}
	got := err.Error()
	if strings.Contains(got, want) {
		return nil
	}
	for _, part := range printedValue.Split(want, -1) {
		if !strings.Contains(got, part) {
			return fmt.Errorf("got error\n%s\nwant\n%s", got, want)
		}
	}
	return nil
}

// sameAs compares an object, except its metadata, with a manifest.
func sameAs(manifest string, got object.Tree) error {
	want, _, err := object.DecodeYAML([]byte(manifest))
	if err != nil {
		return err
	}
	got = object.Copy(got)
	delete(got, "metadata")
	delete(want, "metadata")
	if !object.Equal(got, want) {
		return fmt.Errorf("got\n%s\nwant\n%s", object.AppendJSON(nil, got), object.AppendJSON(nil, want))
	}
	return nil
}

// TestRejected checks that objects which the Gateway API project lists as invalid are rejected by validation
// (VAL-018 VAL-020).
func TestRejected(t *testing.T) {
	requireCorpus(t)
	for _, channel := range []string{"gateway-api-standard", "gateway-api-experimental"} {
		c := newClient(t, testserver.Start(t).Config)
		for _, crd := range read(t, "crds", channel) {
			if _, err := c.do("POST", crdsPath, asYAML, crd.yaml); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range read(t, "rejected", "gateway-api-standard") {
			if strings.Contains(strings.SplitN(string(f.yaml), "\n", 2)[0],
				"/experimental/") != strings.HasSuffix(channel, "experimental") {
				continue
			}
			r := suiteRun{client: c, crd: crdOf(t, channel, nested[string](f.tree, "kind"))}
			_, err := r.create(string(f.yaml))
			if err == nil || !strings.Contains(err.Error(), "is invalid: ") {
				t.Errorf("%s: got error %v, want a validation error", f.path, err)
			}
		}
	}
}

// crdOf returns the CRD of a kind in a project as JSON.
func crdOf(t *testing.T, project, kind string) []byte {
	t.Helper()
	for _, crd := range read(t, "crds", project) {
		if nested[string](crd.tree, "spec", "names", "kind") == kind {
			js, err := json.Marshal(crd.tree)
			if err != nil {
				t.Fatal(err)
			}
			return js
		}
	}
	t.Fatalf("got no CRD of %s in %s", kind, project)
	return nil
}
