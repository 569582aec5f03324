package api

import (
	"sync"
	"sync/atomic"

	"github.com/trellis-k8s/trellis/internal/engine"
)

// recent has in protobuf what was written lately: who has written it is sent the same as all who watch, mostly within a moment.
type recent [256]atomic.Pointer[encoded]

// largestRecent is how large an object may be, so that all together keep little.
const largestRecent = 16 << 10

// encoded is an object in protobuf once the first has asked for it, for whom the others wait.
type encoded struct {
	object   engine.Object
	protobuf func() ([]byte, error)
}

// protobuf returns an object in protobuf, which the caller must not change.
func (r *recent) protobuf(o engine.Object) ([]byte, error) {
	if len(o.Record.Value) > largestRecent {
		return appendProtobuf(nil, o)
	}
	slot := &r[uint64(o.Revision)%uint64(len(r))]
	e := slot.Load()
	if e == nil || e.object != o {
		e = &encoded{o, sync.OnceValues(func() ([]byte, error) { return appendProtobuf(nil, o) })}
		slot.Store(e)
	}
	return e.protobuf()
}

func appendProtobuf(dst []byte, o engine.Object) ([]byte, error) {
	return o.Version.Type.AppendProtobuf(dst, o.Version.APIVersion, o.Version.Definition.Names.Kind, o.AppendJSON(nil))
}
