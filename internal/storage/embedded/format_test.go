package embedded

import (
	"bytes"
	"context"
	"encoding/hex"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// valueV1 returns an object's value as the previous version stored it, and the object's JSON.
func valueV1(t *testing.T) (value, js string) {
	t.Helper()
	header, err := hex.DecodeString("01020600" + "0e000000" + "37000000" + "42000000" + "8877665544332211")
	if err != nil {
		t.Fatal(err)
	}
	js = `{"apiVersion":"g/v1","kind":"A","metadata":{"name":"n","uid":"u"}}`
	return string(header) + js, js
}

// engineDo opens the Pebble store of a closed store.
func engineDo(t *testing.T, fs vfs.FS, do func(*pebble.DB)) {
	t.Helper()
	db, err := pebble.Open("data/engine", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	do(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestPreviousFormat checks that a directory in the previous format opens with its history, and is then marked so
// that the previous version refuses it.
func TestPreviousFormat(t *testing.T) {
	value, js := valueV1(t)
	o := Options{Dir: "data", FS: vfs.NewMem()}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", value)
	put(t, s, "b", value)
	put(t, s, "b", "\x01 is no header")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	engineDo(t, o.FS, func(db *pebble.DB) {
		if err := db.Set([]byte(format.Key), []byte(format.NameV1), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	})
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	put(t, s, "c", js)
	want(t, list(s.Head(), "", ""), "a="+js+"@2/2", "b=\x01 is no header@3/4", "c="+js+"@5/5")
	old, err := s.At(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	want(t, list(old, "", ""), "a="+js+"@2/2", "b="+js+"@3/3")
	events, err := history(s, 3)
	if err != nil || len(events) != 2 || string(events[0].Previous.Value) != js {
		t.Errorf("%d events, %v", len(events), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	engineDo(t, o.FS, func(db *pebble.DB) {
		v, closer, err := db.Get([]byte(format.Key))
		if err != nil || string(v) != "trellis log 2" {
			t.Errorf("the format is %q, %v", v, err)
		}
		if err == nil {
			_ = closer.Close()
		}
		key := format.AppendVersionKey(nil, "c", 5)
		v, closer, err = db.Get(key)
		if err != nil || !bytes.HasSuffix(v, []byte(js)) || bytes.Contains(v, []byte(value)) {
			t.Errorf("%q, %v", v, err)
		}
		if err == nil {
			_ = closer.Close()
		}
	})
}
