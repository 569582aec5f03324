package kinds_test

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// testdata/discovery.json holds the kinds in the discovery of kube-apiserver v1.37.1. testdata/kube-apiserver.json
// holds its results for each sample: the stored object after a create, the stored object after an update of /status,
// the Table of the new object, and whether a delete returned the object. Admission plugins were disabled.

type served struct {
	Version, Plural, Kind, Singular        string
	Namespaced                             bool
	Verbs, Short, Categories, Subresources []string
}

type recorded struct {
	Stored, Status map[string]any
	Columns        []metav1.TableColumnDefinition
	Cells          []any
	ReturnsDeleted bool
}

func readJSON[T any](t *testing.T, path string) T {
	t.Helper()
	var out T
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// discovered returns what discovery reports about a version. It omits /scale and the subresources in notCompared.
func discovered(v *resource.Version) served {
	n, subs := v.Definition.Names, []string{}
	for _, s := range v.Subresources {
		if !slices.Contains(notCompared, s.Name) {
			subs = append(subs, s.Name)
		}
	}
	if v.Status {
		subs = append(subs, "status")
	}
	slices.Sort(subs)
	return served{v.APIVersion, n.Plural, n.Kind, n.Singular, v.Definition.Namespaced, v.Definition.Verbs, n.ShortNames,
		n.Categories, subs}
}

// notCompared lists the subresources that discovery.json omits.
var notCompared = []string{"attach", "exec", "log", "portforward", "proxy", "token"}

// normalizeEmpty replaces empty lists by nil.
func normalizeEmpty(s served) served {
	for _, l := range []*[]string{&s.Verbs, &s.Short, &s.Categories, &s.Subresources} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	return s
}

// TestDiscovery checks that the names, verbs and subresources of the built-in kinds equal kube-apiserver's (CRD-049).
func TestDiscovery(t *testing.T) {
	expected := map[string]served{}
	for _, want := range readJSON[[]served](t, "testdata/discovery.json") {
		expected[want.Version+" "+want.Plural] = want
	}
	for _, d := range kinds.Definitions(kinds.Config{}) {
		for _, v := range d.Versions {
			if d.Strategy == nil {
				continue // CustomResourceDefinition and reviews
			}
			got, key := discovered(v), v.APIVersion+" "+d.Names.Plural
			if want := expected[key]; !reflect.DeepEqual(normalizeEmpty(got), normalizeEmpty(want)) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			delete(expected, key)
			scaled := []string{"deployments", "replicasets", "replicationcontrollers", "statefulsets"}
			if (v.Scale != nil) != slices.Contains(scaled, d.Names.Plural) {
				t.Errorf("%s: got /scale %v, want it for %q", key, v.Scale, scaled)
			}
		}
	}
	for key := range expected {
		t.Errorf("no built-in kind %s", key)
	}
}

// asRead returns an object that kube-apiserver has stored in the form in which kube-apiserver reads it, with
// defaults. Trellis stores objects in this form.
func asRead(t *testing.T, v *resource.Version, stored object.Tree) object.Tree {
	t.Helper()
	d, err := v.Definition.Storage.Type.Normalize(stored)
	if err != nil {
		t.Fatal(err)
	}
	return d.Tree
}

// TestStored checks that created and updated objects are stored as kube-apiserver v1.37.1 stores them.
func TestStored(t *testing.T) {
	golden := readJSON[map[string]recorded](t, "testdata/kube-apiserver.json")
	// v1 of these kinds is new, and kube-apiserver still stores the previous version
	newInV1 := []string{"ClusterTrustBundle", "PodCertificateRequest", "DeviceTaintRule", "StorageVersionMigration"}
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			want, ok := golden[s.name]
			if !ok {
				t.Fatal("the sample is missing in testdata/kube-apiserver.json")
			}
			if slices.Contains(newInV1, s.kind) {
				toV1(want.Stored, s)
				toV1(want.Status, s)
			}
			c := serveCluster(t, kinds.Config{})
			v := c.version(s.apiVersion, s.kind)
			stored := c.mustCreate(v, s.object, s.text)
			if s.kind != "FlowSchema" { // in the recording, a controller has written its status
				sameStored(t, stored, asRead(t, v, want.Stored))
			}
			if want.Status == nil {
				return
			}
			if _, err := c.put(v, s.object, "status", s.text); err != nil {
				t.Fatal(err)
			}
			sameStored(t, c.stored(v, s.object), asRead(t, v, want.Status))
		})
	}
}

