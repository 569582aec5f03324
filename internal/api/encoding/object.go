package encoding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// AppendObject appends an object in the negotiated form. t is the Table if that is the form.
func (m *Media) AppendObject(dst []byte, o record.Object, t *Table) ([]byte, error) {
	var err error
	switch m.View {
	case ViewTable:
		if dst, err = t.appendSingle(dst, o); err != nil {
			return dst, err
		}
	case ViewPartial:
		if m.Format == FormatProtobuf {
			return appendPartialProtobuf(dst, o, m.Version)
		}
		dst = appendPartial(dst, o, m.Version)
	case ViewPartialList:
		return dst, errNotList
	default:
		if m.Format == FormatProtobuf {
			return appendProtobuf(dst, o)
		}
		dst = o.AppendJSON(dst)
		if m.Pretty && o.Version.Type != nil {
			if dst, err = reorderFields(dst, o.Version.Type.New()); err != nil {
				return nil, err
			}
		}
	}
	if m.Format == FormatJSON && !m.Pretty {
		return append(dst, '\n'), nil
	}
	if dst, err = m.transcode(dst); err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.MediaType, err)
	}
	return dst, nil
}

// reorderFields reorders the fields of an object or list to the order of its Go type. Upstream writes this order,
// and documentation shows it. Responses that are not indented keep the stored order.
func reorderFields(js []byte, typed runtime.Object) ([]byte, error) {
	if err := json.Unmarshal(js, typed); err != nil {
		return nil, fmt.Errorf("decode the stored object: %w", err)
	}
	return json.Marshal(typed)
}

// appendProtobuf appends the protobuf of an object with its envelope.
func appendProtobuf(dst []byte, o record.Object) ([]byte, error) {
	message, err := o.Protobuf()
	if err != nil {
		return dst, err
	}
	return resource.AppendMessage(dst, o.Version.APIVersion, o.Version.Definition.Names.Kind, message)
}

// EncodeStatus returns a Status in the negotiated form.
func (m *Media) EncodeStatus(s *metav1.Status) ([]byte, error) {
	if m.Format == FormatProtobuf {
		return resource.AppendProtobuf(nil, "v1", "Status", s)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return m.transcode(body)
}

// transcode converts the JSON of one value to the negotiated encoding. It may modify js.
func (m Media) transcode(js []byte) ([]byte, error) {
	switch {
	case m.Format == FormatYAML:
		return yaml.JSONToYAML(js)
	case m.Format == FormatCBOR:
		return appendCBOR(nil, js)
	case m.Pretty:
		var out bytes.Buffer
		err := json.Indent(&out, js, "", "  ")
		out.WriteByte('\n')
		return out.Bytes(), err
	}
	return append(js, '\n'), nil
}

// cborTag is the tag of self-described CBOR (RFC 8949, section 3.4.6).
var cborTag = []byte{0xd9, 0xd9, 0xf7}

func appendCBOR(dst, js []byte) ([]byte, error) {
	t, _, err := object.DecodeJSON(js)
	if err != nil {
		return dst, err
	}
	body, err := direct.Marshal(map[string]any(t))
	return append(append(dst, cborTag...), body...), err
}

// StatusOf returns the Status for an error.
func StatusOf(err error) *metav1.Status {
	var withStatus apierrors.APIStatus
	if !errors.As(err, &withStatus) {
		return &metav1.Status{
			TypeMeta: StatusType, Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: err.Error(),
		}
	}
	s := withStatus.Status()
	s.TypeMeta = StatusType
	if s.Status == "" {
		s.Status = metav1.StatusFailure
	}
	if s.Code == 0 {
		s.Code = http.StatusInternalServerError
		if s.Status == metav1.StatusSuccess {
			s.Code = http.StatusOK
		}
	}
	return &s
}

var StatusType = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
