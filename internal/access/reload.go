package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apiserver/pkg/util/filesystem"
)

// reloadInterval is the interval at which Reload reads the file even if the system reports no change. Reload also
// retries an unusable file at this interval.
const reloadInterval = time.Minute

// ErrRetry is an error that apply returns to make Reload apply the same content again.
var ErrRetry = errors.New("will be tried again")

// Reload calls apply with the content of the file whenever the content changes, until ctx is done. data is the content
// at the start. If the file cannot be read or applied, the previous content stays in force and report receives the
// error. The metrics functions count successes and failures. Their argument server is "", because there is only one
// server.
func Reload(
	ctx context.Context, file string, data []byte, apply func(ctx context.Context,
		data []byte) error, report func(error),
	countSuccess func(server, data string), countFailure func(server string),
) {
	filesystem.WatchUntil(ctx, reloadInterval, file, func() {
		now, err := os.ReadFile(file)
		if err == nil && bytes.Equal(now, data) {
			return
		}
		if err == nil {
			if err = apply(ctx, now); !errors.Is(err, ErrRetry) {
				data = now
			}
		}
		if err != nil {
			countFailure("")
			report(fmt.Errorf("reload %s: %w", file, err))
			return
		}
		countSuccess("", string(now))
	}, func(error) {}) // the file is polled even if it cannot be watched
}
