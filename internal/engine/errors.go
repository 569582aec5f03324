package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// futureRevisionTimeout is how long a read waits for a revision that the store has not reached.
const futureRevisionTimeout = 3 * time.Second

// retryAfter is the value of the Retry-After header, in seconds, if the store is temporarily unavailable. client-go
// makes up to ten retries.
const retryAfter = 1

// errStaleObject is the cause of each 409 for an outdated resourceVersion.
var errStaleObject = errors.New(
	"the object has been modified; please apply your changes to the latest version and try again")

// notServed returns the 404 for a resource or subresource that is not served.
func notServed() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, true)
}

// unknownError returns the 500 that upstream returns for an error that has no Status.
func unknownError(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonUnknown,
		Message: message,
	}}
}

func tooLargeRevision(requested, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", requested, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

// storageError returns the Status for an error of the store. It omits the details of disk errors, because they
// contain paths. The log has them.
func storageError(err error) error {
	var status *apierrors.StatusError
	switch {
	case err == nil, errors.As(err, &status):
		return err
	case errors.Is(err, storage.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.Is(err, storage.ErrInDoubt):
		return apierrors.NewTimeoutError("the outcome of the write is unknown: read the object before you retry", 0)
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError("the object exceeds the size limit of the server's storage")
	case errors.Is(err, storage.ErrNoSpace):
		return retryLater("the server's disk is nearly full: " +
			"only deletions and small updates are accepted until space is freed")
	case errors.Is(err, storage.ErrUnavailable):
		return retryLater("the server's storage is unavailable: the request was not executed")
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

// retryLater returns a 503 with Retry-After. client-go then retries the request.
func retryLater(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
