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

// raw returns the frames that a client writes as it likes, and reads, and the server that it writes them to.
func raw(t testing.TB, o Options) (*http2.Framer, net.Conn, *Conn) {
	a, b := wires(t)
	must(t, b.(*net.TCPConn).SetWriteBuffer(4<<10)) // what is not read waits in the server, and not in the system
	_, err := io.WriteString(a, http2.ClientPreface)
	must(t, err)
	server := NewServer(b, o)
	f := framer(t, a)
	go func() { _ = server.Run() }()
	t.Cleanup(func() { server.Close(nil) })
	return f, a, server
}

func framer(t testing.TB, wire net.Conn) *http2.Framer {
	f := http2.NewFramer(wire, wire)
	f.AllowIllegalWrites = true
	must(t, f.WriteSettings())
	return f
}

// opening is the header of a request (GET, in the static table).
func opening(id uint32, end bool) http2.HeadersFrameParam {
	return http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true, EndStream: end}
}

// answered reads until a ping that is sent now comes back: by then all that was sent before has been read.
func answered(t testing.TB, f *http2.Framer) {
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

// echoed sends something on a new stream of a client, and waits for it to come back.
func echoed(t testing.TB, client *Conn) {
	t.Helper()
	r := &stream{}
	s := open(t, client, r)
	send(s, []byte("something"))
	s.End(nil)
	until(t, "it comes back", func() bool {
		n, end, err := r.got()
		must(t, err)
		return n == len("something") && end
	})
}

// A keepalive of no time is none.
func TestKeepAliveOfZero(t *testing.T) {
	client, server := pair(t, echoes)
	server.KeepAlive(0)
	client.KeepAlive(0)
	open(t, client, &stream{})
	for range 100 {
		echoed(t, client)
	}
	if client.Err() != nil || server.Err() != nil {
		t.Error(client.Err(), server.Err())
	}
}

// RFC 9113, 6.1: DATA on stream 0 is the end of the connection, at either end of it.
func TestDataOnStreamZero(t *testing.T) {
	f, _, server := raw(t, Options{Accept: echoes})
	must(t, f.WriteData(0, false, []byte("data")))

	a, b := wires(t)
	client := NewClient(a, Options{})
	go func() { _ = client.Run() }()
	must(t, framer(t, b).WriteData(0, false, []byte("data")))

	for _, c := range []*Conn{server, client} {
		until(t, "it ends", func() bool { return c.Err() != nil })
		if code := http2.ConnectionError(0); !errors.As(c.Err(), &code) || http2.ErrCode(code) != http2.ErrCodeProtocol {
			t.Error(c.Err())
		}
	}
}

// A stream may end with the header that opens it: its Receiver is told.
func TestEndInTheOpeningHeader(t *testing.T) {
	r := &stream{}
	f, _, server := raw(t, Options{Accept: func(s *Stream, _ []hpack.HeaderField) Receiver {
		s.End(nil)
		return r
	}})
	must(t, f.WriteHeaders(opening(1, true)))
	answered(t, f)
	if _, end, err := r.got(); !end || err != nil {
		t.Error(end, err)
	}
	until(t, "nothing is left", func() bool { return server.StreamCount() == 0 })
}

// A header that is too large ends its stream, and what still arrives for that does no harm to the connection and its other streams.
func TestHeaderTooLarge(t *testing.T) {
	client, server := pair(t, echoes)
	r := &stream{}
	var header []hpack.HeaderField
	for size := 0; size <= maxHeaderBytes; size += 1000 {
		header = append(header, hpack.HeaderField{Name: "large", Value: strings.Repeat("a", 1000)})
	}
	large, err := client.Open(func(*Stream) Receiver { return r }, header, false)
	must(t, err)
	send(large, []byte("data"))
	until(t, "the stream ends", func() bool { _, _, err := r.got(); return err != nil })
	echoed(t, client)
	if server.Err() != nil {
		t.Error(server.Err())
	}
}

// After GoAway no stream is taken, whatever the other side does.
func TestStreamsAfterGoAway(t *testing.T) {
	var taken atomic.Int64
	f, _, server := raw(t, Options{Accept: func(s *Stream, h []hpack.HeaderField) Receiver {
		taken.Add(1)
		return echoes(s, h)
	}})
	must(t, f.WriteHeaders(opening(1, false)))
	answered(t, f)
	server.GoAway()
	must(t, f.WriteHeaders(opening(3, false)))
	must(t, f.WriteData(3, false, []byte("data")))
	answered(t, f)
	if taken.Load() != 1 || server.StreamCount() != 1 {
		t.Errorf("%d streams were taken, %d are open", taken.Load(), server.StreamCount())
	}
}

// mostStreams is more than it takes of them, as 13 bytes each, to be more than may wait.
const mostStreams = 2 * maxControlBytes / 13 * 2

// Who opens streams that are refused, or broken off, and reads nothing of that is sent away before it costs much memory.
func TestFloodOfStreams(t *testing.T) {
	for name, accept := range map[string]func(*Stream, []hpack.HeaderField) Receiver{
		"refused": func(*Stream, []hpack.HeaderField) Receiver { return nil },
		"broken off": func(s *Stream, _ []hpack.HeaderField) Receiver {
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
			before := heap()
			_, wire, server := raw(t, Options{Accept: accept})
			out := bufio.NewWriterSize(wire, 64<<10)
			f := http2.NewFramer(out, nil)
			for id := uint32(1); f.WriteHeaders(opening(id, false)) == nil && id < mostStreams; id += 2 {
			}
			until(t, "it ends", func() bool { return server.Err() != nil })
			if !errors.Is(server.Err(), errFlood) {
				t.Error(server.Err())
			}
			if grown := heap() - before; grown > 64<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
		})
	}
}

// heap is how many bytes are taken, garbage included.
func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
