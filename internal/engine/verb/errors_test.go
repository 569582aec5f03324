package verb

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestStorageErrors checks that each error of the store becomes a Status with a code that clients handle. Its
// message contains no file paths of the server.
func TestStorageErrors(t *testing.T) {
	disk := &fs.PathError{Op: "write", Path: "/var/lib/trellis/store", Err: errors.New("no space left on device")}
	for _, c := range []struct {
		kind   error
		code   int32
		reason metav1.StatusReason
		retry  int32
	}{
		{storage.ErrNoSpace, 503, metav1.StatusReasonServiceUnavailable, 1},
		{storage.ErrUnavailable, 503, metav1.StatusReasonServiceUnavailable, 1},
		{storage.ErrClosed, 503, metav1.StatusReasonServiceUnavailable, 0},
		{storage.ErrInDoubt, 504, metav1.StatusReasonTimeout, 0},
		{storage.ErrFailed, 500, metav1.StatusReasonInternalError, 0},
		{storage.ErrUnreadable, 500, metav1.StatusReasonInternalError, 0},
	} {
		var status *apierrors.StatusError
		if !errors.As(Status(fmt.Errorf("%w: %w", c.kind, disk)), &status) {
			t.Errorf("%v: got no Status", c.kind)
			continue
		}
		s := status.ErrStatus
		if s.Code != c.code || s.Reason != c.reason || strings.Contains(s.Message, "/var") {
			t.Errorf("%v: got %d %s %q", c.kind, s.Code, s.Reason, s.Message)
		}
		if s.Details != nil {
			for _, cause := range s.Details.Causes {
				if strings.Contains(cause.Message, "/var") {
					t.Errorf("%v: got cause %q, want it without a file path", c.kind, cause.Message)
				}
			}
		}
		if retry, _ := apierrors.SuggestsClientDelay(status); int32(retry) != c.retry {
			t.Errorf("%v: got a retry after %d s, want %d s", c.kind, retry, c.retry)
		}
	}
}
