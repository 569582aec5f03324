package apiserver

import (
	"errors"
	"testing"
)

// TestHookStates checks that a start task is done only after it has ended without an error. (CRD-070)
func TestHookStates(t *testing.T) {
	var h hooks
	failed := errors.New("failed")
	h.done(nil, hookRoles)
	h.done(failed, hookTrust)
	for name, want := range map[string]error{hookRoles: nil, hookTrust: failed, hookStorage: errNotFinished} {
		if got := h.state(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
