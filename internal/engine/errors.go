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

// freshness is how long a read waits for a revision from the future.
const freshness = 3 * time.Second

// errStaleObject is the cause of every 409 for an outdated resourceVersion.
var errStaleObject = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// notServed is the 404 of a resource or subresource that is not there.
func notServed() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, true)
}

// plain is upstream's answer for an error that has no Status of its own.
func plain(message string) error {
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

// storageError gives an error of the store that nobody interpreted its Status.
func storageError(err error) error {
	var status *apierrors.StatusError
	switch {
	case err == nil, errors.As(err, &status):
		return err
	case errors.Is(err, storage.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	return apierrors.NewInternalError(err)
}
