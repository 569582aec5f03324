package verb

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// retryAfter is the value of the Retry-After header, in seconds, if the store is temporarily unavailable. client-go
// makes up to ten retries.
const retryAfter = 1

// NotServed returns the 404 for a resource or subresource that is not served.
func NotServed() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, true)
}

// Unknown returns the 500 that upstream returns for an error that has no Status. It returns other errors unchanged.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	var status *apierrors.StatusError // allocated on the heap
	if errors.As(err, &status) {
		return err
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonUnknown,
		Message: err.Error(),
	}}
}

// Status returns the Status for an error: an error of the store, or the 500 for any other error that has no Status.
// It omits the details of disk errors, because they contain paths. The log has them.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var status *apierrors.StatusError // allocated on the heap
	var size *storage.TooLargeError
	switch {
	case errors.As(err, &status):
		return err
	case errors.As(err, &size):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the write has %d %s, and the server's storage accepts at most %d in one write", size.Got, size.Unit,
			size.Limit))
	case errors.Is(err, storage.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.Is(err, storage.ErrInDoubt):
		return apierrors.NewTimeoutError("the outcome of the write is unknown: read the object before you retry", 0)
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError("the object exceeds the size limit of the server's storage")
	case errors.Is(err, storage.ErrNoSpace):
		return RetryLater("the server's storage is nearly full: " +
			"creations and most updates are refused until space is freed")
	case errors.Is(err, storage.ErrUnavailable):
		return RetryLater("the server's storage is unavailable: the request was not executed")
	case errors.Is(err, storage.ErrFailed):
		return apierrors.NewInternalError(storage.ErrFailed)
	case errors.Is(err, storage.ErrUnreadable):
		return apierrors.NewInternalError(storage.ErrUnreadable)
	// This case is last because the errors above may wrap a context error.
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return apierrors.NewInternalError(err)
}

// ErrHistoryLost is the 410 for a watch or list of a history that the store has lost. Without it, the client could
// continue at another server, which has another history.
var ErrHistoryLost = apierrors.NewResourceExpired("the server's storage has failed: list again")

// Invalid returns the 503 of a server that must not answer because of an error of the store.
func Invalid(err error) error {
	reason := "is unavailable: retry"
	if errors.Is(err, storage.ErrFailed) {
		reason = "has failed: retry after the server is restarted"
	}
	return RetryLater("the server's storage " + reason + ", and read the object first if the request was a write")
}

// RetryLater returns a 503 with Retry-After. client-go then retries the request.
func RetryLater(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
