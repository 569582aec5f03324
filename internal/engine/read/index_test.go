package read_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// newSelectableEnv returns an environment whose CronTabs have three selectable fields: a string and a number in the
// spec, and a field in the status.
func newSelectableEnv(t testing.TB) *env {
	f := newEnv(t)
	f.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema),
		`"selectableFields":[{"jsonPath":".spec.color"}]`,
		`"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.replicas"},{"jsonPath":".status.phase"}]`))
	return f
}

// selectNames lists all pages of a selection and returns the objects' namespaces and names.
func (f *env) selectNames(t verb.Target, o read.ListOptions) (names []string) {
	f.Helper()
	for {
		l, err := f.List(f.ctx, t, o)
		if err != nil {
			f.Fatal(err)
		}
		for _, item := range l.Items {
			names = append(names, item.Meta().Namespace+"/"+item.Meta().Name)
		}
		if o.Continue = l.Continue; o.Continue == "" {
			return names
		}
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
}

// scanNames returns the same result as selectNames, but computes it from all objects of a revision. It does not use
// the engine's selectors.
func (f *env) scanNames(t verb.Target, revision string, terms map[string]string,
	not map[string]string) (names []string) {
	f.Helper()
	o := read.ListOptions{}
	if revision != "" {
		o = read.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	}
	l, err := f.List(f.ctx, t, o)
	if err != nil {
		f.Fatal(err)
	}
	for _, item := range l.Items {
		ok := true
		text := func(path string) string {
			raw, _ := object.Field(item.Packed().JSON(), strings.Split(path, ".")...)
			return strings.Trim(string(raw), `"`)
		}
		for path, value := range terms {
			ok = ok && text(path) == value
		}
		for path, value := range not {
			ok = ok && text(path) != value
		}
		if ok {
			names = append(names, item.Meta().Namespace+"/"+item.Meta().Name)
		}
	}
	return names
}

// changeRandom creates, changes or deletes a random CronTab. Most colors are rare.
func (f *env) changeRandom(r *rand.Rand) {
	f.Helper()
	t := f.cron(fmt.Sprintf("c%03d", r.IntN(600)))
	t.Namespace = []string{"default", "default", "other"}[r.IntN(3)]
	color := fmt.Sprintf("color%d", r.IntN(1+r.IntN(40)))
	o, err := f.Get(f.ctx, t, "")
	if err != nil {
		one := t
		one.Name = ""
		f.mustCreate(one, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"color":%q,"replicas":%d}}`, t.Name, color,
			r.IntN(30)))
		return
	}
	switch r.IntN(8) {
	case 0:
		f.delete(t)
	case 1:
		f.mustPatch(t, `{"spec":{"color":null}}`)
	case 2:
		t.Subresource = "status"
		f.mustPatch(t, fmt.Sprintf(`{"status":{"phase":"p%d"}}`, r.IntN(20)))
	case 3:
		f.mustPatch(t, fmt.Sprintf(`{"metadata":{"labels":{"l":"%d"}}}`, o.Revision))
	default:
		f.mustPatch(t, fmt.Sprintf(`{"spec":{"color":%q,"replicas":%d}}`, color, r.IntN(30)))
	}
}

// TestIndexMatchesScan checks that a list by selectable fields finds the same objects as a scan of all objects. It
// compares them between random writes, at the newest and at older revisions, and with one or several pages
// (PRN-021, PRN-023, PRN-027, PRN-029).
func TestIndexMatchesScan(t *testing.T) {
	f := newSelectableEnv(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 3))
	for range 500 {
		f.changeRandom(r)
	}
	indexed := 0
	var revisions []string
	for range 250 {
		for range r.IntN(6) {
			f.changeRandom(r)
		}
		revisions = append(revisions, f.head())
		target := f.cron("")
		target.Namespace = []string{"", "default", "other"}[r.IntN(3)]
		terms, not, text := map[string]string{}, map[string]string{}, []string{}
		for range 1 + r.IntN(2) {
			path := []string{"spec.color", "spec.replicas", "status.phase"}[r.IntN(3)]
			value := map[string]string{"spec.color": fmt.Sprintf("color%d", r.IntN(45)),
				"spec.replicas": fmt.Sprint(r.IntN(32)), "status.phase": fmt.Sprintf("p%d", r.IntN(22))}[path]
			if r.IntN(12) == 0 {
				value = ""
			}
			into, operator := terms, "="
			if r.IntN(4) == 0 {
				into, operator = not, "!="
			}
			if _, repeated := into[path]; !repeated {
				into[path], text = value, append(text, path+operator+value)
			}
		}
		o, at := read.ListOptions{Fields: fieldSelector(t, strings.Join(text, ","))}, ""
		if r.IntN(3) == 0 {
			o.Limit = int64(1 + r.IntN(10))
		}
		if r.IntN(4) == 0 {
			at = revisions[r.IntN(len(revisions))]
			o.ResourceVersion, o.ResourceVersionMatch = at, metav1.ResourceVersionMatchExact
		} else if f.UsesIndex(t, target, o) {
			indexed++
		}
		if got, want := f.selectNames(target, o), f.scanNames(target, at, terms, not); !slices.Equal(got, want) {
			t.Fatalf("%s at %q: got %d objects, want %d: got %.200v, want %.200v", text, at, len(got), len(want), got,
				want)
		}
	}
	if indexed < 30 {
		t.Errorf("an index was used %d times, want at least 30", indexed)
	}
}

// TestIndexDuringWrites checks that lists by a selectable field are consistent while objects are written (PRN-021,
// PRN-023).
func TestIndexDuringWrites(t *testing.T) {
	f := newSelectableEnv(t)
	r := rand.New(rand.NewPCG(4, 4))
	for range 500 {
		f.changeRandom(r)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			o := read.ListOptions{Fields: fieldSelector(t, fmt.Sprintf("spec.color=color%d", 20+i))}
			for {
				select {
				case <-done:
					return
				default:
				}
				l, err := f.List(f.ctx, f.cron(""), o)
				if err != nil {
					t.Error(err)
					return
				}
				all, err := f.List(f.ctx, f.cron(""), read.ListOptions{ResourceVersion: fmt.Sprint(l.Revision),
					ResourceVersionMatch: metav1.ResourceVersionMatchExact})
				if err != nil {
					t.Error(err)
					return
				}
				want := 0
				for _, item := range all.Items {
					if raw, _ := object.Field(item.Packed().JSON(), "spec",
						"color"); string(raw) == fmt.Sprintf(`"color%d"`, 20+i) {
						want++
					}
				}
				if len(l.Items) != want {
					t.Errorf("got %d objects at revision %d, want %d", len(l.Items), l.Revision, want)
					return
				}
			}
		})
	}
	for range 300 {
		f.changeRandom(r)
	}
	close(done)
	readers.Wait()
}

// TestIndexEviction checks the size limit of an index, and that stale entries and idle indexes are dropped
// (PRN-023).
func TestIndexEviction(t *testing.T) {
	f := newSelectableEnv(t)
	for i := range 300 {
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%03d"},"spec":{"color":"new"}}`, i))
	}
	blue := read.ListOptions{Fields: fieldSelector(t, "spec.color=blue")}
	f.selectNames(f.cron(""), blue)
	for i := range 300 { // each object becomes blue and then another color
		f.mustPatch(f.cron(fmt.Sprintf("c%03d", i)), `{"spec":{"color":"blue"}}`)
		if got := f.selectNames(f.cron(""), blue); len(got) != 1 {
			t.Fatalf("got %d blue objects, want 1", len(got))
		}
		f.mustPatch(f.cron(fmt.Sprintf("c%03d", i)), `{"spec":{"color":"done"}}`)
	}
	f.selectNames(f.cron(""), blue)
	all, stale := f.IndexEntries(f.cron("").Version, 0, "blue")
	if stale != 0 || all > 2*300+read.IndexMinObjects {
		t.Errorf("got %d entries, %d of them blue", all, stale)
	}
	if got := f.selectNames(f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.color=new")}); len(got) != 0 {
		t.Errorf("got %d new objects, want 0", len(got))
	}
	if n, _ := f.EvictIdleIndexes(time.Now()); n != 1 {
		t.Error("an index in use was evicted")
	}
	if n, scheduled := f.EvictIdleIndexes(time.Now().Add(read.IndexIdleTimeout + time.Second)); n != 0 || scheduled {
		t.Error("the idle index was not evicted")
	}
	if !f.EvictOverLimit(f.cron("").Version) {
		t.Error("the least recently used index was not evicted when the size limit was exceeded")
	}
}

