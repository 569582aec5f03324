package encoding

import "testing"

// TestAges checks the cells of date columns (PRN-013, PRN-017).
func TestAges(t *testing.T) {
	tb := &Table{}
	tb.refresh()
	for text, want := range map[string]string{
		"": `"\u003cunknown\u003e"`, "yesterday": `"\u003cinvalid\u003e"`,
		"0001-01-01T00:00:00Z": `"\u003cunknown\u003e"`,
		tb.now.Add(-3 * 3600e9).UTC().Format("2006-01-02T15:04:05Z"): `"3h"`,
	} {
		if got := string(tb.appendAge(nil, text)); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