// toV1 converts an object from the version before v1 to v1.
func toV1(o map[string]any, s sample) {
	if o == nil {
		return
	}
	o["apiVersion"] = s.apiVersion
	if s.kind == "PodCertificateRequest" {
		spec := o["spec"].(map[string]any)
		delete(spec, "pkixPublicKey")
		delete(spec, "proofOfPossession")
	}
}

func sameStored(t *testing.T, got []byte, want map[string]any) {
	t.Helper()
	var o, expected map[string]any
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[*map[string]any][]byte{&o: got, &expected: text} {
		if err := json.Unmarshal(timestamp.ReplaceAll(to, []byte(`"(now)"`)), from); err != nil {
			t.Fatal(err)
		}
	}
	md := o["metadata"].(map[string]any)
	for _, name := range []string{"uid", "creationTimestamp", "managedFields"} {
		delete(md, name)
	}
	if !reflect.DeepEqual(o, expected) {
		t.Errorf("\ngot  %s\nwant %s", got, text)
	}
}

// timestamp matches times in JSON, which may depend on the time of a write.
var timestamp = regexp.MustCompile(`"20[0-9-]+T[0-9:]+Z"`)

// age matches the cells that depend on the current time.
var age = regexp.MustCompile(`^([0-9]+[smhdy])+$|^20[0-9-]+T`)

// TestTable checks that Tables have kube-apiserver's columns, and its cells for each sample (CRD-064).
func TestTable(t *testing.T) {
	golden := readJSON[map[string]recorded](t, "testdata/kube-apiserver.json")
	c := serveCluster(t, kinds.Config{})
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			want, v := golden[s.name], c.version(s.apiVersion, s.kind)
			if v.Printer == nil {
				// Upstream has no printer of APIServices. The columns of StorageVersionMigration show the progress.
				if s.kind != "APIService" && s.kind != "StorageVersionMigration" {
					t.Error("got no printer, want upstream's")
				}
				return
			}
			var columns []metav1.TableColumnDefinition
			if err := json.Unmarshal(v.ColumnDefinitions(), &columns); err != nil {
				t.Fatal(err)
			}
			for i := range columns {
				columns[i].Description = ""
			}
			if !reflect.DeepEqual(columns, want.Columns) {
				t.Errorf("got  %v\nwant %v", columns, want.Columns)
			}
			want.Stored["metadata"].(map[string]any)["creationTimestamp"] = metav1.Now()
			want.Stored["apiVersion"] = v.Definition.Storage.APIVersion
			stored, err := json.Marshal(want.Stored)
			if err != nil {
				t.Fatal(err)
			}
			row, err := v.Definition.Storage.Row(stored)
			if err != nil {
				t.Fatal(err)
			}
			if got := hideAges(t, row.Cells); !reflect.DeepEqual(got, hideAges(t, want.Cells)) ||
				row.Object.Object != nil {
				t.Errorf("got  %v\nwant %v", got, want.Cells)
			}
		})
	}
}

func hideAges(t *testing.T, cells []any) (out []any) {
	t.Helper()
	text, err := json.Marshal(cells)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if s, ok := out[i].(string); ok && age.MatchString(s) {
			out[i] = "(age)"
		}
	}
	return out
}

// TestDeleteReturnsObject checks whether the response to a delete is the object, as in kube-apiserver. It is the
// object for some kinds, and for each object that is not deleted immediately.
func TestDeleteReturnsObject(t *testing.T) {
	golden := readJSON[map[string]recorded](t, "testdata/kube-apiserver.json")
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			c := serveCluster(t, kinds.Config{})
			v := c.version(s.apiVersion, s.kind)
			c.mustCreate(v, s.object, s.text)
			_, gone, err := c.Engine.Delete(c.Context(), c.at(v, s.object, ""), metav1.DeleteOptions{}, c.by())
			if err != nil {
				t.Fatal(err)
			}
			if got := v.Definition.Behavior.ReturnsDeleted || !gone; got != golden[s.name].ReturnsDeleted {
				t.Errorf("got response with the object %v, want %v", got, golden[s.name].ReturnsDeleted)
			}
		})
	}
}
