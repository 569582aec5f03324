package engine

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// expiringContext is a context whose deadline passes after some looks at it.
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

// CVE-2019-1002100: a write of any kind ends at its deadline, wherever it is then, with 504. It stores nothing, and leaves nothing
// running. A write has more than ten such places.
func TestWritesEndAtTheirDeadline(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"deleted"}}`)
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"applied":"k"}}`
	applyTo := func(target Target, data string) error {
		_, err := f.patch(target, applyPatch, data)
		return err
	}
	for name, write := range map[string]func() error{
		"create": func() error { _, err := f.create(f.configMap(""), `{"metadata":{"generateName":"b-"}}`); return err },
		"update": func() error {
			_, err := f.update(f.configMap("a"), `{"metadata":{"name":"a"},"data":{"k":"update"}}`)
			return err
		},
		"JSON patch": func() error {
			_, err := f.patch(f.configMap("a"), jsonPatch, `[{"op":"add","path":"/immutable","value":false}]`)
			return err
		},
		"merge patch":     func() error { _, err := f.patch(f.configMap("a"), mergePatch, `{"data":{"k":"merged"}}`); return err },
		"strategic patch": func() error { _, err := f.patch(f.configMap("a"), strategicPatch, `{"data":{"k":"strategic"}}`); return err },
		"apply":           func() error { return applyTo(f.configMap("a"), config) },
		"apply of YAML": func() error {
			return applyTo(f.cron("applied"), "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: applied}\nspec: {image: i}")
		},
		"patch of a custom object": func() error { _, err := f.patch(f.cron("a"), mergePatch, `{"spec":{"image":"m"}}`); return err },
		"delete": func() error {
			_, _, err := f.Delete(f.ctx, f.cron("deleted"), metav1.DeleteOptions{}, f.caller)
			return err
		},
	} {
		whole := f.ctx
		newest := func() int64 { // the head of a replica may be behind what it has acknowledged
			snap, err := f.Store.Fresh(whole)
			if err != nil {
				t.Fatal(err)
			}
			return snap.Revision()
		}
		before, places := newest(), 0
		for ; ; places++ {
			f.ctx = &expiringContext{whole, places}
			err := write()
			if err == nil {
				break
			}
			if !apierrors.IsTimeout(err) {
				t.Fatalf("%s, at place %d: %v", name, places, err)
			}
			equal(t, name+": revision", newest(), before)
		}
		f.ctx = whole
		if places < 5 {
			t.Errorf("%s looked at its deadline %d times", name, places)
		}
	}
}
