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

// futureRevisionTimeout is how long a read waits for a revision from the future.
const futureRevisionTimeout = 3 * time.Second

// retryAfter is in how many seconds to try again what the store cannot do at the moment. client-go
// does so ten times.
const retryAfter = 1

// errStaleObject is the cause of every 409 for an outdated resourceVersion.
var errStaleObject = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// notServed is the 404 of a resource or subresource that is not there.
func notServed() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, true)
}

// unknownError is upstream's answer for an error that has no Status of its own.
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

// storageError gives an error of the store that nobody interpreted its Status. What went wrong on
// disk is for the log: its paths are not for clients.
func storageError(err error) error {
	var status *apierrors.StatusError
	switch {
	case err == nil, errors.As(err, &status):
		return err
	case errors.Is(err, storage.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.Is(err, storage.ErrInDoubt):
		return apierrors.NewTimeoutError("it is not known yet whether the write was carried out: look before you try again", 0)
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError("the object is too large for the storage of the server")
	case errors.Is(err, storage.ErrNoSpace):
		return retryLater("the disk of the server is nearly full: until there is room, only deletions and small updates are carried out")
	case errors.Is(err, storage.ErrUnavailable):
		return retryLater("the storage of the server is not available at the moment: this was not carried out")
	case errors.Is(err, storage.ErrFailed):
		return apierrors.NewInternalError(storage.ErrFailed)
	case errors.Is(err, storage.ErrUnreadable):
		return apierrors.NewInternalError(storage.ErrUnreadable)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled): // those above may have come of one
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return apierrors.NewInternalError(err)
}

// retryLater is the 503 for what may be tried again, as client-go does by itself.
func retryLater(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
