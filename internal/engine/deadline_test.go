package engine

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// expiring is a context whose deadline passes after some looks at it.
type expiring struct {
	context.Context
	looks int
}

func (e *expiring) Err() error {
	if e.looks--; e.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// CVE-2019-1002100: a write of any kind ends at its deadline, wherever it is then, with 504. It stores nothing, and leaves nothing
// running. A write has more than ten such places.
func TestWritesEndAtTheirDeadline(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"a"}}`)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"deleted"}}`)
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"applied":"k"}}`
	applyTo := func(target Target, data string) error {
		_, err := w.patch(target, applying, data)
		return err
	}
	for name, write := range map[string]func() error{
		"create": func() error { _, err := w.create(w.configMap(""), `{"metadata":{"generateName":"b-"}}`); return err },
		"update": func() error {
			_, err := w.update(w.configMap("a"), `{"metadata":{"name":"a"},"data":{"k":"update"}}`)
			return err
		},
		"JSON patch": func() error {
			_, err := w.patch(w.configMap("a"), jsonPatch, `[{"op":"add","path":"/immutable","value":false}]`)
			return err
		},
		"merge patch":     func() error { _, err := w.patch(w.configMap("a"), merging, `{"data":{"k":"merged"}}`); return err },
		"strategic patch": func() error { _, err := w.patch(w.configMap("a"), strategic, `{"data":{"k":"strategic"}}`); return err },
		"apply":           func() error { return applyTo(w.configMap("a"), config) },
		"apply of YAML": func() error {
			return applyTo(w.cron("applied"), "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: applied}\nspec: {image: i}")
		},
		"patch of a custom object": func() error { _, err := w.patch(w.cron("a"), merging, `{"spec":{"image":"m"}}`); return err },
		"delete": func() error {
			_, _, err := w.Delete(w.ctx, w.cron("deleted"), metav1.DeleteOptions{}, w.caller)
			return err
		},
	} {
		whole := w.ctx
		newest := func() int64 { // the head of a replica may be behind what it has acknowledged
			snap, err := w.Store.Fresh(whole)
			if err != nil {
				t.Fatal(err)
			}
			return snap.Revision()
		}
		before, places := newest(), 0
		for ; ; places++ {
			w.ctx = &expiring{whole, places}
			err := write()
			if err == nil {
				break
			}
			if !apierrors.IsTimeout(err) {
				t.Fatalf("%s, at place %d: %v", name, places, err)
			}
			equal(t, name+": revision", newest(), before)
		}
		w.ctx = whole
		if places < 5 {
			t.Errorf("%s looked at its deadline %d times", name, places)
		}
	}
}
