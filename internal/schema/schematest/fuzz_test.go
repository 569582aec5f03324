package schematest

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/schema"
)

// FuzzWrite makes schema and objects together of the fuzzer's bytes. The outcome is upstream's.
func FuzzWrite(f *testing.F) {
	fuzzTrial(f, trial)
}

// FuzzCRD makes the schema of a CRD, and mistakes in it, of the fuzzer's bytes. The verdict is upstream's.
func FuzzCRD(f *testing.F) {
	fuzzTrial(f, trialCRD)
}

// FuzzUpdateOfCRD makes a whole CRD and one that it replaces of the fuzzer's bytes. The verdict is upstream's.
func FuzzUpdateOfCRD(f *testing.F) {
	fuzzTrial(f, trialUpdate)
}

func fuzzTrial(f *testing.F, trial func(*source, *tally) error) {
	for seed := range 40 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		data := make([]byte, 60+40*seed)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var c tally
		if err := trial(&source{data: data}, &c); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzJSON takes any JSON for a schema and any for objects. Nothing makes the engine panic.
func FuzzJSON(f *testing.F) {
	for seed := range 40 {
		g := &gen{source: seeded(seed), rules: true, slip: 20}
		root := g.root()
		f.Add(asJSON(root), object.AppendJSON(nil, g.object(root)), object.AppendJSON(nil, g.object(root)))
	}
	f.Add([]byte(`{"type":"object","properties":{"a":{"items":{"type":[]},"default":{"a":[{}]},"enum":[[]],"pattern":"(","not":{"not":{}},"multipleOf":0,"maxLength":-1}}}`), []byte(`{"a":[1]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, text, data, oldData []byte) {
		s, err := schema.Compile(text, false)
		if err != nil {
			return
		}
		obj, _, err := object.DecodeJSON(data)
		if err != nil {
			return
		}
		old, _, err := object.DecodeJSON(oldData)
		if err != nil {
			old = nil
		} else {
			s.NormalizeStored(old)
		}
		if _, err := s.Normalize(obj); err != nil {
			return
		}
		ctx := context.Background()
		_ = s.Validate(ctx, obj, old, nil)
		_ = s.Validate(ctx, obj, nil, nil)
	})
}
