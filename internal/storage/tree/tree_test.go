package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// model is the reference implementation that a Tree is compared with.
type model map[string]int64 // maps keys to versions; the values equal the versions

func (m model) keys(prefix, after string) []string {
	var keys []string
	for k := range m {
		if strings.HasPrefix(k, prefix) && k > after {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m model) newest(prefix string) (version int64) {
	for k, v := range m {
		if strings.HasPrefix(k, prefix) {
			version = max(version, v)
		}
	}
	return version
}

// check compares the results of all methods of a tree with the model's.
func check(t *testing.T, tr Tree[int64], m model, prefixes ...string) {
	t.Helper()
	verify(t, tr.root, "", "", true)
	if tr.Len() != len(m) {
		t.Fatalf("Len is %d, want %d", tr.Len(), len(m))
	}
	for k, v := range m {
		if got, ok := tr.Get(k); !ok || got != v {
			t.Fatalf("Get(%q) is %d %v, want %d", k, got, ok, v)
		}
	}
	for _, p := range prefixes {
		afters := append(m.keys(p, ""), "", p, p+"\x00", "zzz")
		if len(afters) > 12 {
			afters = afters[len(afters)-12:]
		}
		for _, after := range afters {
			keys := m.keys(p, after)
			var got []int64
			tr.Walk(p, after, func(v int64) bool { got = append(got, v); return true })
			var expect []int64
			for _, k := range keys {
				expect = append(expect, m[k])
			}
			if !slices.Equal(got, expect) {
				t.Fatalf("Walk(%q, %q) yields %v, want %v", p, after, got, expect)
			}
			if n := tr.Count(p, after); n != len(keys) {
				t.Fatalf("Count(%q, %q) is %d, want %d", p, after, n, len(keys))
			}
		}
		checkNewer(t, tr, m, p)
		value, version := tr.Newest(p)
		if version != m.newest(p) || value != version {
			t.Fatalf("Newest(%q) is %d %d, want %d", p, value, version, m.newest(p))
		}
	}
}

func checkNewer(t *testing.T, tr Tree[int64], m model, prefix string) {
	t.Helper()
	for _, since := range []int64{-1, 0, m.newest("") / 2, m.newest(prefix) - 1, m.newest(prefix)} {
		var got, expect []int64
		tr.Newer(prefix, since, func(v int64) bool { got = append(got, v); return true })
		for _, k := range m.keys(prefix, "") {
			if m[k] > since {
				expect = append(expect, m[k])
			}
		}
		if !slices.Equal(got, expect) {
			t.Fatalf("Newer(%q, %d) yields %v, want %v", prefix, since, got, expect)
		}
	}
}

// verify checks the structure of the tree: order, sums, sizes and depth. It returns the depth.
func verify[V any](t *testing.T, n *node[V], from, to string, root bool) int {
	t.Helper()
	if n == nil {
		return 0
	}
	if n.size() > maxEntries || n.size() == 0 {
		t.Fatalf("got a node with %d slots, want 1 to %d", n.size(), maxEntries)
	}
	c := *n
	c.summarize()
	if c.count != n.count || c.newest != n.newest {
		t.Fatalf("sums are %d %d, want %d %d", n.count, n.newest, c.count, c.newest)
	}
	for i := range n.entries {
		k := n.entries[i].key
		if k < from || to != "" && k >= to || i > 0 && k <= n.entries[i-1].key {
			t.Fatalf("key %q out of order in [%q, %q)", k, from, to)
		}
	}
	depth := 0
	for i, k := range n.children {
		lo, hi := from, to
		if i > 0 {
			lo = n.bounds[i]
		}
		if i+1 < len(n.children) {
			hi = n.bounds[i+1]
		}
		d := verify(t, k, lo, hi, false)
		if i > 0 && d != depth {
			t.Fatalf("depths %d and %d", depth, d)
		}
		depth = d
	}
	return depth + 1
}

func randomKey(r *rand.Rand, n int) string {
	return fmt.Sprintf("%c/%c/%d", 'a'+rune(r.IntN(3)), 'a'+rune(r.IntN(4)), r.IntN(n))
}

// TestModel checks that a tree behaves like a sorted map, and that its old versions never change (CRD-061).
func TestModel(t *testing.T) {
	prefixes := []string{"", "a", "a/", "b/c/", "c/d/1", "q", "b/c0"}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := model{}
		var tr Tree[int64]
		old, oldModel := tr, model{}
		version := int64(0)
		for range 60 {
			edit := tr.Edit()
			grow := r.IntN(3)
			for range r.IntN(80) {
				k := randomKey(r, 200)
				if r.IntN(3) < grow {
					version++
					edit.Put(k, version, version)
					m[k] = version
				} else if _, had := m[k]; edit.Delete(k) != had {
					t.Fatalf("Delete(%q): had is %v", k, had)
				} else {
					delete(m, k)
				}
			}
			if r.IntN(8) == 0 { // set an older version, as undoing an event does
				for k, v := range m {
					if v > 1 {
						edit.Put(k, v-1, v-1)
						m[k] = v - 1
					}
					break
				}
			}
			if r.IntN(10) == 0 {
				old, oldModel = edit.Tree(), clone(m)
			}
			tr = edit.Tree()
		}
		check(t, tr, m, prefixes...)
		check(t, old, oldModel, prefixes...)
		for _, prefix := range prefixes {
			checkDiff(t, old, tr, oldModel, m, prefix)
			checkDiff(t, tr, old, m, oldModel, prefix)
			checkDiff(t, Tree[int64]{}, tr, nil, m, prefix)
		}
	}
}

// checkDiff compares Diff with the difference between two models. 0 stands for a missing key.
func checkDiff(t *testing.T, old, tr Tree[int64], oldModel, m model, prefix string) {
	t.Helper()
	both := clone(oldModel)
	for k, v := range m {
		both[k] = v
	}
	var expect, got [][2]int64
	for _, k := range both.keys(prefix, "") {
		if oldModel[k] != m[k] {
			expect = append(expect, [2]int64{oldModel[k], m[k]})
		}
	}
	tr.Diff(old, prefix, func(old, current int64) bool { got = append(got, [2]int64{old, current}); return true })
	if !slices.Equal(got, expect) {
		t.Fatalf("Diff below %q yields %d, want %d", prefix, len(got), len(expect))
	}
	got = nil
	tr.Diff(old.Part(prefix), prefix, func(old, current int64) bool {
		got = append(got,
			[2]int64{old, current})
		return true
	})
	if !slices.Equal(got, expect) {
		t.Fatalf("Diff below %q against Part yields %d, want %d", prefix, len(got), len(expect))
	}
	if len(expect) > 1 {
		n := 0
		tr.Diff(old, prefix, func(_, _ int64) bool { n++; return false })
		if n != 1 {
			t.Fatalf("Diff below %q yields %d after false, want 1", prefix, n)
		}
	}
}

func clone(m model) model {
	c := model{}
	for k, v := range m {
		c[k] = v
	}
	return c
}

// TestPartIsSmall checks that Part retains the keys of its prefix and at most one more leaf at each edge.
func TestPartIsSmall(t *testing.T) {
	var b Builder[int64]
	for i := range 20000 {
		if err := b.Add(fmt.Sprintf("%c/%05d", 'a'+i/4000, i), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	retained := 0
	var count func(n *node[int64])
	count = func(n *node[int64]) {
		retained += len(n.entries)
		for _, k := range n.children {
			if k != nil {
				count(k)
			}
		}
	}
	count(b.Tree().Part("c/").root)
	if retained < 4000 || retained > 4000+2*maxEntries {
		t.Errorf("got %d entries, want 4000 and at most %d more", retained, 2*maxEntries)
	}
}

// TestBuilder checks that a loaded tree equals one that was written key by key (CRD-071).
func TestBuilder(t *testing.T) {
	for _, n := range []int{0, 1, 23, 24, 25, 24 * 24, 24*24 + 1, 5000} {
		var b Builder[int64]
		m := model{}
		for i := range n {
			k := fmt.Sprintf("k/%06d", i)
			m[k] = int64(i*7919%n + 1)
			if err := b.Add(k, m[k], m[k]); err != nil {
				t.Fatal(err)
			}
		}
		tr := b.Tree()
		check(t, tr, m, "", "k/", "k/0000")
		edit := tr.Edit()
		for i := 0; i < n; i += 2 {
			edit.Delete(fmt.Sprintf("k/%06d", i))
			delete(m, fmt.Sprintf("k/%06d", i))
		}
		check(t, edit.Tree(), m, "", "k/", "k/0000")
	}
	var b Builder[int64]
	if err := b.Add("b", 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := b.Add("b", 2, 2); err == nil {
		t.Error("Add accepts the same key twice")
	}
}

// FuzzTree applies a random sequence of operations. Each pair of bytes is an operation and a key.
func FuzzTree(f *testing.F) {
	f.Add([]byte("\x00a\x00b\x01a\x02\x00"), "a")
	f.Add([]byte{0, 255, 0, 254, 1, 255}, "\xff")
	f.Fuzz(func(t *testing.T, script []byte, prefix string) {
		m := model{}
		edit := Tree[int64]{}.Edit()
		for i := 0; i+1 < len(script) && i < 2000; i += 2 {
			k := string(script[i+1 : i+2])
			if script[i] >= 4 {
				k += string(script[i : i+1])
			}
			if script[i]%4 == 3 {
				edit.Delete(k)
				delete(m, k)
			} else {
				edit.Put(k, int64(i+1), int64(i+1))
				m[k] = int64(i + 1)
			}
		}
		check(t, edit.Tree(), m, prefix, "")
	})
}

func benchmarkTree(n int) (Tree[int64], []string) {
	var b Builder[int64]
	keys := make([]string, n)
	for i := range n {
		keys[i] = fmt.Sprintf("stable.example.com/crontabs/default/object-%06d", i)
		if err := b.Add(keys[i], int64(i), int64(i)); err != nil {
			panic(err)
		}
	}
	return b.Tree(), keys
}

func BenchmarkGet(b *testing.B) {
	tr, keys := benchmarkTree(10000)
	for i := 0; b.Loop(); i++ {
		tr.Get(keys[i*7919%len(keys)])
	}
}

func BenchmarkPut(b *testing.B) {
	tr, keys := benchmarkTree(10000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		edit := tr.Edit()
		edit.Put(keys[i*7919%len(keys)], int64(i), int64(i))
		tr = edit.Tree()
	}
}

func BenchmarkWalk(b *testing.B) {
	tr, _ := benchmarkTree(10000)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		tr.Walk("stable.example.com/crontabs/", "", func(int64) bool { n++; return true })
		if n != 10000 {
			b.Fatal(n)
		}
	}
}

func BenchmarkCount(b *testing.B) {
	tr, keys := benchmarkTree(10000)
	for i := 0; b.Loop(); i++ {
		tr.Count("stable.example.com/crontabs/", keys[i*7919%len(keys)])
	}
}

func BenchmarkNewest(b *testing.B) {
	tr, _ := benchmarkTree(10000)
	for b.Loop() {
		tr.Newest("stable.example.com/crontabs/default/object-00")
	}
}

func BenchmarkLoad(b *testing.B) {
	_, keys := benchmarkTree(10000)
	b.ReportAllocs()
	for b.Loop() {
		var l Builder[int64]
		for i, k := range keys {
			if err := l.Add(k, int64(i), int64(i)); err != nil {
				b.Fatal(err)
			}
		}
		l.Tree()
	}
}

// BenchmarkDiff measures finding one change among ten thousand keys, or several that have split some nodes.
func BenchmarkDiff(b *testing.B) {
	tr, keys := benchmarkTree(10000)
	for _, more := range []int{0, 40} {
		edit := tr.Edit()
		edit.Put(keys[5000], 1<<40, 1)
		for i := range more {
			edit.Put(fmt.Sprint(keys[5000], i), 1<<40, 1)
		}
		changed := edit.Tree()
		for _, prefix := range []string{"stable.example.com/crontabs/", "other/"} {
			b.Run(fmt.Sprint(prefix, "more=", more), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					changed.Diff(tr, prefix, func(_, _ int64) bool { return true })
				}
			})
		}
	}
}
