package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxBody is how large the body of a request may be; upstream's limit.
	maxBody = 3 << 20
	// maxTrusted is how much room is made for a body on the client's word, before any of it is there.
	maxTrusted = 256 << 10
)

// body reads the body of the request. A client that stops sending is cut off.
func (q *request) body() ([]byte, error) {
	if q.r.Body == nil || q.r.Body == http.NoBody {
		return nil, nil
	}
	if q.r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	var data bytes.Buffer
	if n := min(q.r.ContentLength, maxTrusted); n > 0 {
		data.Grow(int(n) + bytes.MinRead)
	}
	arrival := q.expect(int64(data.Cap()))
	if q.r.ProtoMajor > 1 {
		stalled := time.AfterFunc(q.server.patience(), arrival.stall)
		defer stalled.Stop()
	}
	n, err := data.ReadFrom(io.LimitReader(arrival, maxBody+1))
	if err := arrival.arrived(); err != nil {
		return nil, err
	}
	switch {
	case n > maxBody:
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, timedOut()
	case err != nil:
		return nil, apierrors.NewBadRequest("the body of the request could not be read: " + err.Error())
	}
	return data.Bytes(), nil
}

// expectBody bounds how long the body of a request may take to arrive where it shares its
// connection with nothing else: there net/http waits for what a handler does not read, both before it
// sends the answer and before the next request, and would do so for ever. Once the body is read to its
// end, net/http takes the deadline away.
func (q *request) expectBody() {
	if q.r.ProtoMajor == 1 {
		q.readDeadline(time.Now().Add(q.server.patience()))
	}
}

// readDeadline ends the wait for the body. One without a connection has no deadline and cannot stall either.
func (q *request) readDeadline(at time.Time) {
	_ = http.NewResponseController(q.w).SetReadDeadline(at)
}

func tooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// sends is the version of what the body is to be: of the kind, or of what its subresource takes.
func (q *request) sends() *resource.Version {
	if q.subresource == "scale" {
		return engine.ScaleVersion
	}
	if s := q.v.Subresource(q.subresource); s != nil && s.Body != nil {
		return s.Body
	}
	return q.v
}

// decode turns a body into an object at the version of the request.
func (q *request) decode(f format, data []byte) (engine.Body, error) {
	typed := q.sends().Type
	switch f {
	case formatProtobuf:
		if !q.sends().HasProtobuf() {
			return engine.Body{}, negotiation.NewUnsupportedMediaTypeError(mediaTypes(withoutProtobuf(q.server.offers), false))
		}
		d, err := typed.DecodeProtobuf(data)
		if err != nil {
			return engine.Body{}, q.unrecognized(data, err)
		}
		return engine.Body{Tree: d.Tree, Internal: d.Internal, Typed: true}, nil
	case formatYAML:
		t, repeated, err := object.DecodeYAML(data)
		if err != nil {
			return engine.Body{}, q.unrecognized(data, err)
		}
		if err := q.affords(t); err != nil {
			return engine.Body{}, err
		}
		return engine.Body{Tree: t, Strict: duplicates(repeated), Source: data}, q.named(data, t)
	case formatCBOR:
		t, err := decodeCBOR(data)
		if err != nil {
			return engine.Body{}, q.unrecognized(data, err)
		}
		return engine.Body{Tree: t}, q.affords(t)
	}
	var fault error // which is told when the kind has been compared
	if typed != nil {
		d, err := typed.Decode(data)
		if err == nil {
			return engine.Body{Tree: d.Tree, Internal: d.Internal, Strict: d.Strict, Typed: true}, q.named(data, d.Tree)
		}
		fault = err
	}
	t, repeated, err := object.DecodeJSON(data)
	if err != nil {
		return engine.Body{}, q.malformed(data, err)
	}
	return engine.Body{Tree: t, Strict: duplicates(repeated), DecodeError: fault, Source: data}, q.named(data, t)
}

// named refuses a body whose apiVersion or kind is no string, or whose apiVersion has two slashes, as upstream words it.
func (q *request) named(data []byte, t object.Tree) error {
	for _, key := range [...]string{"apiVersion", "kind"} {
		switch s := t[key].(type) {
		case nil:
			continue
		case string:
			if key == "kind" || strings.Count(s, "/") < 2 {
				continue
			}
		}
		if _, err := kjson.DefaultMetaFactory.Interpret(object.AppendJSON(nil, object.Tree{key: t[key]})); err != nil {
			return q.unrecognized(data, err)
		}
	}
	return nil
}

func duplicates(repeated []string) []string {
	for i, d := range repeated {
		repeated[i] = object.DuplicateError(d)
	}
	return repeated
}

func withoutProtobuf(all []offer) []offer {
	var out []offer
	for _, o := range all {
		if o.format != formatProtobuf {
			out = append(out, o)
		}
	}
	return out
}

// malformed words the error for JSON that cannot be decoded as upstream does, who looks
// for apiVersion and kind first.
func (q *request) malformed(data []byte, err error) error {
	gvk, early := kjson.DefaultMetaFactory.Interpret(data)
	if early != nil {
		return q.unrecognized(data, early)
	}
	if gvk.Kind == "" {
		return q.unrecognized(data, err)
	}
	return undecodable(*gvk, q.sends().Definition.Names.Kind, err)
}

func undecodable(gvk schema.GroupVersionKind, kind string, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, kind, err))
}

// unrecognized is the error for a body that does not even tell what it is.
func (q *request) unrecognized(data []byte, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
		q.sends().Definition.Names.Kind, err, object.Summary(data)))
}

func decodeCBOR(data []byte) (object.Tree, error) {
	var v any
	if err := direct.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	t, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("the CBOR data item is not a map")
	}
	return t, nil
}

// cborToJSON turns a patch in CBOR into one in JSON.
func cborToJSON(data []byte) ([]byte, error) {
	t, err := decodeCBOR(data)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding CBOR: " + err.Error())
	}
	return object.AppendJSON(nil, t), nil
}
