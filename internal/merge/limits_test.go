package merge

import (
	"fmt"
	"math/rand"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// maxBody is the size in bytes of the largest body that the server reads.
const maxBody = 3 << 20

// Parts of the messages for exceeded limits.
const (
	insertsLimit  = "1000000000 insertions of list items and map keys"
	pathsLimit    = "134217728 bytes in the paths of all fields"
	managersLimit = "25000000 pairs of a field and a manager"
	levelsLimit   = "58720256 bytes parsed for a JSON patch"
)

// series formats the numbers from 0 to n-1 and joins the results with commas.
func series(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// shuffled does the same as series, but with the numbers in a different, fixed order.
func shuffled(n int, format string) string {
	var b strings.Builder
	for k, i := range rand.New(rand.NewSource(1)).Perm(n) {
		if k > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// costlyPatch is a strategic merge patch that compares many list items. Its functions take the number of items.
type costlyPatch struct {
	name  string
	doc   func(n int) string
	patch func(n int) string
	of    any
	worst int // approximately the largest number of items within the limit
}

var (
	finalizers      = func(n int) string { return `{"metadata":{"finalizers":[` + series(n, `"a/%d"`) + `]}}` }
	ownerReferences = func(n int) string {
		return `{"metadata":{"ownerReferences":[` + series(n, `{"uid":"u%d"}`) + `]}}`
	}
	strategics = []costlyPatch{
		{
			"one more scalar", finalizers, func(int) string { return `{"metadata":{"finalizers":["b/b"]}}` },
			&corev1.ConfigMap{}, 7400,
		},
		{"order of scalars", finalizers, func(n int) string {
			return `{"metadata":{"$setElementOrder/finalizers":[` + shuffled(n, `"a/%d"`) + `]}}`
		}, &corev1.ConfigMap{}, 2240},
		{"scalars and their order", finalizers, func(n int) string {
			return `{"metadata":{"finalizers":[` + shuffled(n, `"a/%d"`) + `],` +
				`"$setElementOrder/finalizers":[` + shuffled(n, `"a/%d"`) + `]}}`
		}, &corev1.ConfigMap{}, 1910},
		{"deleted scalars and the order of the rest", finalizers, func(n int) string {
			return `{"metadata":{"$deleteFromPrimitiveList/finalizers":[` + shuffled(n/2, `"a/%d"`) + `],` +
				`"$setElementOrder/finalizers":[` + shuffled(n, `"a/%d"`) + `]}}`
		}, &corev1.ConfigMap{}, 2240},
		{
			"one more object", ownerReferences,
			func(int) string { return `{"metadata":{"ownerReferences":[{"uid":"x"}]}}` }, &corev1.ConfigMap{}, 4300,
		},
		{"order of objects", ownerReferences, func(n int) string {
			return `{"metadata":{"$setElementOrder/ownerReferences":[` + shuffled(n, `{"uid":"u%d"}`) + `]}}`
		}, &corev1.ConfigMap{}, 1340},
		{"objects in another order", ownerReferences, func(n int) string {
			return `{"metadata":{"ownerReferences":[` + shuffled(n, `{"uid":"u%d"}`) + `]}}`
		}, &corev1.ConfigMap{}, 1210},
		{"deleted objects", ownerReferences, func(n int) string {
			return `{"metadata":{"ownerReferences":[` + shuffled(n, `{"$patch":"delete","uid":"u%d"}`) + `]}}`
		}, &corev1.ConfigMap{}, 1210},
		{"new objects with an order", func(int) string { return `{"metadata":{}}` }, func(n int) string {
			return `{"metadata":{"ownerReferences":[` + shuffled(n, `{"uid":"u%d"}`) + `],` +
				`"$setElementOrder/ownerReferences":[` + shuffled(n, `{"uid":"u%d"}`) + `]}}`
		}, &corev1.ConfigMap{}, 1340},
		{"one item many times", func(n int) string {
			return `{"spec":{"containers":[{"name":"c","env":[` + series(n, `{"name":"e%d"}`) + `]}]}}`
		}, func(n int) string {
			return `{"spec":{"containers":[` + series(n, `{"name":"c","env":[{"name":"x%d"}]}`) + `]}}`
		}, &corev1.Pod{}, 193},
	}
)

// TestStrategicMergePatchIsBounded checks that a strategic merge patch is rejected if its comparisons of list items
// would take longer than a second in upstream's library. If the live list is long, a patch of 1 KB can exceed the
// limit (CVE-2019-1002100).
func TestStrategicMergePatchIsBounded(t *testing.T) {
	for _, c := range strategics {
		_, _, err := Strategic(decode(t, c.doc(4*c.worst)), []byte(c.patch(4*c.worst)), c.of)
		const want = "The allowed maximum is 56000000 comparisons of list items in a strategic merge patch, got "
		if code(err) != 413 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want code 413", c.name, err)
		}
		if _, _, err := Strategic(decode(t, c.doc(c.worst/10)), []byte(c.patch(c.worst/10)), c.of); err != nil {
			t.Errorf("%s with a tenth of the items: %v", c.name, err)
		}
	}
}

// TestLargeStrategicMergePatches checks that the limit admits common patches of large objects.
func TestLargeStrategicMergePatches(t *testing.T) {
	var live, change []string
	for i := range 20 {
		env := series(200, `{"name":"e%d","value":"v"}`)
		live = append(live, fmt.Sprintf(`{"name":"c%d","image":"a","env":[%s]}`, i, env))
		change = append(change, fmt.Sprintf(
			`{"name":"c%d","image":"b","$setElementOrder/env":[%s],"env":[{"name":"e7","value":"w"}]}`, i, env))
	}
	doc := decode(t, `{"spec":{"template":{"spec":{"containers":[`+strings.Join(live, ",")+`]}}}}`)
	patch := `{"spec":{"template":{"spec":{"containers":[` + strings.Join(change, ",") + `]}}}}`
	out, _, err := Strategic(doc, []byte(patch), &appsv1.Deployment{})
	if err != nil {
		t.Fatal(err)
	}
	text := string(object.AppendJSON(nil, out))
	if strings.Count(text, `"image":"b"`) != 20 || strings.Count(text, `"value":"w"`) != 20 {
		t.Error("the patch was not applied to each container")
	}
}

// costlyJSON holds JSON patches near a limit. worst is the largest number of repetitions within the limit.
var costlyJSON = []struct {
	name  string
	doc   func(n int) string
	patch func(n int) string
	worst int
	limit string
}{
	{"moves in a long list", func(n int) string { return `{"a":[` + strings.Repeat("1,", 100*n) + `2]}` },
		func(n int) string {
			return strings.Repeat(`{"op":"move","from":"/a/0","path":"/a/9"},`, n) + `{"op":"remove","path":"/a/0"}`
		}, 625, "80000000 list items moved by a JSON patch"},
	{"additions to a list", func(int) string { return `{"a":[]}` }, func(n int) string {
		return strings.Repeat(`{"op":"add","path":"/a/0","value":1},`, n-1) + `{"op":"remove","path":"/a/0"}`
	}, 9999, ""},
	{"a deep path", func(n int) string {
		return strings.Repeat(`{"a":`, n) + `{"b":"` + strings.Repeat("x", 1<<20) + `"}` + strings.Repeat("}", n)
	}, func(n int) string {
		return `{"op":"add","path":"` + strings.Repeat("/a", n) +
			`/c","value":1}`
	}, 54, levelsLimit},
	{"a deep list", func(n int) string {
		return `{"a":` + strings.Repeat("[", n) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("]", n) + `}`
	}, func(n int) string {
		return `{"op":"add","path":"/a` + strings.Repeat("/0", n-1) +
			`/-","value":1}`
	}, 54, levelsLimit},
	{"a deep test", func(n int) string {
		return `{"x":` + strings.Repeat(`{"a":`, n) +
			`"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", n) + `}`
	}, func(n int) string {
		return `{"op":"test","path":"/x","value":` + strings.Repeat(`{"a":`, n) +
			`"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", n) + `}`
	}, 26, levelsLimit},
}

// TestJSONPatchIsBounded checks that a JSON patch is rejected if the library would take longer than a second to
// move list items or to read the levels of the document. The number of operations is within upstream's limit
// (CVE-2019-1002100).
func TestJSONPatchIsBounded(t *testing.T) {
	for _, c := range costlyJSON {
		if _, err := JSON(decode(t, c.doc(c.worst/10)), []byte("["+c.patch(c.worst/10)+"]")); err != nil {
			t.Errorf("%s with a tenth of the size: %v", c.name, err)
		}
		if c.limit == "" {
			continue
		}
		_, err := JSON(decode(t, c.doc(4*c.worst)), []byte("["+c.patch(4*c.worst)+"]"))
		if code(err) != 413 || !strings.Contains(err.Error(), "The allowed maximum is "+c.limit+", got ") {
			t.Errorf("%s: got error %v, want code 413", c.name, err)
		}
	}
}

// ownedObject returns the JSON of an object with one entry of managedFields for each of its fields.
func ownedObject(n int, operation string) string {
	return `{"apiVersion":"g.io/v1","kind":"Widget","metadata":{"name":"a","uid":"u","managedFields":[` +
		series(
			n,
			`{"manager":"m%[1]d","operation":"`+operation+`","apiVersion":"g.io/v1",`+
				`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:env":{"f:k%[1]d":{}}}}}`,
		) +
		`]},"spec":{"env":{` + series(n, `"k%d":"v"`) + `}}}`
}

func widget(spec string) string {
	return `{"apiVersion":"g.io/v1","kind":"Widget","metadata":{"name":"a"},"spec":{` + spec + `}}`
}

// appliedTags returns managedFields with one entry, in which manager has applied items of spec.tags.
func appliedTags(manager, items string) string {
	return `"managedFields":[{"manager":"` + manager + `","operation":"Apply","apiVersion":"g.io/v1",` +
		`"fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:tags":{` + items + `}}}}]`
}

// costlyWrites holds applies and updates near a limit. worst is the largest number of repetitions within the limit.
var costlyWrites = []struct {
	name    string
	live    func(n int) string // nil for a create
	sent    func(n int) string
	manager string
	apply   bool
	worst   int
	limit   string
}{
	{
		"apply a wide map", nil, func(n int) string { return widget(`"env":{` + shuffled(n, `"k%d":"v"`) + `}`) },
		"a", true, 31_000, insertsLimit,
	},
	{
		"apply a wide set", nil, func(n int) string { return widget(`"tags":[` + shuffled(n, `"k%d"`) + `]`) }, "a",
		true, 18_200, insertsLimit,
	},
	{
		"apply a wide list of objects", nil,
		func(n int) string { return widget(`"ports":[` + shuffled(n, `{"name":"k%d"}`) + `]`) }, "a", true, 14_100,
		insertsLimit,
	},
	{"apply less than before", func(n int) string {
		return strings.Replace(widget(`"tags":[`+shuffled(n, `"k%d"`)+`]`), `"name":"a"`, `"name":"a","uid":"u",`+
			appliedTags("a", series(n, `"v:\"k%d\"":{}`)), 1)
	}, func(int) string { return widget(`"tags":["k1"]`) }, "a", true, 18_200, insertsLimit},
	{"update a set with a repeated item", func(int) string {
		return strings.Replace(
			widget(`"tags":["b"]`), `"name"`,
			`"uid":"u",`+appliedTags("b", "")+`,"name"`, 1,
		)
	},
		func(n int) string {
			return strings.Replace(widget(`"tags":["k1",`+shuffled(n, `"k%d"`)+`]`), `"name"`, `"uid":"u","name"`, 1)
		}, "a", false, 18_200, insertsLimit},
	{"apply below a long key", nil, func(n int) string {
		return widget(`"extra":{"` + strings.Repeat("k", 100_000) + `":{` + series(n, `"k%d":1`) + `}}`)
	}, "a", true, 1_250, pathsLimit},
	{"apply wrong types below a long key", nil, func(n int) string {
		return widget(`"env":{"` + strings.Repeat("k", 100_000) + `":[` + series(n, `%d`) + `]}`)
	}, "a", true, 1_250, pathsLimit},
	{
		"apply with many managers", func(n int) string { return ownedObject(n, "Apply") },
		func(int) string { return widget(`"image":"x"`) }, "m1", true, 2_800, managersLimit,
	},
	{
		"create with many appliers", nil,
		func(n int) string { return strings.Replace(ownedObject(n, "Apply"), `"uid":"u",`, "", 1) }, "a", false,
		2_800, managersLimit,
	},
	{
		"create with many updaters", nil,
		func(n int) string { return strings.Replace(ownedObject(n, "Update"), `"uid":"u",`, "", 1) }, "a", false,
		2_800, managersLimit,
	},
	{
		"update with many appliers", func(n int) string { return ownedObject(10, "Apply") },
		func(n int) string { return ownedObject(n, "Apply") }, "a", false, 2_800, managersLimit,
	},
}

func costlyWrite(t testing.TB, i, n int) func() error {
	c := costlyWrites[i]
	f := newTestKind(t, false).fields("g.io/v1", "")
	var live object.Tree
	if c.live != nil {
		live = decode(t, c.live(n))
	}
	sent := decode(t, c.sent(n))
	return func() error {
		var err error
		if c.apply {
			_, err = f.Apply(live, sent, c.manager, true, time.Unix(1e9, 0))
		} else {
			_, err = f.Update(live, copyMetadata(sent), c.manager, time.Unix(1e9, 0))
		}
		return err
	}
}

// copyMetadata returns a copy of the parts of an object that Update modifies.
func copyMetadata(t object.Tree) object.Tree {
	out := withoutManagedFields(t)
	if entries, ok := object.Metadata(t)[managedFields]; ok {
		object.Metadata(out)[managedFields] = entries
	}
	return out
}

// TestApplyAndUpdateAreBounded checks that an apply or update is rejected if structured-merge-diff would take
// longer than a second to compare it (CVE-2019-1002100).
func TestApplyAndUpdateAreBounded(t *testing.T) {
	for i, c := range costlyWrites {
		err := costlyWrite(t, i, 3*c.worst)()
		if code(err) != 413 || !strings.Contains(err.Error(), "The allowed maximum is "+c.limit+", got ") {
			t.Errorf("%s: got error %.300v, want code 413", c.name, err)
		}
		if err := costlyWrite(t, i, c.worst/10)(); code(err) != 0 {
			t.Errorf("%s with a tenth of the size: %v", c.name, err)
		}
	}
}

// TestLargeObjectsStayUpdatable checks that an update may reduce an object that exceeds a limit.
func TestLargeObjectsStayUpdatable(t *testing.T) {
	f := newTestKind(t, false).fields("g.io/v1", "")
	large := widget(`"tags":["k1",` + series(50_000, `"k%d"`) + `]`)
	live := decode(t, strings.Replace(large, `"name"`, `"uid":"u",`+appliedTags("a", "")+`,"name"`, 1))
	small := decode(t, strings.Replace(widget(`"tags":["a","a"]`), `"name"`, `"uid":"u","name"`, 1))
	got, err := f.Update(live, small, "b", time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := object.Metadata(got)[managedFields].([]any); len(entries) != 1 {
		t.Errorf("got managedFields %v, want 1 entry", entries)
	}
	many := decode(t, ownedObject(10_000, "Apply"))
	reset := decode(t, strings.Replace(widget(""), `"name"`, `"uid":"u","managedFields":[],"name"`, 1))
	if _, err := f.Update(many, reset, "b", time.Unix(1e9, 0)); err != nil {
		t.Error(err)
	}
}

// TestConflictsAreBounded checks that a response lists at most 1 MiB of conflicts but counts all of them.
func TestConflictsAreBounded(t *testing.T) {
	f := newTestKind(t, false).fields("g.io/v1", "")
	key := strings.Repeat("k", 1000)
	config := func(value string) object.Tree {
		return decode(t, widget(`"env":{`+series(3000, `"`+key+`%d":"`+value+`"`)+`}`))
	}
	live, err := f.Apply(nil, config("v"), "a", false, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Apply(live, config("w"), "b", false, time.Unix(1e9, 0))
	if code(err) != 409 || !strings.HasPrefix(err.Error(), "Apply failed with 3000 conflicts: ") ||
		len(err.Error()) > 2<<20 {
		t.Errorf("got %d bytes: %.100v", len(err.Error()), err)
	}
}

// benchmark measures the processor time of a call. The result is valid even while other programs run.
func benchmark(b *testing.B, name string, call func() error) {
	b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
		before := processorTime(b)
		for b.Loop() {
			if err := call(); code(err) != 0 {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
	})
}

func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkWorst measures the most expensive input within each limit.
func BenchmarkWorst(b *testing.B) {
	for _, c := range strategics {
		doc, patch := decode(b, c.doc(c.worst)), []byte(c.patch(c.worst))
		benchmark(b, "strategic/"+c.name, func() error {
			_, _, err := Strategic(doc, patch, c.of)
			return err
		})
	}
	for _, c := range costlyJSON {
		doc, patch := decode(b, c.doc(c.worst)), []byte("["+c.patch(c.worst)+"]")
		benchmark(b, "json/"+c.name, func() error {
			_, err := JSON(doc, patch)
			return err
		})
	}
	for i, c := range costlyWrites {
		benchmark(b, "owners/"+c.name, costlyWrite(b, i, c.worst))
	}
	change := []byte(`{"data":{` + series(maxBody/16, `"k%d":null`) + `}}`)
	doc := decode(b, `{"data":{`+series(maxBody/16, `"k%d":"v"`)+`}}`)
	benchmark(b, "merge/all keys", func() error {
		_, _, err := Merge(doc, change)
		return err
	})
}
