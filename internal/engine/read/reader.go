// Package read implements the verbs that read: get, list and watch. It must not import packages for writes.
package read

import "github.com/trellis-k8s/trellis/internal/engine/record"

// Reader implements the verbs get, list and watch.
type Reader struct {
	*record.Views

	schemaGenerations schemaGenerations
	indexes           indexes
}
