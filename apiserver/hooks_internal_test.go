package apiserver

import (
	"errors"
	"testing"
)

// CRD-070: a task of the start is done when it has ended without an error, not before.
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
