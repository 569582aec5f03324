// Package wire is what tunnel servers, their agents and API servers say to each other: the packets of the Konnectivity reference
// implementation (sigs.k8s.io/apiserver-network-proxy), in messages of gRPC, on streams of internal/konnectivity/h2. It knows what is
// said, and nothing of why.
package wire

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

// Type is that of a Packet.
type Type uint8

// The types of packets (client.proto, PacketType).
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

// payloadFields is the number of the field that has what belongs to each type.
var payloadFields = [...]protowire.Number{DialReq: 2, DialRsp: 3, Data: 4, CloseReq: 5, CloseRsp: 6, DialCls: 7, Drain: 8}

// The fields of a payload by its type, and in a Packet: what is a number or a text of the packet.
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

// Packet is one of any type: what its type does not have is empty. Data is in a Buffer beside it.
type Packet struct {
	Type              Type
	Random, ConnectID int64
	Protocol, Address string
	Error             string
}

// maxStringBytes is how many bytes a text of a packet has at most: an address, or an error.
const maxStringBytes = 4 << 10

var errMalformed = errors.New("a packet that is none")

// Append appends the packet, without data, as protobuf has it.
func (p Packet) Append(to []byte) []byte {
	if p.Type != DialReq { // as 0 it is left out
		to = protowire.AppendTag(to, 1, protowire.VarintType)
		to = protowire.AppendVarint(to, uint64(p.Type))
	}
	to = protowire.AppendTag(to, payloadFields[p.Type], protowire.BytesType)
	return protowire.AppendBytes(to, p.appendPayload(nil))
}

func (p Packet) appendPayload(to []byte) []byte {
	l := layouts[p.Type]
	to = appendString(to, l.protocol, p.Protocol)
	to = appendString(to, l.address, p.Address)
	if l.connectID < l.random { // fields stand in the order of their numbers
		to = appendString(to, l.err, p.Error)
		to = appendNumber(to, l.connectID, p.ConnectID)
		return appendNumber(to, l.random, p.Random)
	}
	to = appendString(to, l.err, p.Error)
	return appendNumber(to, l.connectID, p.ConnectID)
}

func appendString(to []byte, field protowire.Number, text string) []byte {
	if field == 0 || text == "" {
		return to
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxStringBytes)], "") // protobuf refuses what is none, cut in the midst of a character as well
	return protowire.AppendString(protowire.AppendTag(to, field, protowire.BytesType), text)
}

func appendNumber(to []byte, field protowire.Number, n int64) []byte {
	if field == 0 || n == 0 {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, field, protowire.VarintType), uint64(n))
}

// EncodeData makes a message of gRPC out of a piece of data, in place: a packet of type Data for a connection.
func EncodeData(b *h2.Buffer, connectID int64) {
	var space [48]byte
	in := appendNumber(space[:0], layouts[Data].connectID, connectID)
	in = protowire.AppendVarint(protowire.AppendTag(in, layouts[Data].data, protowire.BytesType), uint64(b.Len()))
	n := len(in) + b.Len()
	b.Prepend(in)
	var outer [16]byte
	out := protowire.AppendVarint(protowire.AppendTag(outer[:0], 1, protowire.VarintType), uint64(Data))
	out = protowire.AppendVarint(protowire.AppendTag(out, payloadFields[Data], protowire.BytesType), uint64(n))
	b.Prepend(out)
	prependLength(b, b.Len())
}

// Message returns the packet as a message of gRPC.
func (p Packet) Message() *h2.Buffer {
	b := h2.BufferOf(p.Append(make([]byte, 0, 64)))
	prependLength(b, b.Len())
	return b
}

// parse reads a packet; data is part of the message.
func parse(message []byte) (p Packet, data []byte, err error) {
	var bodies [len(payloadFields)][]byte
	err = parseFields(message, func(field protowire.Number, n uint64) {
		if field == 1 {
			p.Type = Type(min(n, 255))
		}
	}, func(field protowire.Number, value []byte) {
		for t, of := range payloadFields {
			if of == field {
				bodies[t] = value
			}
		}
	})
	if err != nil || int(p.Type) >= len(payloadFields) {
		return p, nil, err
	}
	l := layouts[p.Type]
	err = parseFields(bodies[p.Type], func(field protowire.Number, n uint64) {
		switch field {
		case l.random:
			p.Random = int64(n)
		case l.connectID:
			p.ConnectID = int64(n)
		}
	}, func(field protowire.Number, value []byte) {
		switch field {
		case l.protocol:
			p.Protocol = truncated(value)
		case l.address:
			p.Address = truncated(value)
		case l.err:
			p.Error = truncated(value)
		case l.data:
			data = value
		}
	})
	return p, data, err
}

func truncated(value []byte) string { return string(value[:min(len(value), maxStringBytes)]) }

// parseFields calls number and value with each field that is one. Others are left out.
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
