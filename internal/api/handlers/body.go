package handlers

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxBody is the maximum size of a request body in bytes. The value is kube-apiserver's.
	maxBody = 3 << 20
	// maxPrealloc is the maximum number of bytes allocated from Content-Length before the body is read.
	maxPrealloc = 256 << 10
)

// readBody reads the body of the request. It returns a 504 if the client stops sending.
func (q call) readBody() ([]byte, error) {
	if q.R.Body == nil || q.R.Body == http.NoBody {
		return nil, nil
	}
	if q.R.ContentLength > maxBody {
		return nil, bodyTooLarge()
	}
	var data bytes.Buffer
	if n := min(q.R.ContentLength, maxPrealloc); n > 0 {
		data.Grow(int(n) + bytes.MinRead)
	}
	reader := q.newBodyReader(int64(data.Cap()))
	if q.R.ProtoMajor > 1 {
		stalled := time.AfterFunc(q.WriteTimeout(), reader.abort)
		defer stalled.Stop()
	}
	n, err := data.ReadFrom(io.LimitReader(reader, maxBody+1))
	if err := reader.finish(); err != nil {
		return nil, err
	}
	switch {
	case n > maxBody:
		return nil, bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, request.TimeoutError()
	case err != nil:
		return nil, apierrors.NewBadRequest("cannot read the request body: " + err.Error())
	}
	return data.Bytes(), nil
}

func bodyTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
}

// bodyVersion returns the kind and version that the body must have. Some subresources have their own kind, such as
// Scale.
func (q call) bodyVersion() *resource.Version {
	if q.Subresource == "scale" {
		return scales.Version
	}
	if s := q.Kind.Subresource(q.Subresource); s != nil && s.Body != nil {
		return s.Body
	}
	return q.Kind
}

// decode decodes a request body of the format f.
func (q call) decode(f encoding.Format, data []byte) (verb.Body, error) {
	typed := q.bodyVersion().Type
	switch f {
	case encoding.FormatProtobuf:
		if !q.bodyVersion().HasProtobuf() {
			return verb.Body{}, q.Negotiator.UnsupportedBody(runtime.ContentTypeProtobuf)
		}
		d, err := typed.DecodeProtobuf(data)
		if err != nil {
			return verb.Body{}, q.unrecognized(data, err)
		}
		return verb.Body{Tree: d.Tree, Internal: d.Internal, Typed: true}, nil
	case encoding.FormatYAML:
		t, repeated, err := object.DecodeYAML(data)
		if err != nil {
			return verb.Body{}, q.unrecognized(data, err)
		}
		if err := q.reserveDecoded(t); err != nil {
			return verb.Body{}, err
		}
		return verb.Body{Tree: t, Strict: duplicates(repeated), Source: data}, q.checkTypeMeta(data, t)
	case encoding.FormatCBOR:
		t, err := decodeCBOR(data)
		if err != nil {
			return verb.Body{}, q.unrecognized(data, err)
		}
		return verb.Body{Tree: t}, q.reserveDecoded(t)
	}
	var decodeErr error // returned after the kind has been checked
	if typed != nil {
		d, err := typed.Decode(data)
		if err == nil {
			return verb.Body{Tree: d.Tree, Internal: d.Internal, Strict: d.Strict, Typed: true},
				q.checkTypeMeta(data, d.Tree)
		}
		decodeErr = err
	}
	t, repeated, err := object.DecodeJSON(data)
	if err != nil {
		return verb.Body{}, q.malformed(data, err)
	}
	return verb.Body{Tree: t, Strict: duplicates(repeated), DecodeError: decodeErr, Source: data},
		q.checkTypeMeta(data, t)
}

// checkTypeMeta rejects a body whose apiVersion or kind is not a string, or whose apiVersion has two slashes. The
// messages are upstream's.
func (q call) checkTypeMeta(data []byte, t object.Tree) error {
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

// malformed returns the error for JSON that cannot be decoded. Like upstream, it looks for errors in apiVersion
// and kind first.
func (q call) malformed(data []byte, err error) error {
	gvk, metaErr := kjson.DefaultMetaFactory.Interpret(data)
	if metaErr != nil {
		return q.unrecognized(data, metaErr)
	}
	if gvk.Kind == "" {
		return q.unrecognized(data, err)
	}
	return undecodable(*gvk, q.bodyVersion().Definition.Names.Kind, err)
}

func undecodable(gvk schema.GroupVersionKind, kind string, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v",
		gvk.Kind, gvk.Version, kind, err))
}

// unrecognized returns the error for a body without a usable apiVersion and kind.
func (q call) unrecognized(data []byte, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
		q.bodyVersion().Definition.Names.Kind, err, object.Summary(data)))
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

// cborToJSON converts a patch from CBOR to JSON.
func cborToJSON(data []byte) ([]byte, error) {
	t, err := decodeCBOR(data)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding CBOR: " + err.Error())
	}
	return object.AppendJSON(nil, t), nil
}
