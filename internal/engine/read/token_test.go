package read

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/storage"
)

// FuzzToken checks forged continue tokens. None of them causes a panic or reads outside of its collection.
func FuzzToken(f *testing.F) {
	f.Add(encodeToken("/p/ns/name", "/p/", 7))
	f.Add("e30")
	f.Fuzz(func(t *testing.T, text string) {
		start, _, err := decodeToken(text, "/registry/g/r/ns/")
		var status *apierrors.StatusError
		switch {
		case err != nil && !errors.As(err, &status):
			t.Fatalf("got %v, want a Status", err)
		case err == nil && !strings.HasPrefix(start, "/registry/g/r/ns/"):
			t.Fatalf("%q leaves the collection", start)
		}
	})
}

// TestTokensAsUpstream checks that continue tokens are encoded and decoded as in upstream (CRD-060).
func TestTokensAsUpstream(t *testing.T) {
	const prefix = "/registry/g/r/ns/"
	want, err := upstream.EncodeContinue(prefix+"name\x00", prefix, 42)
	if err != nil {
		t.Fatal(err)
	}
	if got := encodeToken(prefix+"name", prefix, 42); got != want {
		t.Errorf("got token %s, want %s", got, want)
	}
	for _, text := range []string{want, "", "!", "e30", "bnVs", "e30=", encodeToken("x", "", -1),
		encodeToken("../x", "", 1), encodeToken("/x", "", 1)} {
		start, revision, err := decodeToken(text, prefix)
		wantStart, wantRevision, wantErr := upstream.DecodeContinue(text, prefix)
		if (err == nil) != (wantErr == nil) || wantErr != nil && err.Error() != "invalid continue token: "+
			wantErr.Error() {
			t.Fatalf("%q: got %v, want %v", text, err, wantErr)
		}
		if start != wantStart || revision != wantRevision {
			t.Errorf("%q: got %q and revision %d, want %q and revision %d", text, start, revision, wantStart,
				wantRevision)
		}
	}
}

// TestTooLargeRevision checks the error for a revision that the store has not reached.
func TestTooLargeRevision(t *testing.T) {
	s := tooLargeRevision(1042, 42).(*apierrors.StatusError).ErrStatus
	if s.Code != 504 || s.Reason != metav1.StatusReasonTimeout ||
		!strings.Contains(s.Message, "Too large resource version: 1042, current: 42") ||
		s.Details.RetryAfterSeconds != 1 || s.Details.Causes[0].Type != "ResourceVersionTooLarge" {
		t.Errorf("got %+v", s)
	}
}
