package schematest

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
)

// FuzzWrite generates a schema and objects from the fuzzer's bytes and compares the results with upstream's.
func FuzzWrite(f *testing.F) {
	fuzzTrial(f, trial)
}

// FuzzCRD generates the schema of a CRD from the fuzzer's bytes. The schema can have mistakes. FuzzCRD compares the
// errors with upstream's.
func FuzzCRD(f *testing.F) {
	fuzzTrial(f, trialCRD)
}

// FuzzUpdateOfCRD generates a complete CRD and its old state from the fuzzer's bytes. It compares the errors with
// upstream's.
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

// FuzzJSON uses arbitrary JSON as schema and objects and checks that validation does not panic.
func FuzzJSON(f *testing.F) {
	for seed := range 40 {
		g := &gen{source: seeded(seed), rules: true, wrongValueRate: 20}
		root := g.root()
		f.Add(asJSON(root), object.AppendJSON(nil, g.object(root)), object.AppendJSON(nil, g.object(root)))
	}
	f.Add([]byte(`{"type":"object","properties":{"a":{"items":{"type":[]},"default":{"a":[{}]},"enum":[[]],`+
		`"pattern":"(","not":{"not":{}},"multipleOf":0,"maxLength":-1}}}`), []byte(`{"a":[1]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, text, data, oldData []byte) {
		s, err := crd.Compile(text, false)
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
