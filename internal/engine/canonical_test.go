package engine

import (
	"strconv"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// storeDirectly writes an object to the store, bypassing the engine. The returned record is in the same state as a
// record that has just been loaded.
func (f *fixture) storeDirectly(key, js string) *storage.Record {
	f.Helper()
	f.commit(storage.Write{Key: key, Value: []byte(js)})
	return f.Store.Head().Get(key)
}

const minimalCronTab = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"NAME",` +
	`"namespace":"default","uid":"u"},"spec":{"image":"i"}}`

// TestCanonicalObjectIsServedAsStored checks that the engine serves the stored bytes of a loaded object that is in
// canonical form. It computes the object's fingerprint once.
func TestCanonicalObjectIsServedAsStored(t *testing.T) {
	f := newFixture(t)
	target := f.cron("a")
	rec := f.storeDirectly(target.Version.Definition.Key("default", "a"),
		strings.Replace(minimalCronTab, "NAME", "a", 1))
	o, err := f.Get(f.ctx, target, "")
	if err != nil || o.Record != rec {
		t.Fatalf("got record %p and error %v, want the stored record %p", o.Record, err, rec)
	}
	s, err := target.Version.Schema()
	if err != nil {
		t.Fatal(err)
	}
	if fp := record.Packed(rec).Fingerprint(); fp != s.Fingerprint() {
		t.Errorf("fingerprint %x, want %x", fp, s.Fingerprint())
	}
	equal(t, "resourceVersion", object.ResourceVersion(treeOf(t, o)), strconv.FormatInt(rec.Modified, 10))
}

// notCanonical is the fingerprint of an object that pruning or defaulting would change.
const notCanonical = 1

// TestNonCanonicalObjectIsDecodedOnce checks that the first read of a loaded object prunes its unknown field, and
// that later reads share the result.
func TestNonCanonicalObjectIsDecodedOnce(t *testing.T) {
	f := newFixture(t)
	target := f.cron("a")
	rec := f.storeDirectly(target.Version.Definition.Key("default", "a"),
		strings.Replace(strings.Replace(minimalCronTab, "NAME", "a", 1), `"image"`, `"unknown":1,"image"`, 1))
	first, err := f.Get(f.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	if first.Record == rec || strings.Contains(string(first.AppendJSON(nil)), "unknown") {
		t.Errorf("got %s, want it without the unknown field", first.AppendJSON(nil))
	}
	if fp := record.Packed(rec).Fingerprint(); fp != notCanonical {
		t.Errorf("fingerprint %x, want %x", fp, notCanonical)
	}
	if again, _ := f.Get(f.ctx, target, ""); again.Record != first.Record {
		t.Error("the second read has decoded the object again")
	}
}

// TestForeignEncodings checks that the engine decodes stored JSON that another program has formatted differently. A
// stored value that is not JSON is an error.
func TestForeignEncodings(t *testing.T) {
	f := newFixture(t)
	target := f.configMap("a")
	key := target.Version.Definition.Key("default", "a")
	rec := f.storeDirectly(key, `{"metadata":{"resourceVersion":"1","name":"a","namespace":"default"},`+
		`"data":{"k":"v"},"kind":"ConfigMap","apiVersion":"v1"}`)
	o, err := f.Get(f.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "object", treeOf(t, o), decode(t,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","resourceVersion":"`+
			strconv.FormatInt(rec.Modified, 10)+`"},"data":{"k":"v"}}`))
	f.commit(storage.Write{Key: key, Value: []byte("k8s\x00"), Expected: rec.Modified})
	if _, err := f.Get(f.ctx, target, ""); err == nil {
		t.Error("got no error for a value that is not JSON")
	}
	f.commit(storage.Write{Key: definition.CRDPrefix + "odd", Value: []byte("k8s\x00")})
}
