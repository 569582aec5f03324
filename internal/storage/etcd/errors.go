package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// unavailable returns the storage.ErrUnavailable of a failed request to etcd.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause) }

// isCompacted reports whether etcd has compacted the requested revision.
func isCompacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }

// readError converts the error of reading the state at a revision.
func (s *Store) readError(err error, revision int64) error {
	switch {
	case isCompacted(err):
		return &storage.CompactedError{Requested: revision, Oldest: s.OldestInMemory()}
	case errors.Is(err, context.Canceled), errors.Is(err, storage.ErrClosed):
		return err
	}
	return unavailable(err)
}

// rejection returns the error of a transaction if err proves that etcd has not executed it. Otherwise it returns
// nil.
func rejection(err error) error {
	code := status.Code(err)
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		code = e.Code()
	}
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge),
		code == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
		return fmt.Errorf("%w: %w", storage.ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", storage.ErrNoSpace, err)
	case errors.Is(err, rpctypes.ErrNoLeader), // checked before the transaction
		code == codes.Unavailable && strings.Contains(err.Error(), "Error while dialing"): // not sent
		return unavailable(err)
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition,
		codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return unavailable(err)
	}
	return nil
}
