// Package object knows one API object: how its bytes are decoded and encoded,
// how it lies in storage, what its metadata says, and how an error about it
// becomes a Status. It must not know kinds, storage or HTTP.
package object

// Tree is a decoded object: maps with string keys, []any, string, bool, nil,
// int64 for every number written as an integer that fits, float64 for the
// rest. It is what k8s.io/apimachinery calls unstructured content.
type Tree = map[string]any
