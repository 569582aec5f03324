package conversion

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// randomObject returns a random object of hostAndPort's schema, or of hostPort's if old is true.
func randomObject(r *rand.Rand, old bool) object.Tree {
	spec := object.Tree{}
	host, port := fmt.Sprintf("h%d.example.com", r.IntN(99)), int64(r.IntN(65536))
	switch {
	case !old:
		spec["host"], spec["port"] = host, port
	case r.IntN(4) > 0:
		spec["hostPort"] = fmt.Sprintf("%s:%d", host, port)
	}
	if r.IntN(2) == 0 {
		spec["cron"] = fmt.Sprint(r.IntN(99))
	}
	version := map[bool]string{false: "v1", true: "v1beta1"}[old]
	return object.Tree{"apiVersion": "example.com/" + version, "kind": "CronTab",
		"metadata": object.Tree{"name": "x", "finalizers": []any{"a/b"}}, "spec": spec}
}

// TestDeclaredRoundTrip checks that a valid declaration restores every object, also in concurrent conversions.
func TestDeclaredRoundTrip(t *testing.T) {
	d := declaredKind(t, both, hostAndPort, hostPort)
	if _, errs := CheckDeclared(t.Context(), d); len(errs) > 0 {
		t.Fatal(errs)
	}
	var group sync.WaitGroup
	for seed := range uint64(8) {
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for i := range 200 {
				from, to := d.Versions[i%2], d.Versions[1-i%2]
				was := randomObject(r, i%2 == 1)
				there, err := convert(t.Context(), object.Copy(was), from, to)
				if err != nil {
					t.Error(err)
					return
				}
				back, err := convert(t.Context(), there, to, from)
				if err != nil || !object.Equal(was, back) {
					t.Errorf("%s became %s: %v", object.AppendJSON(nil, was), object.AppendJSON(nil, back), err)
					return
				}
			}
		})
	}
	group.Wait()
}

// FuzzDeclared checks that no annotation and no object causes a panic, and that the converted object is not
// modified.
func FuzzDeclared(f *testing.F) {
	f.Add(both, `{"spec": {"hostPort": "a:1"}}`)
	f.Add(`[{from: v1, to: v1beta1, fields: [{path: .spec, value: self.spec}]}]`, `{"spec": {"hostPort": ["a"]}}`)
	f.Add(`[{from: v1beta1, to: v1, fields: [{path: .spec.host, value: "self.?spec.hostPort"}, {path: .spec.port, `+
		`value: "{1: 2}[1]"}]}]`, `{"spec": null}`)
	f.Add(`[{from: v1beta1, to: v1, fields: [{path: .spec.cron, value: "dyn(self)"}]}]`,
		`{"spec": {"cron": {"a": [1.5, null]}}}`)
	f.Fuzz(func(t *testing.T, annotation, text string) {
		if len(annotation) > 2_000 || len(text) > 2_000 {
			return
		}
		in, _, err := object.DecodeJSON([]byte(text))
		if err != nil {
			return
		}
		d := declaredKind(t, annotation, hostAndPort, hostPort)
		_, _ = CheckDeclared(t.Context(), d)
		before := object.Copy(in)
		for i := range d.Versions {
			_, _ = convert(t.Context(), in, d.Versions[i], d.Versions[1-i])
		}
		if !object.Equal(in, before) {
			t.Error("the object was modified")
		}
	})
}

func BenchmarkDeclared(b *testing.B) {
	d := declaredKind(b, both, hostAndPort, hostPort)
	in := randomObject(rand.New(rand.NewPCG(1, 1)), false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := convert(b.Context(), in, d.Versions[0], d.Versions[1]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeclaredTrivial(b *testing.B) {
	d := declaredKind(b, both, hostAndPort, hostPort)
	b.ReportAllocs()
	for b.Loop() {
		if Trivial(d.Versions[0], d.Versions[1]) {
			b.Fatal("trivial")
		}
	}
}

func BenchmarkCheckDeclared(b *testing.B) {
	d := declaredKind(b, both, hostAndPort, hostPort)
	for b.Loop() {
		if _, errs := CheckDeclared(b.Context(), d); len(errs) > 0 {
			b.Fatal(errs)
		}
	}
}
