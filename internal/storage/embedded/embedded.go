// Package embedded is the log on one machine's disk, kept in a directory.
package embedded

import (
	"log/slog"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Options say where and how the log is kept.
type Options struct {
	Dir          string        // "" keeps everything in memory
	CompactAfter time.Duration // how long history is kept
	HistoryBytes int64         // how much of it is kept at most
	Logger       *slog.Logger
}

// Open opens or makes the store in o.Dir. A directory that another process has
// open, or that is damaged, is an error that says what to do.
func Open(o Options) (*storage.Store, error) { panic("embedded: Open") }
