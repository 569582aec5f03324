package engine

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// expiringContext is a context whose deadline passes after a given number of calls of Err.
type expiringContext struct {
	context.Context
	checksLeft int
}

func (e *expiringContext) Err() error {
	if e.checksLeft--; e.checksLeft < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestWritesEndAtTheirDeadline checks that each kind of write returns 504 and stores nothing if its deadline
// passes. It does so for each of the points at which the write checks its context (CVE-2019-1002100).
func TestWritesEndAtTheirDeadline(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"deleted"}}`)
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"applied":"k"}}`
	applyTo := func(target verb.Target, data string) error {
		_, err := f.patch(target, applyPatch, data)
		return err
	}
	for name, write := range map[string]func() error{
		"create": func() error {
			_, err := f.create(f.configMap(""),
				`{"metadata":{"generateName":"b-"}}`)
			return err
		},
		"update": func() error {
			_, err := f.update(f.configMap("a"), `{"metadata":{"name":"a"},"data":{"k":"update"}}`)
			return err
		},
		"JSON patch": func() error {
			_, err := f.patch(f.configMap("a"), jsonPatch, `[{"op":"add","path":"/immutable","value":false}]`)
			return err
		},
		"merge patch": func() error {
			_, err := f.patch(f.configMap("a"), mergePatch,
				`{"data":{"k":"merged"}}`)
			return err
		},
		"strategic patch": func() error {
			_, err := f.patch(f.configMap("a"), strategicPatch, `{"data":{"k":"strategic"}}`)
			return err
		},
		"apply": func() error { return applyTo(f.configMap("a"), config) },
		"apply of YAML": func() error {
			return applyTo(f.cron("applied"),
				"apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: applied}\nspec: {image: i}")
		},
		"patch of a custom object": func() error {
			_, err := f.patch(f.cron("a"), mergePatch,
				`{"spec":{"image":"m"}}`)
			return err
		},
		"delete": func() error {
			_, _, err := f.Delete(f.ctx, f.cron("deleted"), metav1.DeleteOptions{}, f.caller)
			return err
		},
	} {
		ctx := f.ctx
		newest := func() int64 { // Fresh is needed because the head of a replica may be behind
			snap, err := f.Store.Fresh(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return snap.Revision()
		}
		before, checks := newest(), 0
		for ; ; checks++ {
			f.ctx = &expiringContext{ctx, checks}
			err := write()
			if err == nil {
				break
			}
			if !apierrors.IsTimeout(err) {
				t.Fatalf("%s, at check %d: %v", name, checks, err)
			}
			equal(t, name+": revision", newest(), before)
		}
		f.ctx = ctx
		if checks < 5 {
			t.Errorf("%s checked its deadline %d times, want at least 5", name, checks)
		}
	}
}
