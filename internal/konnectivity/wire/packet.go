// Package wire implements the wire protocol between API servers, tunnel servers and agents. It encodes and
// decodes the packets of the Konnectivity reference implementation (sigs.k8s.io/apiserver-network-proxy), which
// are gRPC messages on HTTP/2 streams. It implements only the format: it must not import the packages that open
// or serve connections.
package wire

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// Type is the type of a Packet.
type Type uint8

// The packet types (client.proto, PacketType).
const (
	DialReq Type = iota
	DialRsp
	CloseReq
	CloseRsp
	Data
	DialCls
	Drain
)

func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "Unknown"
}

var typeNames = [...]string{"DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN"}

// payloadFields maps each packet type to the protobuf field of Packet that holds its payload.
var payloadFields = [...]protowire.Number{
	DialReq: 2, DialRsp: 3, Data: 4, CloseReq: 5, CloseRsp: 6, DialCls: 7, Drain: 8,
}

// payloadLayout holds the field numbers within the payload of one packet type. 0 means that the type does not
// have the field.
type payloadLayout struct{ protocol, address, random, connectID, err, data protowire.Number }

var layouts = [...]payloadLayout{
	DialReq:  {protocol: 1, address: 2, random: 3},
	DialRsp:  {err: 1, connectID: 2, random: 3},
	CloseReq: {connectID: 1},
	CloseRsp: {err: 1, connectID: 2},
	Data:     {connectID: 1, err: 2, data: 3},
	DialCls:  {random: 1},
	Drain:    {},
}

// Packet is a packet of any type. Fields that its type does not have are zero. The data of a Data packet is passed
// separately, in a Buffer.
type Packet struct {
	Type              Type
	Random, ConnectID int64
	Protocol, Address string
	Error             string
}

// maxStringBytes is the maximum length of an address or an error message in a packet. Longer ones are
// truncated.
const maxStringBytes = 4 << 10

var errMalformed = errors.New("malformed packet")

// Append appends the protobuf encoding of the packet, without data, to a slice.
func (p Packet) Append(buf []byte) []byte {
	if p.Type != DialReq { // protobuf omits a field with value 0
		buf = protowire.AppendTag(buf, 1, protowire.VarintType)
		buf = protowire.AppendVarint(buf, uint64(p.Type))
	}
	buf = protowire.AppendTag(buf, payloadFields[p.Type], protowire.BytesType)
	return protowire.AppendBytes(buf, p.appendPayload(nil))
}

func (p Packet) appendPayload(buf []byte) []byte {
	layout := layouts[p.Type]
	buf = appendString(buf, layout.protocol, p.Protocol)
	buf = appendString(buf, layout.address, p.Address)
	if layout.connectID < layout.random { // fields are encoded in the order of their numbers
		buf = appendString(buf, layout.err, p.Error)
		buf = appendNumber(buf, layout.connectID, p.ConnectID)
		return appendNumber(buf, layout.random, p.Random)
	}
	buf = appendString(buf, layout.err, p.Error)
	return appendNumber(buf, layout.connectID, p.ConnectID)
}

func appendString(buf []byte, field protowire.Number, value string) []byte {
	if field == 0 || value == "" {
		return buf
	}
	// protobuf rejects invalid UTF-8, including a character that the truncation cuts.
	value = strings.ToValidUTF8(value[:min(len(value), maxStringBytes)], "")
	return protowire.AppendString(protowire.AppendTag(buf, field, protowire.BytesType), value)
}

func appendNumber(buf []byte, field protowire.Number, n int64) []byte {
	if field == 0 || n == 0 {
		return buf
	}
	return protowire.AppendVarint(protowire.AppendTag(buf, field, protowire.VarintType), uint64(n))
}

// EncodeData turns data into a gRPC message with a Data packet for a connection. It works in place: it prepends
// the message prefix and the fields of the packet to b.
func EncodeData(b *h2.Buffer, connectID int64) {
	var space [48]byte
	inner := appendNumber(space[:0], layouts[Data].connectID, connectID)
	inner = protowire.AppendVarint(protowire.AppendTag(inner, layouts[Data].data, protowire.BytesType), uint64(b.Len()))
	n := len(inner) + b.Len()
	b.Prepend(inner)
	var outer [16]byte
	packet := protowire.AppendVarint(protowire.AppendTag(outer[:0], 1, protowire.VarintType), uint64(Data))
	packet = protowire.AppendVarint(protowire.AppendTag(packet, payloadFields[Data], protowire.BytesType), uint64(n))
	b.Prepend(packet)

	prependLength(b, b.Len())
}

// Message returns the packet as a gRPC message.
func (p Packet) Message() *h2.Buffer {
	b := h2.BufferOf(p.Append(make([]byte, 0, 64)))
	prependLength(b, b.Len())
	return b
}

// parse decodes a packet. The returned data is a slice of message.
func parse(message []byte) (p Packet, data []byte, err error) {
	var payloads [len(payloadFields)][]byte
	err = parseFields(message, func(field protowire.Number, n uint64) {
		if field == 1 {
			p.Type = Type(min(n, 255))
		}
	}, func(field protowire.Number, value []byte) {
		for t, number := range payloadFields {
			if number == field {
				payloads[t] = value
			}
		}
	})
	if err != nil || int(p.Type) >= len(payloadFields) {
		return p, nil, err
	}
	layout := layouts[p.Type]
	err = parseFields(payloads[p.Type], func(field protowire.Number, n uint64) {
		switch field {
		case layout.random:
			p.Random = int64(n)
		case layout.connectID:
			p.ConnectID = int64(n)
		}
	}, func(field protowire.Number, value []byte) {
		switch field {
		case layout.protocol:
			p.Protocol = truncated(value)
		case layout.address:
			p.Address = truncated(value)
		case layout.err:
			p.Error = truncated(value)
		case layout.data:
			data = value
		}
	})
	return p, data, err
}

func truncated(value []byte) string { return string(value[:min(len(value), maxStringBytes)]) }

// parseFields calls the function number for each varint field of a protobuf message, and the function value for
// each length-delimited field. It skips fields of other types.
func parseFields(message []byte, number func(protowire.Number, uint64), value func(protowire.Number, []byte)) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		switch kind {
		case protowire.VarintType:
			v, size := protowire.ConsumeVarint(message)
			if n = size; n >= 0 {
				number(field, v)
			}
		case protowire.BytesType:
			v, size := protowire.ConsumeBytes(message)
			if n = size; n >= 0 {
				value(field, v)
			}
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
	}
	return nil
}
