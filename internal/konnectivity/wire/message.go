package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

const (
	prefixBytes = 5 // length of the prefix of a message: the compressed flag and the message length
	// maxMessage is the maximum size of a message in bytes, the default of grpc-go.
	maxMessage = 4 << 20
	// maxUncredited is the maximum number of bytes of an incomplete message that occupy the window of their
	// stream. Without this limit, a message larger than the window could never be completed.
	maxUncredited = 32 << 10
)

var errCompressed = errors.New("malformed message: compressed, but no compression was negotiated")

// prependLength prepends the prefix of a message of n bytes to b (gRPC over HTTP/2, Length-Prefixed-Message).
func prependLength(b *h2.Buffer, n int) {
	var p [prefixBytes]byte
	binary.BigEndian.PutUint32(p[1:], uint32(n))
	b.Prepend(p[:])
}

// PacketReader decodes packets from a stream that arrives in pieces. It keeps the start of an incomplete
// message until the rest arrives. The zero value is ready to use.
type PacketReader struct {
	partial []byte     // the incomplete message, including its prefix
	buffer  *h2.Buffer // the memory of partial, until partial outgrows it; nil means that no message has begun
	window  h2.Window  // the window to credit when the message is consumed
	credit  int        // the number of bytes to credit to window
}

// Read consumes a piece of the stream. It calls handle for every packet that this piece completes. handle owns the
// packet's data, which is nil if the packet has none. Data larger than a Buffer is passed in several calls. If a
// packet is invalid or handle fails, Read returns an error, and the PacketReader must not be used again.
func (r *PacketReader) Read(b *h2.Buffer, handle func(Packet, *h2.Buffer) error) error {
	for b.Len() > 0 {
		n, err := messageLength(b.Bytes())
		if err == nil && r.buffer == nil && n >= 0 && b.Len() == prefixBytes+n {
			return deliver(b, handle)
		}
		before := b.Len()
		done, err := r.appendPartial(b)
		r.moveCredit(b, before-b.Len())
		if err != nil || !done {
			b.Release()
			if excess := r.credit - maxUncredited; excess > 0 {
				r.credit = maxUncredited
				r.window.Credit(excess)
			}
			return err
		}
		if err = r.deliverPartial(handle); err != nil {
			b.Release()
			return err
		}
	}
	b.Release()
	return nil
}

// moveCredit moves the credit for n bytes, which were copied from b, to the incomplete message. The peer gets
// this credit only after the message itself is consumed, even if other data in b is consumed earlier.
func (r *PacketReader) moveCredit(b *h2.Buffer, n int) {
	window, credit := b.TakeWindow()
	n = min(n, credit)
	b.SetWindow(window, credit-n)
	r.window, r.credit = window, r.credit+n
}

// messageLength returns the length of the message at the start of p, without its prefix. It returns -1 if the
// prefix is incomplete.
func messageLength(p []byte) (int, error) {
	switch {
	case len(p) > 0 && p[0] != 0:
		return 0, errCompressed
	case len(p) < prefixBytes:
		return -1, nil
	}
	n := binary.BigEndian.Uint32(p[1:prefixBytes])
	if n > maxMessage {
		return 0, fmt.Errorf("message of %d bytes exceeds the limit of %d bytes", n, maxMessage)
	}
	return int(n), nil
}

// appendPartial moves bytes from b to the incomplete message and reports whether the message is complete. It
// starts a new message if there is none.
func (r *PacketReader) appendPartial(b *h2.Buffer) (done bool, err error) {
	if r.buffer == nil {
		n, _ := messageLength(b.Bytes())
		r.buffer = h2.NewBuffer(min(prefixBytes+max(n, 0), h2.MaxPiece))
		r.partial = r.buffer.Bytes()[:0]
	}
	for {
		n, err := messageLength(r.partial)
		missing := prefixBytes - len(r.partial)
		if n >= 0 {
			missing += n
		}
		if err != nil || missing == 0 && n >= 0 {
			return err == nil, err
		}
		if missing = min(missing, b.Len()); missing == 0 {
			return false, nil
		}
		r.partial = append(r.partial, b.Bytes()[:missing]...)
		b.Skip(missing)
	}
}

// deliverPartial passes the completed message to handle. The last Buffer of its data carries the credit for the
// whole message.
func (r *PacketReader) deliverPartial(handle func(Packet, *h2.Buffer) error) error {
	message, buffer, window, credit := r.partial, r.buffer, r.window, r.credit
	r.partial, r.buffer, r.credit = nil, nil, 0
	if len(message) <= cap(buffer.Bytes()) {
		buffer.Truncate(len(message))
		buffer.SetWindow(window, credit)
		return deliver(buffer, handle)
	}
	buffer.Release()
	p, data, err := parse(message[prefixBytes:])
	for len(data) > h2.MaxPiece && err == nil {
		err = handle(p, h2.BufferOf(data[:h2.MaxPiece]))
		data = data[h2.MaxPiece:]
	}
	if err != nil {
		return err
	}
	last := h2.BufferOf(data)
	last.SetWindow(window, credit)
	if len(data) == 0 {
		last.Release()
		last = nil
	}
	return handle(p, last)
}

// deliver decodes the single message in b and passes it to handle. If the data is less than half of the message,
// deliver copies it. Otherwise it passes the data in b itself.
func deliver(b *h2.Buffer, handle func(Packet, *h2.Buffer) error) error {
	p, data, err := parse(b.Bytes()[prefixBytes:])
	if err != nil || len(data) == 0 {
		b.Release()
		if err != nil {
			return err
		}
		return handle(p, nil)
	}
	if len(data) < b.Len()/2 { // keeping b would retain the memory of the whole message
		small := h2.BufferOf(data)
		small.SetWindow(b.TakeWindow())
		b.Release()
		return handle(p, small)
	}
	b.Skip(cap(b.Bytes()) - cap(data))
	b.Truncate(len(data))
	return handle(p, b)
}
