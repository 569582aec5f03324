package object

import "k8s.io/apimachinery/pkg/types"

// Meta is what selectors and the delete path need of an object's metadata,
// read without decoding the rest. Its strings may point into the bytes it was
// scanned from.
type Meta struct {
	Name, Namespace   string
	UID               types.UID
	Generation        int64
	DeletionTimestamp string
	Finalizers        []string
	Labels            Labels
}

// Label is one key and its value.
type Label struct{ Key, Value string }

// Labels is sorted by key and implements labels.Labels of apimachinery.
type Labels []Label

// Has reports whether the label key is set.
func (l Labels) Has(key string) bool { panic("object: Has") }

// Get returns the value of label key, or "".
func (l Labels) Get(key string) string { panic("object: Get") }

// Lookup returns the value of label key and whether it is set.
func (l Labels) Lookup(key string) (string, bool) { panic("object: Lookup") }

// ScanMeta reads the metadata of an object's JSON in one pass.
func ScanMeta(json []byte) (*Meta, error) { panic("object: ScanMeta") }
