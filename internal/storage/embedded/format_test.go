package embedded

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
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
		if err := db.Set([]byte(formatKey), []byte(formatNameV1), pebble.Sync); err != nil {
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
		v, closer, err := db.Get([]byte(formatKey))
		if err != nil || string(v) != "trellis log 2" {
			t.Errorf("the format is %q, %v", v, err)
		}
		if err == nil {
			_ = closer.Close()
		}
		key := appendVersionKey(nil, "c", 5)
		v, closer, err = db.Get(key)
		if err != nil || !bytes.HasSuffix(v, []byte(js)) || bytes.Contains(v, []byte(value)) {
			t.Errorf("%q, %v", v, err)
		}
		if err == nil {
			_ = closer.Close()
		}
	})
}

// keyBoundCodec returns a codec that binds values to their keys.
func keyBoundCodec() storage.Codec {
	return storage.Codec{
		Seal: func(key string, value []byte) ([]byte, error) {
			sealed := []byte(key + "\x00" + string(value))
			slices.Reverse(sealed)
			return sealed, nil
		},
		Open: func(key string, data []byte) ([]byte, error) {
			data = bytes.Clone(data)
			slices.Reverse(data)
			value, ok := strings.CutPrefix(string(data), key+"\x00")
			if !ok {
				return nil, errors.New("not a value of " + key)
			}
			return []byte(value), nil
		},
	}
}

// TestCodec checks that values below a prefix with a codec are stored encoded, and that readers get the original
// values.
func TestCodec(t *testing.T) {
	codecs := storage.Codecs{"secrets/": keyBoundCodec(), "": {}}
	o := Options{Dir: "data", FS: vfs.NewMem(), recentBytes: 1, Codecs: codecs}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "secrets/a", "hidden")
	put(t, s, "secrets/a", "hidden too")
	put(t, s, "plain/a", "visible")
	check := func(s *Store) {
		t.Helper()
		want(t, list(s.Head(), "", ""), "plain/a=visible@4/4", "secrets/a=hidden too@2/3")
		old, err := s.At(context.Background(), 2)
		if err != nil {
			t.Fatal(err)
		}
		want(t, list(old, "", ""), "secrets/a=hidden@2/2")
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	engineDo(t, o.FS, func(db *pebble.DB) {
		for key, revision := range map[string]int64{"secrets/a": 2, "plain/a": 4} {
			v, closer, err := db.Get(appendVersionKey(nil, key, revision))
			if err != nil {
				t.Fatal(err)
			}
			readable := key != "plain/a" || bytes.HasSuffix(v, []byte("visible"))
			if bytes.Contains(v, []byte("hidden")) || !readable {
				t.Errorf("%s is stored as %q", key, v)
			}
			_ = closer.Close()
		}
	})
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	noKey := func(string, []byte) ([]byte, error) { return nil, errors.New("no key") }
	o.Codecs = storage.Codecs{"secrets/": {Open: noKey}}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("open without the key: got %v", err)
	}
}
