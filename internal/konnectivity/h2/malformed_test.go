package h2

import (
	"bufio"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawClient starts a server and connects to it. It returns a Framer that can write invalid frames, the
// client's connection, and the server.
func rawClient(t testing.TB, o Options) (*http2.Framer, net.Conn, *Conn) {
	a, b := tcpPair(t)
	must(t, b.(*net.TCPConn).SetWriteBuffer(4<<10)) // unread replies queue in the server, not in the system
	_, err := io.WriteString(a, http2.ClientPreface)
	must(t, err)
	server := NewServer(b, o)
	f := newFramer(t, a)
	go func() { _ = server.Run() }()
	t.Cleanup(func() { server.Close(nil) })
	return f, a, server
}

func newFramer(t testing.TB, conn net.Conn) *http2.Framer {
	f := http2.NewFramer(conn, conn)
	f.AllowIllegalWrites = true
	must(t, f.WriteSettings())
	return f
}

// requestHeaders returns the HEADERS frame of a GET request. Its block is the index of ":method: GET" in the
// static table.
func requestHeaders(id uint32, end bool) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true, EndStream: end}
}

// waitForPing sends a ping and reads until its reply arrives. The server has then processed all earlier
// frames.
func waitForPing(t testing.TB, f *http2.Framer) {
	t.Helper()
	must(t, f.WritePing(false, [8]byte{1}))
	for {
		frame, err := f.ReadFrame()
		must(t, err)
		if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
			return
		}
	}
}

// checkEcho sends data on a new stream and waits for the echo.
func checkEcho(t testing.TB, client *Conn) {
	t.Helper()
	r := &testReceiver{}
	s := openStream(t, client, r)
	sendAll(s, []byte("something"))
	s.End(nil)
	waitFor(t, "the data is echoed", func() bool {
		n, end, err := r.received()
		must(t, err)
		return n == len("something") && end
	})
}

// TestKeepAliveZero checks that an interval of 0 disables pings.
func TestKeepAliveZero(t *testing.T) {
	client, server := pair(t, acceptEcho)
	server.KeepAlive(0)
	client.KeepAlive(0)
	openStream(t, client, &testReceiver{})
	for range 100 {
		checkEcho(t, client)
	}
	if client.Err() != nil || server.Err() != nil {
		t.Error(client.Err(), server.Err())
	}
}

// TestDataOnStreamZero checks that DATA on stream 0 ends the connection with PROTOCOL_ERROR, on both sides
// (RFC 9113, 6.1).
func TestDataOnStreamZero(t *testing.T) {
	f, _, server := rawClient(t, Options{Accept: acceptEcho})
	must(t, f.WriteData(0, false, []byte("data")))

	a, b := tcpPair(t)
	client := NewClient(a, Options{})
	go func() { _ = client.Run() }()
	must(t, newFramer(t, b).WriteData(0, false, []byte("data")))

	for _, c := range []*Conn{server, client} {
		waitFor(t, "the connection ends", func() bool { return c.Err() != nil })
		if code := http2.ConnectionError(0); !errors.As(c.Err(), &code) ||
			http2.ErrCode(code) != http2.ErrCodeProtocol {
			t.Error(c.Err())
		}
	}
}

// TestEndStreamInRequestHeader checks that the Receiver is notified when the HEADERS frame that opens a stream
// also ends it.
func TestEndStreamInRequestHeader(t *testing.T) {
	r := &testReceiver{}
	f, _, server := rawClient(t, Options{Accept: func(s *Stream, _ []hpack.HeaderField) Receiver {
		s.End(nil)
		return r
	}})
	must(t, f.WriteHeaders(requestHeaders(1, true)))
	waitForPing(t, f)
	if _, end, err := r.received(); !end || err != nil {
		t.Error(end, err)
	}
	waitFor(t, "the server has no streams", func() bool { return server.StreamCount() == 0 })
}

// TestHeaderTooLarge checks that a header above the limit ends its stream. Later frames of that stream must
// not affect the connection or its other streams.
func TestHeaderTooLarge(t *testing.T) {
	client, server := pair(t, acceptEcho)
	r := &testReceiver{}
	var header []hpack.HeaderField
	for size := 0; size <= maxHeaderBytes; size += 1000 {
		header = append(header, hpack.HeaderField{Name: "large", Value: strings.Repeat("a", 1000)})
	}
	large, err := client.Open(func(*Stream) Receiver { return r }, header, false)
	must(t, err)
	sendAll(large, []byte("data"))
	waitFor(t, "the stream ends", func() bool { _, _, err := r.received(); return err != nil })
	checkEcho(t, client)
	if server.Err() != nil {
		t.Error(server.Err())
	}
}

// TestStreamsAfterGoAway checks that the server accepts no stream after it has sent GOAWAY.
func TestStreamsAfterGoAway(t *testing.T) {
	var accepted atomic.Int64
	f, _, server := rawClient(t, Options{Accept: func(s *Stream, h []hpack.HeaderField) Receiver {
		accepted.Add(1)
		return acceptEcho(s, h)
	}})
	must(t, f.WriteHeaders(requestHeaders(1, false)))
	waitForPing(t, f)
	server.GoAway()
	must(t, f.WriteHeaders(requestHeaders(3, false)))
	must(t, f.WriteData(3, false, []byte("data")))
	waitForPing(t, f)
	if accepted.Load() != 1 || server.StreamCount() != 1 {
		t.Errorf("%d streams were accepted and %d are open, want 1 and 1", accepted.Load(), server.StreamCount())
	}
}

// floodStreams is the number of streams whose RST_STREAM frames, of 13 bytes each, have twice the size of
// maxControlBytes.
const floodStreams = 2 * maxControlBytes / 13 * 2

// TestFloodOfStreams checks that a peer that opens rejected streams without reading the replies is
// disconnected before it uses much memory.
func TestFloodOfStreams(t *testing.T) {
	for name, accept := range map[string]func(*Stream, []hpack.HeaderField) Receiver{
		"refused": func(*Stream, []hpack.HeaderField) Receiver { return nil },
		"reset": func(s *Stream, _ []hpack.HeaderField) Receiver {
			s.Reset(http2.ErrCodeCancel)
			return DiscardReceiver{}
		},
		"answered": func(s *Stream, _ []hpack.HeaderField) Receiver {
			s.Header([]hpack.HeaderField{{Name: "reason", Value: strings.Repeat("~", 4<<10)}}, true)
			s.Close(nil)
			return DiscardReceiver{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := heapInUse()
			_, conn, server := rawClient(t, Options{Accept: accept})
			out := bufio.NewWriterSize(conn, 64<<10)
			f := http2.NewFramer(out, nil)
			for id := uint32(1); f.WriteHeaders(requestHeaders(id, false)) == nil && id < floodStreams; id += 2 {
			}
			waitFor(t, "the connection ends", func() bool { return server.Err() != nil })
			if !errors.Is(server.Err(), errFlood) {
				t.Error(server.Err())
			}
			if grown := heapInUse() - before; grown > 64<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
		})
	}
}

// heapInUse returns the size of the heap in bytes, including garbage.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
