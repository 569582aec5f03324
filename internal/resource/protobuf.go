package resource

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The protobuf wire format of Kubernetes consists of four magic bytes and a runtime.Unknown. The runtime.Unknown
// contains the type and, as raw bytes, the object's own message. (apimachinery, pkg/runtime/serializer/protobuf and
// generated.proto)
var protobufMagic = []byte{'k', '8', 's', 0}

// NotProtobufError means that a Go type has no protobuf form, such as metav1.Table. For a response, the status code
// is 406.
type NotProtobufError struct{ Type reflect.Type }

func (e *NotProtobufError) Error() string {
	return fmt.Sprintf("object %v does not implement the protobuf marshalling interface "+
		"and cannot be encoded to a protobuf message", e.Type)
}

// protobufObject is implemented by the generated types of k8s.io/api.
type protobufObject interface {
	runtime.ProtobufMarshaller
	runtime.ProtobufReverseMarshaller
}

// HasProtobuf reports whether objects have a protobuf form.
func (v *Version) HasProtobuf() bool { return v.Type != nil && !v.Type.NoProtobuf }

// IsProtobuf reports whether the Go type of obj has a protobuf form.
func IsProtobuf(obj runtime.Object) bool {
	_, ok := obj.(protobufObject)
	return ok
}

// AppendProtobuf appends obj in its envelope. obj may be of any Go type with a protobuf form, such as
// metav1.Status. For other types the error is a *NotProtobufError.
func AppendProtobuf(dst []byte, apiVersion, kind string, obj runtime.Object) ([]byte, error) {
	m, ok := obj.(protobufObject)
	if !ok {
		return dst, &NotProtobufError{reflect.TypeOf(obj)}
	}
	return appendEnvelope(dst, apiVersion, kind, m)
}

func appendEnvelope(dst []byte, apiVersion, kind string, m runtime.ProtobufMarshaller) ([]byte, error) {
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}}
	size := uint64(m.Size())
	total := envelope.Size() + 1 + len(binary.AppendUvarint(nil, size)) + int(size)
	dst = append(slices.Grow(dst, len(protobufMagic)+total), protobufMagic...)
	n, err := envelope.NestedMarshalTo(dst[len(dst):len(dst)+total], m, size)
	if err != nil {
		return dst[:len(dst)-len(protobufMagic)], fmt.Errorf("resource: encode %s %s: %w", apiVersion, kind, err)
	}
	return dst[:len(dst)+n], nil
}

// Protobuf returns the protobuf message of an object from its JSON. The message is the protobuf form without the
// envelope.
func (g *GoType) Protobuf(json []byte) ([]byte, error) {
	obj, err := g.Object(json)
	if err != nil {
		return nil, err
	}
	m, ok := obj.(protobufObject)
	if !ok {
		return nil, &NotProtobufError{reflect.TypeOf(obj)}
	}
	message := make([]byte, m.Size())
	if _, err := m.MarshalToSizedBuffer(message); err != nil {
		return nil, fmt.Errorf("resource: encode %T: %w", obj, err)
	}
	return message, nil
}

// AppendMessage appends an object's protobuf message in its envelope.
func AppendMessage(dst []byte, apiVersion, kind string, message []byte) ([]byte, error) {
	return appendEnvelope(dst, apiVersion, kind, rawMessage(message))
}

// rawMessage is an encoded message.
type rawMessage []byte

func (m rawMessage) Size() int                          { return len(m) }
func (m rawMessage) MarshalTo(data []byte) (int, error) { return copy(data, m), nil }

// ProtobufList encodes a list item by item, so that only one item at a time is a Go object. The zero value is an
// empty list.
type ProtobufList struct{ items []byte }

// Tags of the two fields of each list type in Kubernetes. Their wire type is length-delimited.
const (
	tagListMeta  = 1<<3 | 2
	tagListItems = 2<<3 | 2
)

