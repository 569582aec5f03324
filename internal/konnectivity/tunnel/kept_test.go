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

// What a stream has at most: a window, and a message.
const window, mostMessage = 1 << 20, 4 << 20

// data is a message of gRPC with so much data for a connection.
func data(t *testing.T, id int64, size int) []byte {
	payload := &client.Packet_Data{Data: &client.Data{ConnectID: id, Data: make([]byte, size)}}
	packet, err := proto.Marshal(&client.Packet{Type: client.PacketType_DATA, Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(packet))), packet...)
}

// KON-050: what is kept of a connection among packets is bounded also where the other side sends more than a message in each frame: something
// small behind the data, or as many as fit in; and where messages are larger than any window.
func TestKeptIsBounded(t *testing.T) {
	full := data(t, 1, 60<<10)
	for name, c := range map[string]struct {
		sent   []byte // again and again
		most   int
		closed bool
	}{
		"something small behind": {slices.Concat(full, wire.Packet{Type: wire.Drain}.Message().Bytes()), holdBackBytes + window, false},
		"as many as fit in":      {slices.Repeat(full, 50), holdBackBytes + 2*window, false},
		"large messages":         {data(t, 1, mostMessage-100), maxBufferedBytes + mostMessage, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if kept, closed := keptOf(t, c.sent); kept > c.most || closed != c.closed {
					t.Errorf("%d KiB are kept, %d are the limit; closed: %v", kept>>10, c.most>>10, closed)
				}
			})
		})
	}
}

// keptOf is how much is kept at most of a connection whose other side sends the same again and again, as a window lets it, and whose reader
// reads nothing; and whether it was closed and counted.
func keptOf(t *testing.T, again []byte) (kept int, closed bool) {
	r, stalled := newRole(t, false, true, false), 0
	r.OnStall = func() { stalled++ }
	reader := &slowEnd{arrived: make(chan *h2.Buffer, 1<<16), over: make(chan struct{})}
	c := &packetConn{packets: &r.Packets, id: 1, peer: reader}
	if err := r.addConn(c); err != nil {
		t.Fatal(err)
	}
	var rest []byte
	for sent := 0; sent < 16*holdBackBytes && r.ConnCount() > 0; {
		if len(rest) == 0 {
			rest = again
		}
		b := h2.BufferOf(rest[:min(len(rest), h2.MaxPiece)])
		n := b.Len()
		if r.due.Add(int64(n)) > window { // it is held back
			r.due.Add(int64(-n))
			break
		}
		b.SetWindow(r, n)
		r.Data(nil, b, false)
		rest, sent, kept = rest[n:], sent+n, max(kept, c.buffered)
	}
	closed = r.ConnCount() == 0 && stalled == 1
	for len(reader.arrived) > 0 {
		(<-reader.arrived).Release()
	}
	r.rest(t)
	return kept, closed
}

// KON-050 KON-053: a reader that stops before it has all of a connection that has ended in order holds up the others no longer than one whose
// connection goes on: it is closed, told why, and counted.
func TestStallsAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all, other = holdBackBytes + 700<<10, 1 << 20 // of which more than half of a window is withheld
		stalled := 0
		asks := joined(t, true, func(address string, c net.Conn) {
			n := other
			if address == "stalls:1" {
				n = all
			}
			_, _ = c.Write(make([]byte, n))
			_ = c.Close()
		})
		asks.OnStall = func() { stalled++ }
		front := &Packets{Dialer: asks.Dial}
		api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
			front.Bind(s)
			return front
		})
		conn := stream(t, api, &Packets{}).connect(t, "stalls:1")
		defer conn.Close()
		synctest.Wait() // until nothing moves without a reader
		if asks.ConnCount() != 0 {
			t.Fatal("the connection has not ended")
		}
		began := time.Now()
		n, err := io.Copy(io.Discard, asks.connect(t, "reads:1"))
		if took := time.Since(began); n != other || err != nil || took > 2*stallTimeout {
			t.Errorf("another has %d bytes of %d after %v, and then %v", n, other, took, err)
		}
		if n, err = io.Copy(io.Discard, conn); n >= all || err == nil || stalled != 1 {
			t.Errorf("after %d bytes of %d it ends with %v; %d were counted", n, all, err, stalled)
		}
	})
}
