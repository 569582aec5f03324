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

// rereadEvery is how often a file is read of whose changes nothing tells, and one that could not be used is tried again.
const rereadEvery = time.Minute

// ErrLater is in the error of a use that may succeed when it is tried again.
var ErrLater = errors.New("will be tried again")

// Reload has what a file says used when that is no longer data, until ctx is done. What cannot be read or used changes nothing,
// and is reported. Upstream's metrics count both; they ask which server it was, of which there is one.
func Reload(ctx context.Context, file string, data []byte, use func(ctx context.Context, data []byte) error, report func(error),
	countSuccess func(server, data string), countFailure func(server string)) {
	filesystem.WatchUntil(ctx, rereadEvery, file, func() {
		now, err := os.ReadFile(file)
		if err == nil && bytes.Equal(now, data) {
			return
		}
		if err == nil {
			if err = use(ctx, now); !errors.Is(err, ErrLater) {
				data = now
			}
		}
		if err != nil {
			countFailure("")
			report(fmt.Errorf("%s is not read again: %w", file, err))
			return
		}
		countSuccess("", string(now))
	}, func(error) {}) // it is read again all the same
}
