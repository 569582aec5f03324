package object

// Packed is an object as it lies in storage: a header and the canonical JSON of
// the object without metadata.resourceVersion. The header says where the
// resourceVersion is spliced in and under which fingerprint the object was
// written. A Packed is never modified.
type Packed []byte

// Pack encodes t, leaving out metadata.resourceVersion. It does not modify or
// keep t.
func Pack(t Tree, fingerprint uint64) Packed { panic("object: Pack") }

// JSON returns the object's JSON without resourceVersion, without a copy.
func (p Packed) JSON() []byte { panic("object: JSON") }

// Fingerprint returns what Pack was given.
func (p Packed) Fingerprint() uint64 { panic("object: Fingerprint") }

// AppendJSON appends the object's JSON with resourceVersion set to revision.
func (p Packed) AppendJSON(dst []byte, revision int64) []byte { panic("object: AppendJSON") }

// AppendJSONAs is AppendJSON with another apiVersion in its place (strategy None).
func (p Packed) AppendJSONAs(dst []byte, apiVersion string, revision int64) []byte {
	panic("object: AppendJSONAs")
}

// Tree decodes the object into a fresh tree with resourceVersion set to revision
// (left out if 0).
func (p Packed) Tree(revision int64) (Tree, error) { panic("object: Tree") }

// Check reports damage that can be seen without knowing the kind.
func (p Packed) Check() error { panic("object: Check") }
