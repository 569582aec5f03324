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

// unavailable is the error for what could not be asked of etcd.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause) }

// compacted says that etcd has forgotten what was asked for.
func compacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }

// reading is the error for state at a revision that could not be read.
func (s *Store) reading(err error, revision int64) error {
	switch {
	case compacted(err):
		return &storage.CompactedError{Requested: revision, Oldest: s.OldestInMemory()}
	case errors.Is(err, context.Canceled), errors.Is(err, storage.ErrClosed):
		return err
	}
	return unavailable(err)
}

// refused gives a failed transaction its error, where etcd has certainly not carried it out, and nil where that is not known.
func refused(err error) error {
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
	case code == codes.Unavailable && strings.Contains(err.Error(), "Error while dialing"): // it has not been sent
		return unavailable(err)
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted:
		return unavailable(err)
	}
	return nil
}
