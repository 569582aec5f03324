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

// testdata/discovery.json and testdata/kube-apiserver.json are what kube-apiserver v1.37.1 says of its kinds, and
// what it made of the samples: what it stored of a create and then of an update of /status, how it showed the new
// object in a Table, and whether a delete was answered with it. Admission plugins were off.

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

// discovered is what discovery says of an endpoint, without /scale and what is not a way to read and write the object.
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
	return served{v.APIVersion, n.Plural, n.Kind, n.Singular, v.Definition.Namespaced, v.Definition.Verbs, n.ShortNames, n.Categories, subs}
}

// notCompared are subresources that discovery.json leaves out.
var notCompared = []string{"attach", "exec", "log", "portforward", "proxy", "token"}

// normalizeEmpty takes an empty list for none.
func normalizeEmpty(s served) served {
	for _, l := range []*[]string{&s.Verbs, &s.Short, &s.Categories, &s.Subresources} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	return s
}

// CRD-049: the table names kinds, and what is served of them, as kube-apiserver does.
func TestDiscovery(t *testing.T) {
	left := map[string]served{}
	for _, want := range readJSON[[]served](t, "testdata/discovery.json") {
		left[want.Version+" "+want.Plural] = want
	}
	for _, d := range kinds.Definitions(kinds.Config{}) {
		for _, v := range d.Versions {
			if d.Strategy == nil {
				continue // the kind that defines kinds; reviews
			}
			got, key := discovered(v), v.APIVersion+" "+d.Names.Plural
			if want := left[key]; !reflect.DeepEqual(normalizeEmpty(got), normalizeEmpty(want)) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			delete(left, key)
			scaled := []string{"deployments", "replicasets", "replicationcontrollers", "statefulsets"}
			if (v.Scale != nil) != slices.Contains(scaled, d.Names.Plural) {
				t.Errorf("%s: /scale is %v", key, v.Scale)
			}
		}
	}
	for key := range left {
		t.Errorf("the table lacks %s", key)
	}
}

// asRead is a stored object as kube-apiserver reads it, with defaults. Trellis stores it so.
func asRead(t *testing.T, v *resource.Version, stored object.Tree) object.Tree {
	t.Helper()
	d, err := v.Definition.Storage.Type.Normalize(stored)
	if err != nil {
		t.Fatal(err)
	}
	return d.Tree
}

// what is stored is what kube-apiserver v1.37.1 stores.
func TestStored(t *testing.T) {
	golden := readJSON[map[string]recorded](t, "testdata/kube-apiserver.json")
	// of these kinds v1 is new, and kube-apiserver still stores the version before
	fresh := []string{"ClusterTrustBundle", "PodCertificateRequest", "DeviceTaintRule", "StorageVersionMigration"}
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			want, ok := golden[s.name]
			if !ok {
				t.Fatal("not in testdata/kube-apiserver.json")
			}
			if slices.Contains(fresh, s.kind) {
				toV1(want.Stored, s)
				toV1(want.Status, s)
			}
			c := serveCluster(t, kinds.Config{})
			v := c.version(s.apiVersion, s.kind)
			stored := c.mustCreate(v, s.object, s.text)
			if s.kind != "FlowSchema" { // a controller has written to its status
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

// toV1 makes an object of the version before v1 one of v1.
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

// timestamp is a time in JSON, which may be when an object was written.
var timestamp = regexp.MustCompile(`"20[0-9-]+T[0-9:]+Z"`)

// ages and times depend on when the object was looked at.
var age = regexp.MustCompile(`^([0-9]+[smhdy])+$|^20[0-9-]+T`)

// CRD-064: a Table has kube-apiserver's columns, and an object its cells.
func TestTable(t *testing.T) {
	golden := readJSON[map[string]recorded](t, "testdata/kube-apiserver.json")
	c := serveCluster(t, kinds.Config{})
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			want, v := golden[s.name], c.version(s.apiVersion, s.kind)
			if v.Printer == nil {
				if s.kind != "APIService" && s.kind != "StorageVersionMigration" { // not of upstream's printers; its columns tell how far Trellis is
					t.Error("nothing prints it")
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
			if got := hideAges(t, row.Cells); !reflect.DeepEqual(got, hideAges(t, want.Cells)) || row.Object.Object != nil {
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

// a delete is answered with the object where kube-apiserver does so: of kinds that always are, and where it stays.
func TestAnsweredDeletes(t *testing.T) {
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
				t.Errorf("answered with the object: %v, want %v", got, golden[s.name].ReturnsDeleted)
			}
		})
	}
}