// Add appends an item. It returns a *NotProtobufError if the item has no protobuf form.
func (l *ProtobufList) Add(obj runtime.Object) error {
	m, ok := obj.(protobufObject)
	if !ok {
		return &NotProtobufError{reflect.TypeOf(obj)}
	}
	size := m.Size()
	l.items = slices.Grow(l.items, size+1+binary.MaxVarintLen64)
	l.items = append(l.items, tagListItems)
	l.items = binary.AppendUvarint(l.items, uint64(size))
	end := len(l.items) + size
	if _, err := m.MarshalToSizedBuffer(l.items[len(l.items):end]); err != nil {
		return fmt.Errorf("resource: encode %T: %w", obj, err)
	}
	l.items = l.items[:end]
	return nil
}

// Append appends the whole list in its envelope. kind is the kind of the list.
func (l *ProtobufList) Append(dst []byte, apiVersion, kind string, meta *metav1.ListMeta) ([]byte, error) {
	head, err := meta.Marshal()
	if err != nil {
		return dst, fmt.Errorf("resource: encode list metadata: %w", err)
	}
	return appendEnvelope(dst, apiVersion, kind, &listMessage{head, l.items})
}

// listMessage is a list's message in two parts.
type listMessage struct{ meta, items []byte }

func (m *listMessage) Size() int {
	return 1 + len(binary.AppendUvarint(nil, uint64(len(m.meta)))) + len(m.meta) + len(m.items)
}

func (m *listMessage) MarshalTo(data []byte) (int, error) {
	out := binary.AppendUvarint(append(data[:0], tagListMeta), uint64(len(m.meta)))
	return len(append(append(out, m.meta...), m.items...)), nil
}

// AppendProtobufEvent appends one frame of a watch stream. A frame consists of its length in four bytes and a
// metav1.WatchEvent without an envelope. obj is the event's object in its envelope, as returned by AppendProtobuf.
func AppendProtobufEvent(dst []byte, event string, obj []byte) ([]byte, error) {
	e := metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: obj}}
	size := e.Size()
	dst = binary.BigEndian.AppendUint32(slices.Grow(dst, 4+size), uint32(size))
	n, err := e.MarshalTo(dst[len(dst) : len(dst)+size])
	if err != nil {
		return dst[:len(dst)-4], fmt.Errorf("resource: encode watch event: %w", err)
	}
	return dst[:len(dst)+n], nil
}

// DecodeProtobuf decodes an object, such as metav1.DeleteOptions, from its envelope into obj. It returns apiVersion
// and kind of the envelope, which may be empty. Errors equal those of upstream.
func DecodeProtobuf(data []byte, obj runtime.Object) (apiVersion, kind string, err error) {
	switch {
	case len(data) == 0:
		return "", "", errors.New("empty data")
	case !bytes.HasPrefix(data, protobufMagic):
		const format = "provided data does not appear to be a protobuf message, expected prefix %v"
		return "", "", fmt.Errorf(format, protobufMagic)
	case len(data) == len(protobufMagic):
		return "", "", errors.New("empty body")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(data[len(protobufMagic):]); err != nil {
		return "", "", err
	}
	m, ok := obj.(interface{ Unmarshal([]byte) error })
	if !ok {
		return "", "", &NotProtobufError{reflect.TypeOf(obj)}
	}
	if err := checkDepth(envelope.Raw); err != nil {
		return "", "", err
	}
	if err := m.Unmarshal(envelope.Raw); err != nil {
		return "", "", err
	}
	return envelope.APIVersion, envelope.Kind, nil
}

// DecodeProtobuf does the same as Decode for a protobuf body. apiVersion and kind of the tree are those of the
// envelope.
func (g *GoType) DecodeProtobuf(data []byte) (d Decoded, err error) {
	obj := g.New()
	apiVersion, kind, err := DecodeProtobuf(data, obj)
	if err == nil {
		d, err = g.finishDecode(obj, nil, nil)
	}
	if err != nil {
		return d, err
	}
	for key, value := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		if value != "" {
			d.Tree[key] = value
		}
	}
	return d, nil
}
