package engine

import (
	"strconv"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// loaded stores an object as it is when it has been loaded: nothing is known of it.
func (w *world) loaded(key, js string) *storage.Record {
	w.Helper()
	w.commit(storage.Write{Key: key, Value: []byte(js)})
	return w.Store.Head().Get(key)
}

const loadedCronTab = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"NAME","namespace":"default","uid":"u"},"spec":{"image":"i"}}`

// What reads as it is stored is found out once, and goes out as it lies from then on.
func TestLoadedObjectSettles(t *testing.T) {
	w := newWorld(t)
	target := w.cron("a")
	rec := w.loaded(target.Version.Definition.Key("default", "a"), strings.Replace(loadedCronTab, "NAME", "a", 1))
	o, err := w.Get(w.ctx, target, "")
	if err != nil || o.Record != rec {
		t.Fatalf("another record, %v", err)
	}
	s, err := target.Version.Schema()
	if err != nil {
		t.Fatal(err)
	}
	if fp := packed(rec).Fingerprint(); fp != s.Fingerprint() {
		t.Errorf("fingerprint %x, want %x", fp, s.Fingerprint())
	}
	equal(t, "resourceVersion", object.ResourceVersion(treeOf(t, o)), strconv.FormatInt(rec.Modified, 10))
}

// What reads otherwise is decoded, and not judged again each time.
func TestLoadedObjectThatIsUnsettled(t *testing.T) {
	w := newWorld(t)
	target := w.cron("a")
	rec := w.loaded(target.Version.Definition.Key("default", "a"), strings.Replace(strings.Replace(loadedCronTab, "NAME", "a", 1), `"image"`, `"unheard":1,"image"`, 1))
	first, err := w.Get(w.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	if first.Record == rec || strings.Contains(string(first.AppendJSON(nil)), "unheard") {
		t.Errorf("%s", first.AppendJSON(nil))
	}
	if fp := packed(rec).Fingerprint(); fp != fingerprintNotCanonical {
		t.Errorf("fingerprint %x", fp)
	}
	if again, _ := w.Get(w.ctx, target, ""); again.Record != first.Record {
		t.Error("it was decoded twice")
	}
}

// What somebody else has encoded in a form that cannot be served as it lies is decoded; what is no JSON is an error.
func TestForeignObjects(t *testing.T) {
	w := newWorld(t)
	target := w.configMap("a")
	key := target.Version.Definition.Key("default", "a")
	rec := w.loaded(key, `{"metadata":{"resourceVersion":"1","name":"a","namespace":"default"},"data":{"k":"v"},"kind":"ConfigMap","apiVersion":"v1"}`)
	o, err := w.Get(w.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "object", treeOf(t, o), decode(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","resourceVersion":"`+strconv.FormatInt(rec.Modified, 10)+`"},"data":{"k":"v"}}`))
	w.commit(storage.Write{Key: key, Value: []byte("k8s\x00"), Expected: rec.Modified})
	if _, err := w.Get(w.ctx, target, ""); err == nil {
		t.Error("protobuf was served")
	}
	w.commit(storage.Write{Key: resource.CRDPrefix + "odd", Value: []byte("k8s\x00")})
}
