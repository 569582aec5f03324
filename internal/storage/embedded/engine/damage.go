package engine

import "fmt"

// DamageError is returned if the content of the data directory is not what the store has written. The store then
// serves no data.
type DamageError struct {
	Dir          string
	Detail       string
	Err          error // error of Pebble; may be nil
	LastRevision int64 // last revision before the damage if AcceptLossAfter can accept the loss, else 0
}

func (e *DamageError) Error() string {
	text := "the data in " + e.Dir + " is damaged: " + e.Detail
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	text += ". The server has changed no files. Check the disk and copy the directory. " +
		"Then restore the directory from a backup, or start with an empty one"
	if e.LastRevision > 0 {
		text += fmt.Sprintf(". To continue without the revisions after %d, "+
			"start the server once with --accept-data-loss-after=%[1]d", e.LastRevision)
	}
	return text
}

func (e *DamageError) Unwrap() error { return e.Err }
