package record

import (
	"fmt"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestSelectableValues checks that selectable fields are compared in the form in which upstream prints them. This
// includes stored values that the current schema rejects (PRN-021, PRN-023, PRN-031).
func TestSelectableValues(t *testing.T) {
	for _, raw := range []string{`"blue"`, `""`, `"a\"b\u00e9"`, `true`, `false`, `0`, `-7`, `9007199254740993`, `1e21`,
		`2.50`, `1e-7`, `null`, `{"a":"b"}`, `["x",true]`, `"null"`, `"true"`} {
		var v any
		if err := utiljson.Unmarshal([]byte(raw), &v); err != nil {
			t.Fatal(err)
		}
		want := ""
		if v != nil {
			want = fmt.Sprint(v)
		}
		tree, _, err := object.DecodeJSON([]byte(`{"v":` + raw + `}`))
		if err != nil {
			t.Fatal(err)
		}
		stored, _ := object.Field(object.AppendJSON(nil, tree), "v")
		if got := selectorText(stored); got != want {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}
