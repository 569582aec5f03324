package conversion

import (
	"encoding/json"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// FuzzResponse checks that no response causes a panic, and that the fast decoder returns the same result as the
// decoder of the API types.
func FuzzResponse(f *testing.F) {
	q := review{APIVersion: "apiextensions.k8s.io/v1", Kind: "ConversionReview",
		Request: &reviewRequest{UID: "u", DesiredAPIVersion: "example.com/v1", Objects: []map[string]any{cronTab("a")}}}
	for name, change := range changes {
		if name == "large annotations" {
			continue
		}
		data, err := json.Marshal(respondTo(q, change))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	to := version("v1", "")
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &webhookClient{review: reviewV1}
		quick, err := c.decode(data)
		if err != nil {
			return
		}
		slow, err := c.decodeTyped(data)
		if err != nil {
			return // in a part that the fast decoder ignores
		}
		if quick.kind != slow.kind || quick.uid != slow.uid || quick.response != slow.response ||
			quick.result.Status != slow.result.Status || len(quick.objects) != len(slow.objects) {
			t.Fatalf("%s: %+v, want %+v", data, quick, slow)
		}
		if c.verify(quick, "u") != nil {
			return
		}
		for i := range quick.objects {
			if !object.Equal(quick.objects[i], slow.objects[i]) {
				t.Fatalf("%s: object %d is %v, want %v", data, i, quick.objects[i], slow.objects[i])
			}
			before := cronTab("a")
			out, err := validateConverted(before, quick.objects[i], to)
			if !object.Equal(before, cronTab("a")) {
				t.Fatal("the original has changed")
			}
			if err == nil && (object.Name(out) != "a" || out["apiVersion"] != "example.com/v1" ||
				object.Generation(out) != 3) {
				t.Fatalf("%s is accepted as %v", data, out)
			}
		}
	})
}
