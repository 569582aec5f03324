package handlers

import (
	"strings"
	"testing"
)

// TestFieldManagerComesFromUserAgent checks the default field manager, which is derived from the User-Agent (CRD-057).
func TestFieldManagerComesFromUserAgent(t *testing.T) {
	long := strings.Repeat("ä", 100)
	for agent, want := range map[string]string{"kubectl/v1.37 (linux)": "kubectl", long: strings.Repeat("ä", 64),
		"a\tb/c": "ab", "": ""} {
		if got := fieldManager("", agent); got != want {
			t.Errorf("User-Agent %q: got manager %q, want %q", agent, got, want)
		}
	}
	if fieldManager("given", "kubectl/v1") != "given" {
		t.Error("fieldManager does not return the given manager")
	}
}
