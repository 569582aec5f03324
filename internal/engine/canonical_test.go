package engine

import (
	"strconv"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// storeDirectly stores an object as it is when it has been loaded: nothing is known of it.
func (f *fixture) storeDirectly(key, js string) *storage.Record {
	f.Helper()
	f.commit(storage.Write{Key: key, Value: []byte(js)})
	return f.Store.Head().Get(key)
}

const minimalCronTab = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"NAME","namespace":"default","uid":"u"},"spec":{"image":"i"}}`

// What reads as it is stored is found out once, and goes out as it lies from then on.
func TestCanonicalObjectIsServedAsStored(t *testing.T) {
	f := newFixture(t)
	target := f.cron("a")
	rec := f.storeDirectly(target.Version.Definition.Key("default", "a"), strings.Replace(minimalCronTab, "NAME", "a", 1))
	o, err := f.Get(f.ctx, target, "")
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
func TestNonCanonicalObjectIsDecodedOnce(t *testing.T) {
	f := newFixture(t)
	target := f.cron("a")
	rec := f.storeDirectly(target.Version.Definition.Key("default", "a"), strings.Replace(strings.Replace(minimalCronTab, "NAME", "a", 1), `"image"`, `"unheard":1,"image"`, 1))
	first, err := f.Get(f.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	if first.Record == rec || strings.Contains(string(first.AppendJSON(nil)), "unheard") {
		t.Errorf("%s", first.AppendJSON(nil))
	}
	if fp := packed(rec).Fingerprint(); fp != fingerprintNotCanonical {
		t.Errorf("fingerprint %x", fp)
	}
	if again, _ := f.Get(f.ctx, target, ""); again.Record != first.Record {
		t.Error("it was decoded twice")
	}
}

// What somebody else has encoded in a form that cannot be served as it lies is decoded; what is no JSON is an error.
func TestForeignEncodings(t *testing.T) {
	f := newFixture(t)
	target := f.configMap("a")
	key := target.Version.Definition.Key("default", "a")
	rec := f.storeDirectly(key, `{"metadata":{"resourceVersion":"1","name":"a","namespace":"default"},"data":{"k":"v"},"kind":"ConfigMap","apiVersion":"v1"}`)
	o, err := f.Get(f.ctx, target, "")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "object", treeOf(t, o), decode(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","resourceVersion":"`+strconv.FormatInt(rec.Modified, 10)+`"},"data":{"k":"v"}}`))
	f.commit(storage.Write{Key: key, Value: []byte("k8s\x00"), Expected: rec.Modified})
	if _, err := f.Get(f.ctx, target, ""); err == nil {
		t.Error("protobuf was served")
	}
	f.commit(storage.Write{Key: resource.CRDPrefix + "odd", Value: []byte("k8s\x00")})
}
