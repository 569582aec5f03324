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

// formerValue is what the program of before stored for an object, byte for byte.
func formerValue(t *testing.T) (value, js string) {
	t.Helper()
	header, err := hex.DecodeString("01020600" + "0e000000" + "37000000" + "42000000" + "8877665544332211")
	if err != nil {
		t.Fatal(err)
	}
	js = `{"apiVersion":"g/v1","kind":"A","metadata":{"name":"n","uid":"u"}}`
	return string(header) + js, js
}

// engineDo opens the engine of a store that is closed.
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

// A directory of the program of before opens, its history included; from then on that program would refuse it.
func TestFormerFormat(t *testing.T) {
	value, js := formerValue(t)
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

// bound is a codec that binds values to their keys.
func bound() storage.Codec {
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
				return nil, errors.New("this is not a value of " + key)
			}
			return []byte(value), nil
		},
	}
}

// Below a prefix that has a codec, values lie on disk as it seals them, and nobody above sees that.
func TestCodec(t *testing.T) {
	o := Options{Dir: "data", FS: vfs.NewMem(), recentBytes: 1, Codecs: storage.Codecs{"secrets/": bound(), "": {}}}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, "secrets/a", "hidden")
	put(t, s, "secrets/a", "hidden too")
	put(t, s, "plain/a", "to be seen")
	check := func(s *Store) {
		t.Helper()
		want(t, list(s.Head(), "", ""), "plain/a=to be seen@4/4", "secrets/a=hidden too@2/3")
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
			if seen := bytes.Contains(v, []byte("hidden")); seen || key == "plain/a" && !bytes.HasSuffix(v, []byte("to be seen")) {
				t.Errorf("%s lies as %q", key, v)
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
	o.Codecs = storage.Codecs{"secrets/": {Open: func(string, []byte) ([]byte, error) { return nil, errors.New("no key") }}}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("opened without the key: %v", err)
	}
}
