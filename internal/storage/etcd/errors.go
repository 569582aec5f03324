package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// unavailable returns the storage.ErrUnavailable of a failed request to etcd.
func unavailable(cause error) error { return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause) }

// startError returns the error of an action, such as "load from", with which a store cannot start.
func (s *Store) startError(action string, cause error) error {
	err := fmt.Errorf("%s etcd at %s: %w", action, strings.Join(s.options.Servers, ","), cause)
	if codeOf(cause) == codes.DeadlineExceeded {
		err = fmt.Errorf("%w: make sure that a majority of its members run and can be reached, and start again", err)
	}
	return err
}

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

// retry repeats a request until it succeeds, until its error does not depend on the state of etcd, or until ctx ends.
func retry(ctx context.Context, request func() error) error {
	for {
		err := request()
		if code := codeOf(err); code != codes.DeadlineExceeded && code != codes.Unavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(reconnectDelay):
		}
	}
}

// codeOf returns the gRPC code of a request's error. If the time of a request ends, the client returns either the error
// of its context or the status that etcd has sent at the same time.
func codeOf(err error) codes.Code {
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// rejection returns the error of a transaction if err proves that etcd has not executed it. Otherwise it returns
// nil.
func rejection(err error) error {
	code := codeOf(err)
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
