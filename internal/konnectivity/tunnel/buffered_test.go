package tunnel

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const streamWindow, maxMessage = 1 << 20, 4 << 20 // maximum sizes in bytes

// dataMessage returns a gRPC message with a DATA packet of the given size for a connection.
func dataMessage(t *testing.T, id int64, size int) []byte {
	payload := &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: make([]byte, size)}}
	packet, err := proto.Marshal(&client.Packet{Type: client.PacketType_DATA, Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(packet))), packet...)
}

// TestBufferedDataIsLimited checks the limit on the data that is buffered for one connection of a shared
// stream. It covers messages of several sizes, and frames that contain more than one message (KON-050).
func TestBufferedDataIsLimited(t *testing.T) {
	full := dataMessage(t, 1, 60<<10)
	for name, c := range map[string]struct {
		sent   []byte // sent repeatedly
		limit  int
		closed bool
	}{
		"small packet at the end": {slices.Concat(full, wire.Packet{Type: wire.Drain}.Message().Bytes()),
			holdBackBytes + streamWindow, false},
		"many packets":   {slices.Repeat(full, 50), holdBackBytes + 2*streamWindow, false},
		"large messages": {dataMessage(t, 1, maxMessage-100), maxBufferedBytes + maxMessage, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if buffered, closed := maxBuffered(t, c.sent); buffered > c.limit || closed != c.closed {
					t.Errorf("buffered %d KiB, limit %d KiB; closed %v, want %v", buffered>>10, c.limit>>10, closed,
						c.closed)
				}
			})
		})
	}
}

// maxBuffered sends the same bytes repeatedly to a connection whose reader is stalled, as far as the window of
// the stream permits. It returns the maximum number of buffered bytes, and whether the connection was closed
// and counted.
func maxBuffered(t *testing.T, message []byte) (buffered int, closed bool) {
	r, stalled := newSide(t, false, true, false), 0
	r.OnStall = func() { stalled++ }
	reader := &slowEndpoint{arrived: make(chan *h2.Buffer, 1<<16), closed: make(chan struct{})}
	c := &packetConn{packets: &r.Packets, id: 1, peer: reader}
	if err := r.addConn(c); err != nil {
		t.Fatal(err)
	}
	var rest []byte
	for sent := 0; sent < 16*holdBackBytes && r.ConnCount() > 0; {
		if len(rest) == 0 {
			rest = message
		}
		b := h2.BufferOf(rest[:min(len(rest), h2.MaxPiece)])
		n := b.Len()
		if r.unreleased.Add(int64(n)) > streamWindow { // the window is used up
			r.unreleased.Add(int64(-n))
			break
		}
		b.SetWindow(r, n)
		r.Data(nil, b, false)
		rest, sent, buffered = rest[n:], sent+n, max(buffered, c.buffered)
	}
	closed = r.ConnCount() == 0 && stalled == 1
	for len(reader.arrived) > 0 {
		(<-reader.arrived).Release()
	}
	r.finish(t)
	return buffered, closed
}

// TestStallAfterNormalEnd checks a reader that stalls after the normal end of its connection. The connection is
// closed with an error and counted. It must not block other connections for longer than a stalled connection that
// is still open (KON-050, KON-053).
func TestStallAfterNormalEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stalledBytes, otherBytes = holdBackBytes + 700<<10, 1 << 20 // more than half a window is withheld
		stalled := 0
		requester := connectedPackets(t, true, func(address string, c net.Conn) {
			n := otherBytes
			if address == "stalls:1" {
				n = stalledBytes
			}
			_, _ = c.Write(make([]byte, n))
			_ = c.Close()
		})
		requester.OnStall = func() { stalled++ }
		frontend := &Packets{Dialer: requester.Dial}
		api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			frontend.Bind(s)
			return frontend
		})
		conn := openPackets(t, api, &Packets{}).connect(t, "stalls:1")
		defer conn.Close()
		synctest.Wait() // wait until all data is received or blocked
		if requester.ConnCount() != 0 {
			t.Fatal("the connection has not ended")
		}
		began := time.Now()
		n, err := io.Copy(io.Discard, requester.connect(t, "reads:1"))
		if duration := time.Since(began); n != otherBytes || err != nil || duration > 2*stallTimeout {
			t.Errorf("other connection: received %d of %d bytes in %v, error %v", n, otherBytes, duration, err)
		}
		if n, err = io.Copy(io.Discard, conn); n >= stalledBytes || err == nil || stalled != 1 {
			t.Errorf("stalled connection: received %d of %d bytes, error %v; %d stalls counted, want 1", n,
				stalledBytes, err, stalled)
		}
	})
}
