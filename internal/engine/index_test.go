package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// selectable are CronTabs with three selectable fields: text, a number, and one in the status.
func selectable(t testing.TB) *world {
	w := newWorld(t)
	w.mustCreate(w.at("", "v1", "namespaces", ""), `{"metadata":{"name":"other"}}`)
	w.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema),
		`"selectableFields":[{"jsonPath":".spec.color"}]`, `"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.replicas"},{"jsonPath":".status.phase"}]`))
	return w
}

// indexed reports whether a list would be made from an index.
func (w *world) indexed(t Target, o ListOptions) bool {
	w.Helper()
	q, err := w.newQuery(t, &o)
	if err != nil {
		w.Fatal(err)
	}
	ix, _, _ := q.bestIndex(w.Store.Head())
	return ix != nil
}

// names lists all pages of a selection.
func (w *world) selected(t Target, o ListOptions) (names []string) {
	w.Helper()
	for {
		l, err := w.List(w.ctx, t, o)
		if err != nil {
			w.Fatal(err)
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

// walked is the same selection made without the engine's help, of all that a revision holds.
func (w *world) walked(t Target, revision string, terms map[string]string, not map[string]string) (names []string) {
	w.Helper()
	o := ListOptions{}
	if revision != "" {
		o = ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	}
	l, err := w.List(w.ctx, t, o)
	if err != nil {
		w.Fatal(err)
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

// change does something to a random CronTab; only a few colours are common.
func (w *world) change(r *rand.Rand) {
	w.Helper()
	t := w.cron(fmt.Sprintf("c%03d", r.IntN(600)))
	t.Namespace = []string{"default", "default", "other"}[r.IntN(3)]
	colour := fmt.Sprintf("colour%d", r.IntN(1+r.IntN(40)))
	o, err := w.Get(w.ctx, t, "")
	if err != nil {
		one := t
		one.Name = ""
		w.mustCreate(one, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"color":%q,"replicas":%d}}`, t.Name, colour, r.IntN(30)))
		return
	}
	switch r.IntN(8) {
	case 0:
		w.delete(t, metav1.DeleteOptions{})
	case 1:
		w.mustPatch(t, merging, `{"spec":{"color":null}}`)
	case 2:
		w.mustPatch(t.sub("status"), merging, fmt.Sprintf(`{"status":{"phase":"p%d"}}`, r.IntN(20)))
	case 3:
		w.mustPatch(t, merging, fmt.Sprintf(`{"metadata":{"labels":{"l":"%d"}}}`, o.Revision))
	default:
		w.mustPatch(t, merging, fmt.Sprintf(`{"spec":{"color":%q,"replicas":%d}}`, colour, r.IntN(30)))
	}
}

// What a list by selectable fields finds is what a look at every object finds, at the newest revision and at older
// ones, whole and in pages, whatever has been written in between.
// PRN-021 PRN-023 PRN-027 PRN-029
func TestIndexFindsWhatAWalkFinds(t *testing.T) {
	w := selectable(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 3))
	for range 500 {
		w.change(r)
	}
	used := 0
	var revisions []string
	for range 250 {
		for range r.IntN(6) {
			w.change(r)
		}
		revisions = append(revisions, w.head())
		target := w.cron("")
		target.Namespace = []string{"", "default", "other"}[r.IntN(3)]
		terms, not, text := map[string]string{}, map[string]string{}, []string{}
		for range 1 + r.IntN(2) {
			path := []string{"spec.color", "spec.replicas", "status.phase"}[r.IntN(3)]
			value := map[string]string{"spec.color": fmt.Sprintf("colour%d", r.IntN(45)), "spec.replicas": fmt.Sprint(r.IntN(32)), "status.phase": fmt.Sprintf("p%d", r.IntN(22))}[path]
			if r.IntN(12) == 0 {
				value = ""
			}
			into, operator := terms, "="
			if r.IntN(4) == 0 {
				into, operator = not, "!="
			}
			if _, twice := into[path]; !twice {
				into[path], text = value, append(text, path+operator+value)
			}
		}
		o, at := ListOptions{Fields: fieldSelector(t, strings.Join(text, ","))}, ""
		if r.IntN(3) == 0 {
			o.Limit = int64(1 + r.IntN(10))
		}
		if r.IntN(4) == 0 {
			at = revisions[r.IntN(len(revisions))]
			o.ResourceVersion, o.ResourceVersionMatch = at, metav1.ResourceVersionMatchExact
		} else if w.indexed(target, o) {
			used++
		}
		if got, want := w.selected(target, o), w.walked(target, at, terms, not); !slices.Equal(got, want) {
			t.Fatalf("%s at %q: %d objects, want %d: %.200v, want %.200v", text, at, len(got), len(want), got, want)
		}
	}
	if used < 30 {
		t.Errorf("an index was used %d times only", used)
	}
}

// Lists and writes at the same time do not disturb each other.
// PRN-021 PRN-023
func TestIndexWhileWriting(t *testing.T) {
	w := selectable(t)
	r := rand.New(rand.NewPCG(4, 4))
	for range 500 {
		w.change(r)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			o := ListOptions{Fields: fieldSelector(t, fmt.Sprintf("spec.color=colour%d", 20+i))}
			for {
				select {
				case <-done:
					return
				default:
				}
				l, err := w.List(w.ctx, w.cron(""), o)
				if err != nil {
					t.Error(err)
					return
				}
				all, err := w.List(w.ctx, w.cron(""), ListOptions{ResourceVersion: fmt.Sprint(l.Revision), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
				if err != nil {
					t.Error(err)
					return
				}
				want := 0
				for _, item := range all.Items {
					if raw, _ := object.Field(item.Packed().JSON(), "spec", "color"); string(raw) == fmt.Sprintf(`"colour%d"`, 20+i) {
						want++
					}
				}
				if len(l.Items) != want {
					t.Errorf("%d objects at revision %d, want %d", len(l.Items), l.Revision, want)
					return
				}
			}
		})
	}
	for range 300 {
		w.change(r)
	}
	close(done)
	readers.Wait()
}

// What an index holds is bounded: stale entries go, and so does one that nobody uses.
// PRN-023
func TestIndexForgets(t *testing.T) {
	w := selectable(t)
	for i := range 300 {
		w.mustCreate(w.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%03d"},"spec":{"color":"new"}}`, i))
	}
	blue := ListOptions{Fields: fieldSelector(t, "spec.color=blue")}
	w.selected(w.cron(""), blue)
	for i := range 300 { // each comes by blue, as objects come by a phase
		w.mustPatch(w.cron(fmt.Sprintf("c%03d", i)), merging, `{"spec":{"color":"blue"}}`)
		if got := w.selected(w.cron(""), blue); len(got) != 1 {
			t.Fatalf("%d are blue", len(got))
		}
		w.mustPatch(w.cron(fmt.Sprintf("c%03d", i)), merging, `{"spec":{"color":"done"}}`)
	}
	w.selected(w.cron(""), blue)
	ix := w.indexes.find(w.cron("").Version, 0)
	if st := ix.state.Load(); st.keys.Count(bucket(hashValue("blue")), "") != 0 || st.keys.Len() > 2*300+indexMinObjects {
		t.Errorf("%d entries, %d of them blue", st.keys.Len(), st.keys.Count(bucket(hashValue("blue")), ""))
	}
	if got := w.selected(w.cron(""), ListOptions{Fields: fieldSelector(t, "spec.color=new")}); len(got) != 0 {
		t.Errorf("%d are new", len(got))
	}
	w.indexes.evictIdle(time.Now())
	if len(w.indexes.byField) != 1 {
		t.Error("one in use was dropped")
	}
	w.indexes.evictIdle(time.Now().Add(indexIdleTimeout + time.Second))
	if len(w.indexes.byField) != 0 || w.indexes.evictTimer != nil {
		t.Error("it is still there")
	}
	// The least recently used goes when there is too much.
	a, b := w.indexes.find(w.cron("").Version, 0), w.indexes.find(w.cron("").Version, 1)
	a.used.Store(1)
	a.state.Store(&indexState{bytes: maxIndexBytes})
	b.state.Store(&indexState{bytes: 1})
	w.indexes.evictLeastRecent(b)
	if len(w.indexes.byField) != 1 || w.indexes.find(w.cron("").Version, 1) != b {
		t.Error("the wrong one was dropped")
	}
}

// A change of the CRD starts with new indexes: what is selectable is the version's.
// PRN-023 PRN-029
func TestIndexIsTheVersions(t *testing.T) {
	w := selectable(t)
	for i := range 300 {
		w.mustCreate(w.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%03d"},"spec":{"color":"c%d","image":"i%d"}}`, i, i%100, i%50))
	}
	o := ListOptions{Fields: fieldSelector(t, "spec.color=c7")}
	if got := w.selected(w.cron(""), o); len(got) != 3 || !w.indexed(w.cron(""), o) {
		t.Fatalf("%v", got)
	}
	w.writeCRD(strings.ReplaceAll(cronTabs(cronTabSchema, cronTabSchema), ".spec.color", ".spec.image"))
	_, err := w.List(w.ctx, w.cron(""), o)
	w.refused(err, 400, metav1.StatusReasonBadRequest, "field label not supported: spec.color")
	if got := w.selected(w.cron(""), ListOptions{Fields: fieldSelector(t, "spec.image=i7")}); len(got) != 6 {
		t.Errorf("%v", got)
	}
}

// benchmarkSelect lists 1 % of 10,000 objects by a selectable field.
func benchmarkSelect(b *testing.B, list func(w *world, o ListOptions) int) {
	w := selectable(b)
	for i := range 10000 {
		text := strings.Replace(sized(i), `"color":"red"`, fmt.Sprintf(`"color":"c%d"`, i%100), 1)
		if _, err := w.Create(w.ctx, w.cron(""), Body{Tree: decodeFast(b, text)}, w.caller); err != nil {
			b.Fatal(err)
		}
	}
	o := ListOptions{Fields: fieldSelector(b, "spec.color=c7")}
	if n := list(w, o); n != 100 {
		b.Fatal(n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		list(w, o)
	}
}

func BenchmarkSelectByIndex(b *testing.B) {
	benchmarkSelect(b, func(w *world, o ListOptions) int {
		l, err := w.List(w.ctx, w.cron(""), o)
		if err != nil {
			b.Fatal(err)
		}
		return len(l.Items)
	})
}

// With a write between two lists.
func BenchmarkSelectByIndexAfterWrite(b *testing.B) {
	i := 0
	benchmarkSelect(b, func(w *world, o ListOptions) int {
		b.StopTimer()
		i++
		w.mustPatch(w.cron(fmt.Sprintf("c%06d", i%10000)), merging, fmt.Sprintf(`{"spec":{"replicas":%d}}`, i))
		b.StartTimer()
		l, err := w.List(w.ctx, w.cron(""), o)
		if err != nil {
			b.Fatal(err)
		}
		return len(l.Items)
	})
}

func BenchmarkSelectByWalk(b *testing.B) {
	benchmarkSelect(b, func(w *world, o ListOptions) int {
		q, err := w.newQuery(w.cron(""), &o)
		if err != nil {
			b.Fatal(err)
		}
		n, snap := 0, w.Store.Head()
		for rec := range snap.Walk(q.prefix, "") {
			if q.matches(rec) {
				n++
			}
		}
		return n
	})
}

func BenchmarkBuildIndex(b *testing.B) {
	benchmarkSelect(b, func(w *world, o ListOptions) int {
		q, err := w.newQuery(w.cron(""), &o)
		if err != nil {
			b.Fatal(err)
		}
		ix := &fieldIndex{}
		return ix.atSnapshot(q, w.Store.Head()).keys.Count(bucket(hashValue("c7")), "")
	})
}