// TestIndexFollowsCRD checks that new indexes are used after the selectable fields of a version change (PRN-023,
// PRN-029).
func TestIndexFollowsCRD(t *testing.T) {
	f := newSelectableEnv(t)
	for i := range 300 {
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%03d"},"spec":{"color":"c%d","image":"i%d"}}`, i,
			i%100, i%50))
	}
	o := read.ListOptions{Fields: fieldSelector(t, "spec.color=c7")}
	if got := f.selectNames(f.cron(""), o); len(got) != 3 || !f.UsesIndex(t, f.cron(""), o) {
		t.Fatalf("%v", got)
	}
	f.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema), ".spec.color", ".spec.image"))
	_, err := f.List(f.ctx, f.cron(""), o)
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported: spec.color") {
		t.Errorf("got %v for the former field", err)
	}
	if got := f.selectNames(f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.image=i7")}); len(got) != 6 {
		t.Errorf("%v", got)
	}
}

// benchmarkSelect measures lists that select 1 % of 10,000 objects by a selectable field.
func benchmarkSelect(b *testing.B, list func(f *env, o read.ListOptions) int) {
	f := newSelectableEnv(b)
	for i := range 10000 {
		text := strings.Replace(benchCronTab(i), `"color":"red"`, fmt.Sprintf(`"color":"c%d"`, i%100), 1)
		if _, err := f.Create(f.ctx, f.cron(""), verb.Body{Tree: decode(b, text)}, f.caller); err != nil {
			b.Fatal(err)
		}
	}
	o := read.ListOptions{Fields: fieldSelector(b, "spec.color=c7")}
	if n := list(f, o); n != 100 {
		b.Fatal(n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		list(f, o)
	}
}

func BenchmarkSelectByIndex(b *testing.B) {
	benchmarkSelect(b, func(f *env, o read.ListOptions) int {
		l, err := f.List(f.ctx, f.cron(""), o)
		if err != nil {
			b.Fatal(err)
		}
		return len(l.Items)
	})
}

// BenchmarkSelectByIndexAfterWrite measures lists that each follow a write.
func BenchmarkSelectByIndexAfterWrite(b *testing.B) {
	i := 0
	benchmarkSelect(b, func(f *env, o read.ListOptions) int {
		b.StopTimer()
		i++
		f.mustPatch(f.cron(fmt.Sprintf("c%06d", i%10000)), fmt.Sprintf(`{"spec":{"replicas":%d}}`, i))
		b.StartTimer()
		l, err := f.List(f.ctx, f.cron(""), o)
		if err != nil {
			b.Fatal(err)
		}
		return len(l.Items)
	})
}

func BenchmarkSelectByScan(b *testing.B) {
	benchmarkSelect(b, func(f *env, o read.ListOptions) int { return f.Scan(b, f.cron(""), o)() })
}

func BenchmarkBuildIndex(b *testing.B) {
	benchmarkSelect(b, func(f *env, o read.ListOptions) int { return f.BuildIndex(b, f.cron(""), o, "c7") })
}

// BenchmarkWatchEvent measures how long a watch with a selector takes to evaluate one event.
func BenchmarkWatchEvent(b *testing.B) {
	f := newEnv(b)
	f.mustCreate(f.cron(""), benchCronTab(0))
	watch, err := f.Watch(f.ctx, f.cron(""), read.ListOptions{
		ResourceVersion: f.head(), Labels: labelSelector(b, "app=bench")})
	if err != nil {
		b.Fatal(err)
	}
	defer watch.Close()
	rec := f.Store.Head().Get(f.cron("").Version.Definition.Key("default", "c000000"))
	buf := make([]read.WatchEvent, 0, 16)
	ev := &storage.Event{Revision: rec.Modified + 1, Key: rec.Key, Record: rec, Previous: rec}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		var err error
		if buf, err = watch.AppendEvent(buf[:0], ev); err != nil || len(buf) != 1 {
			b.Fatal(buf, err)
		}
	}
}

// TestSelectorAllocatesNothing checks that the second evaluation of a selector on the same records allocates no
// memory.
func TestSelectorAllocatesNothing(t *testing.T) {
	f := newEnv(t)
	for i := range 50 {
		f.mustCreate(
			f.cron(""),
			fmt.Sprintf(`{"metadata":{"name":"c%03d","labels":{"shard":"%d"}},"spec":{"color":%q}}`,
				i, i%10, []string{"red", "green", "blue"}[i%3]),
		)
	}
	count := f.Scan(t, f.cron(""), read.ListOptions{
		Labels: labelSelector(t, "shard=3"), Fields: fieldSelector(t, "spec.color=red")})
	if n := count(); n != 2 {
		t.Errorf("got %d matches, want 2", n)
	}
	if allocs := testing.AllocsPerRun(10, func() { count() }); allocs > 10 { // the walk makes a few allocations
		t.Fatalf("got %v allocations for 50 records", allocs)
	}
}
