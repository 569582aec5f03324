package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

const (
	prefixBytes = 5 // bytes before a message: is it compressed, and its length
	// maxMessage is how large a message may be, as in grpc-go.
	maxMessage = 4 << 20
	// maxUncredited is how much of a message that is not complete is kept on the window of its stream: a larger one would not come through it.
	maxUncredited = 32 << 10
)

var errCompressed = errors.New("a compressed message, which was not agreed on")

// prependLength puts before a message how long it is (gRPC over HTTP/2, Length-Prefixed-Message).
func prependLength(b *h2.Buffer, n int) {
	var p [prefixBytes]byte
	binary.BigEndian.PutUint32(p[1:], uint32(n))
	b.Prepend(p[:])
}

// PacketReader puts the packets together that a stream brings in pieces. The zero value is ready.
type PacketReader struct {
	partial []byte     // of a message, with its prefix,
	buffer  *h2.Buffer // whose memory it is, unless it has grown out of it; nil: no message has begun
	window  h2.Window  // for
	credit  int        // bytes of it
}

// Read takes a piece of the stream, and calls each with the packets that end in it, and their data, which each owns; nil if there is none.
// Data that is larger than a Buffer comes in several calls. The error, of what is read or of each, is the end.
func (m *PacketReader) Read(b *h2.Buffer, each func(Packet, *h2.Buffer) error) error {
	for b.Len() > 0 {
		n, err := messageLength(b.Bytes())
		if err == nil && m.buffer == nil && n >= 0 && b.Len() == prefixBytes+n {
			return deliver(b, each)
		}
		had := b.Len()
		done, err := m.appendPartial(b)
		m.moveCredit(b, had-b.Len())
		if err != nil || !done {
			b.Release()
			if now := m.credit - maxUncredited; now > 0 {
				m.credit = maxUncredited
				m.window.Credit(now)
			}
			return err
		}
		if err = m.deliverPartial(each); err != nil {
			b.Release()
			return err
		}
	}
	b.Release()
	return nil
}

// moveCredit moves what is owed for n bytes of a Buffer, which have been added, to the message: there is no credit for it until its own data is
// through, whatever is behind it.
func (m *PacketReader) moveCredit(b *h2.Buffer, n int) {
	to, due := b.TakeWindow()
	n = min(n, due)
	b.SetWindow(to, due-n)
	m.window, m.credit = to, m.credit+n
}

// messageLength is that of the message that begins here; -1: it is not known yet.
func messageLength(p []byte) (int, error) {
	switch {
	case len(p) > 0 && p[0] != 0:
		return 0, errCompressed
	case len(p) < prefixBytes:
		return -1, nil
	}
	n := binary.BigEndian.Uint32(p[1:prefixBytes])
	if n > maxMessage {
		return 0, fmt.Errorf("a message of %d bytes; %d are the limit", n, maxMessage)
	}
	return int(n), nil
}

// appendPartial adds what belongs to the message that has begun, and says whether it is complete.
func (m *PacketReader) appendPartial(b *h2.Buffer) (done bool, err error) {
	if m.buffer == nil {
		n, _ := messageLength(b.Bytes())
		m.buffer = h2.NewBuffer(min(prefixBytes+max(n, 0), h2.MaxPiece))
		m.partial = m.buffer.Bytes()[:0]
	}
	for {
		n, err := messageLength(m.partial)
		missing := prefixBytes - len(m.partial)
		if n >= 0 {
			missing += n
		}
		if err != nil || missing == 0 && n >= 0 {
			return err == nil, err
		}
		if missing = min(missing, b.Len()); missing == 0 {
			return false, nil
		}
		m.partial = append(m.partial, b.Bytes()[:missing]...)
		b.Skip(missing)
	}
}

// deliverPartial reads the message that was put together. The last piece of its data owes what was owed for it.
func (m *PacketReader) deliverPartial(each func(Packet, *h2.Buffer) error) error {
	message, piece, owed, due := m.partial, m.buffer, m.window, m.credit
	m.partial, m.buffer, m.credit = nil, nil, 0
	if len(message) <= cap(piece.Bytes()) {
		piece.Truncate(len(message))
		piece.SetWindow(owed, due)
		return deliver(piece, each)
	}
	piece.Release()
	p, data, err := parse(message[prefixBytes:])
	for len(data) > h2.MaxPiece && err == nil {
		err = each(p, h2.BufferOf(data[:h2.MaxPiece]))
		data = data[h2.MaxPiece:]
	}
	if err != nil {
		return err
	}
	last := h2.BufferOf(data)
	last.SetWindow(owed, due)
	if len(data) == 0 {
		last.Release()
		last = nil
	}
	return each(p, last)
}

// deliver reads a message that is all there is in a Buffer, and leaves its data in there, unless they are the lesser part.
func deliver(b *h2.Buffer, each func(Packet, *h2.Buffer) error) error {
	p, data, err := parse(b.Bytes()[prefixBytes:])
	if err != nil || len(data) == 0 {
		b.Release()
		if err != nil {
			return err
		}
		return each(p, nil)
	}
	if len(data) < b.Len()/2 { // as long as it waits it would keep all of the message
		little := h2.BufferOf(data)
		little.SetWindow(b.TakeWindow())
		b.Release()
		return each(p, little)
	}
	b.Skip(cap(b.Bytes()) - cap(data))
	b.Truncate(len(data))
	return each(p, b)
}
