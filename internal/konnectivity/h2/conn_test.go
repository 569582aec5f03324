package h2

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

const testTimeout = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor blocks until a condition holds, and fails the test after testTimeout.
func waitFor(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	limit := time.After(testTimeout)
	for !holds() {
		select {
		case <-limit:
			t.Fatalf("condition not met within %v: %s", testTimeout, condition)
		case <-time.After(time.Millisecond):
		}
	}
}

// tcpPair returns both ends of a TCP connection.
func tcpPair(t testing.TB) (client, server net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	client, err = net.Dial("tcp", l.Addr().String())
	must(t, err)
	server = <-accepted
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

// testReceiver is a Receiver that records what arrives, or echoes it.
type testReceiver struct {
	echo  bool
	stall bool // holds Buffers without releasing them

	mu     sync.Mutex
	header []hpack.HeaderField
	data   []byte
	held   []*Buffer
	end    bool
	err    error
}

func (r *testReceiver) Header(s *Stream, fields []hpack.HeaderField, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = append(r.header, fields...)
	if r.end = r.end || end; end && r.echo {
		s.End(nil)
	}
}

func (r *testReceiver) Data(s *Stream, b *Buffer, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case b == nil:
	case r.echo:
		s.Send(b)
	case r.stall:
		r.held = append(r.held, b)
		r.data = append(r.data, b.Bytes()...)
	default:
		r.data = append(r.data, b.Bytes()...)
		b.Release()
	}
	r.end = r.end || end
	if end && r.echo {
		s.End(nil)
	}
}

func (r *testReceiver) Ended(_ *Stream, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *testReceiver) withLock(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *testReceiver) received() (n int, end bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.data), r.end, r.err
}

func openStream(t testing.TB, c *Conn, r Receiver) *Stream {
	s, err := c.Open(func(*Stream) Receiver { return r }, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"},
		{Name: ":authority", Value: "a:1"}}, false)
	must(t, err)
	return s
}

// pair returns both ends of an HTTP/2 connection. The server passes each new stream to accept.
func pair(t testing.TB, accept func(*Stream, []hpack.HeaderField) Receiver) (client, server *Conn) {
	a, b := tcpPair(t)
	client, server = NewClient(a, Options{}), NewServer(b, Options{Accept: accept})
	var both sync.WaitGroup
	both.Go(func() { _ = client.Run() })
	both.Go(func() { _ = server.Run() })
	t.Cleanup(func() {
		client.Close(nil)
		server.Close(nil)
		both.Wait()
	})
	return client, server
}

func acceptEcho(s *Stream, _ []hpack.HeaderField) Receiver {
	s.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	return &testReceiver{echo: true}
}

func randomBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.Read(p)
	return p
}

// sendAll sends p in Buffers of at most MaxPiece.
func sendAll(s *Stream, p []byte) {
	for len(p) > 0 {
		n := min(len(p), MaxPiece)
		s.Send(BufferOf(p[:n]))
		p = p[n:]
	}
}

// TestServerWithGoClient checks that the server echoes requests of the client of golang.org/x/net/http2. The
// requests are larger than every window, and both sides send trailers (KON-050).
func TestServerWithGoClient(t *testing.T) {
	a, b := tcpPair(t)
	server := NewServer(b, Options{Accept: func(s *Stream, header []hpack.HeaderField) Receiver {
		return acceptEcho(s, header)
	}})
	go func() { _ = server.Run() }()
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: nil, MaxReadFrameSize: 1 << 20}
	c, err := tr.NewClientConn(a)
	must(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			data := randomBytes(3 << 20)
			resp, err := c.RoundTrip(echoRequest(data))
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("received %d of %d bytes, error %v", len(got), len(data), err)
			}
		})
	}
	all.Wait()
	waitFor(t, "the server has no streams", func() bool { return server.StreamCount() == 0 })
}

func echoRequest(body []byte) *http.Request {
	req, _ := http.NewRequest(http.MethodPost, "http://a/", io.NopCloser(bytes.NewReader(body)))
	req.Trailer = http.Header{"X-End": {"1"}}
	req.Header.Set("X-Large", strings.Repeat("x", 8<<10))
	return req
}

// TestClientWithGoServer checks that the client exchanges data with the server of golang.org/x/net/http2
// (KON-050).
func TestClientWithGoServer(t *testing.T) {
	a, b := tcpPair(t)
	go (&http2.Server{MaxReadFrameSize: 16 << 10}).ServeConn(b,
		&http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-End")
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(http.StatusOK)
			_, _ = io.Copy(w, r.Body)
			w.Header().Set("X-End", r.URL.Path)
		})})
	c := NewClient(a, Options{})
	go func() { _ = c.Run() }()
	for range 4 {
		r := &testReceiver{}
		s, err := c.Open(func(*Stream) Receiver { return r },
			[]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
				{Name: ":path", Value: "/path"}, {Name: ":authority", Value: "a"}}, false)
		must(t, err)
		data := randomBytes(3 << 20)
		sendAll(s, data)
		s.End(nil)
		waitFor(t, "the response ends", func() bool { _, end, err := r.received(); return end || err != nil })
		r.withLock(func() {
			if r.err != nil || !bytes.Equal(r.data, data) || !strings.Contains(headers(r.header), "x-end: /path") {
				t.Errorf("received %d of %d bytes, error %v, header %v", len(r.data), len(data), r.err, r.header)
			}
		})
	}
	waitFor(t, "the client has no streams", func() bool { return c.StreamCount() == 0 })
	c.Close(nil)
}

func headers(fields []hpack.HeaderField) string {
	var all strings.Builder
	for _, f := range fields {
		all.WriteString(f.Name + ": " + f.Value + "\n")
	}
	return all.String()
}

// TestStalledReader checks that a stalled reader blocks only its own stream, and that at most one window of
// its data is buffered.
func TestStalledReader(t *testing.T) {
	stalled, other := &testReceiver{stall: true}, &testReceiver{}
	receivers := make(chan Receiver, 2)
	receivers <- stalled
	receivers <- other
	client, _ := pair(t, func(*Stream, []hpack.HeaderField) Receiver { return <-receivers })
	first := openStream(t, client, &testReceiver{})
	sendAll(first, randomBytes(4<<20))
	waitFor(t, "one window of data arrives", func() bool {
		n, _, _ := stalled.received()
		return n == initialStreamWindow
	})
	second := openStream(t, client, &testReceiver{})
	sendAll(second, randomBytes(4<<20))
	waitFor(t, "all data of the other stream arrives", func() bool { n, _, _ := other.received(); return n == 4<<20 })
	if n, _, _ := stalled.received(); n != initialStreamWindow {
		t.Errorf("the stalled reader has received %d bytes, want %d", n, initialStreamWindow)
	}
	client.mu.Lock()
	queued := first.queued
	client.mu.Unlock()
	if queued != 4<<20-initialStreamWindow {
		t.Errorf("%d bytes are queued, want %d", queued, 4<<20-initialStreamWindow)
	}
	first.Reset(http2.ErrCodeCancel)
	waitFor(t, "the reset arrives", func() bool { _, _, err := stalled.received(); return err != nil })
	for _, b := range stalled.held {
		b.Release() // the stream has ended
	}
}

// TestShortQueueFirst checks that streams with little queued data are sent first, without starving the streams
// with much queued data.
func TestShortQueueFirst(t *testing.T) {
	a, _ := net.Pipe()
	c := NewClient(a, Options{})
	c.sendWindow = 1 << 30
	var many []*Stream
	for range 100 {
		s := openStream(t, c, &testReceiver{})
		sendAll(s, make([]byte, initialStreamWindow))
		many = append(many, s)
	}
	small := openStream(t, c, &testReceiver{})
	small.Send(BufferOf(make([]byte, 100)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = c.control[:0]
	_, done := c.fillBatch(nil, nil)
	if small.queued != 0 || small.firstBuffer != nil {
		t.Error("the short stream is not in the first batch")
	}
	if many[0].queued == initialStreamWindow {
		t.Error("the first batch has no data of the long streams")
	}
	for c.longQueue.first != nil || c.shortQueue.first != nil {
		_, done = c.fillBatch(nil, done)
	}
	for i, s := range many {
		if want := initialStreamWindow - defaultWindow; s.queued != want {
			t.Errorf("stream %d has %d bytes queued, want %d", i, s.queued, want)
		}
	}
}

// TestWholeBuffers checks that a Buffer is split only if the window is too small. The rest of a split Buffer
// shares a frame with the next Buffer.
func TestWholeBuffers(t *testing.T) {
	a, _ := net.Pipe()
	c := NewClient(a, Options{})
	c.sendWindow, c.peerSettings.maxFrame = 1<<30, MaxPiece
	s := openStream(t, c, &testReceiver{})
	for range 4 {
		s.Send(NewBuffer(40 << 10))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control, s.sendWindow = c.control[:0], 100<<10
	var lengths []int
	for range 2 {
		for c.longQueue.first != nil || c.shortQueue.first != nil {
			out, _ := c.fillBatch(nil, nil)
			for len(out) > 0 {
				n := int(out[0])<<16 | int(out[1])<<8 | int(out[2])
				lengths = append(lengths, n>>10)
				out = out[frameHeader+n:]
			}
		}
		s.sendWindow = 1 << 20
		c.schedule(s)
	}
	if want := []int{40, 40, 20, 20 + 40}; !slices.Equal(lengths, want) {
		t.Errorf("frames of %v KiB, want %v", lengths, want)
	}
}

// TestWindowsGrow checks that the receive window of a stream grows when its data is consumed quickly, also on
// links with a long round trip. It must not grow when the reader stalls.
func TestWindowsGrow(t *testing.T) {
	for name, c := range map[string]struct {
		roundTrip, duration time.Duration
		held                int // bytes received but not released
		want                int32
	}{
		"near":   {0, 10 * time.Millisecond, 0, 2 * initialStreamWindow},
		"slow":   {0, 100 * time.Millisecond, 0, initialStreamWindow},
		"far":    {200 * time.Millisecond, 100 * time.Millisecond, 0, 2 * initialStreamWindow},
		"unread": {0, 10 * time.Millisecond, initialStreamWindow, initialStreamWindow},
	} {
		a, _ := net.Pipe()
		conn := NewClient(a, Options{})
		conn.recvWindow.roundTrip = c.roundTrip
		s := openStream(t, conn, &testReceiver{})
		s.uncredited = int32(c.held + initialStreamWindow/2)
		s.lastUpdate = now() - int64(c.duration)
		if s.Credit(initialStreamWindow / 2); s.recvWindow != c.want {
			t.Errorf("%s: the window is %d, want %d", name, s.recvWindow, c.want)
		}
	}
}

// TestEndAndClose checks that one direction can end before the other, and that Close ends both after the
// queued data is sent.
func TestEndAndClose(t *testing.T) {
	accepted := make(chan *Stream, 1)
	serverSide := &testReceiver{}
	client, server := pair(t, func(s *Stream, _ []hpack.HeaderField) Receiver {
		accepted <- s
		return serverSide
	})
	clientSide := &testReceiver{}
	s := openStream(t, client, clientSide)
	data := randomBytes(200 << 10)
	sendAll(s, data)
	s.End(nil)
	waitFor(t, "the server sees the end", func() bool { _, end, _ := serverSide.received(); return end })
	back := <-accepted
	sendAll(back, data)
	back.Close(nil)
	waitFor(t, "the client sees the end", func() bool { _, end, _ := clientSide.received(); return end })
	serverSide.withLock(func() {
		clientSide.withLock(func() {
			if !bytes.Equal(serverSide.data, data) || !bytes.Equal(clientSide.data, data) {
				t.Errorf("server received %d bytes and client %d, want %d", len(serverSide.data), len(clientSide.data),
					len(data))
			}
		})
	})
	waitFor(t, "both ends have no streams", func() bool {
		return client.StreamCount() == 0 && server.StreamCount() == 0
	})

	serverSide, clientSide = &testReceiver{}, &testReceiver{}
	s = openStream(t, client, clientSide)
	<-accepted
	sendAll(s, data)
	s.Close(nil)
	waitFor(t, "all data, the end and the reset arrive", func() bool {
		n, end, err := serverSide.received()
		return n == len(data) && end && err != nil
	})
	var reset http2.StreamError
	if _, _, err := serverSide.received(); !errors.As(err, &reset) || reset.Code != http2.ErrCodeNo {
		t.Errorf("the stream ends with %v, want a reset with NO_ERROR", err)
	}
	waitFor(t, "both ends have no streams", func() bool {
		return client.StreamCount() == 0 && server.StreamCount() == 0
	})
}

// TestLostConnection checks that the loss of a connection ends each of its streams with an error, and leaves
// no goroutine.
func TestLostConnection(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, cut := range []func(client, server net.Conn){
		func(client, _ net.Conn) { _ = client.Close() },
		func(_, server net.Conn) { _ = server.Close() },
		func(client, _ net.Conn) { _ = client.(*net.TCPConn).CloseWrite() },
	} {
		a, b := tcpPair(t)
		client, server := NewClient(a, Options{}), NewServer(b, Options{Accept: acceptEcho})
		var both sync.WaitGroup
		both.Go(func() { _ = client.Run() })
		both.Go(func() { _ = server.Run() })
		all := make([]*testReceiver, 100)
		for i := range all {
			all[i] = &testReceiver{}
			sendAll(openStream(t, client, all[i]), make([]byte, 100<<10))
		}
		cut(a, b)
		both.Wait()
		for _, r := range all {
			if _, _, err := r.received(); err == nil {
				t.Fatal("a stream has not ended with an error")
			}
		}
		if _, err := client.Open(func(*Stream) Receiver { return nil }, nil, false); err == nil {
			t.Error("Open succeeds on a lost connection")
		}
	}
	waitFor(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// TestKeepAlive checks that a peer is disconnected if it does not answer pings, and stays connected if it does.
func TestKeepAlive(t *testing.T) {
	a, b := tcpPair(t)
	server := NewServer(b, Options{Accept: acceptEcho})
	server.KeepAlive(time.Hour)
	server.KeepAlive(20 * time.Millisecond)
	_, err := io.WriteString(a, http2.ClientPreface)
	must(t, err)
	f := http2.NewFramer(a, nil)
	must(t, f.WriteSettings())
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: true}))
	if err := server.Run(); !errors.Is(err, errSilent) {
		t.Error(err)
	}

	client, server := pair(t, acceptEcho)
	openStream(t, client, &testReceiver{})
	client.KeepAlive(20 * time.Millisecond)
	began := client.lastReceived.Load()
	waitFor(t, "ten pings are answered", func() bool {
		return client.Err() != nil || time.Duration(client.lastReceived.Load()-began) > 200*time.Millisecond
	})
	if client.Err() != nil {
		t.Error(client.Err())
	}
	server.Close(nil)
}

// TestPingFlood checks that a peer that sends pings without reading the replies is disconnected.
func TestPingFlood(t *testing.T) {
	a, b := tcpPair(t)
	server := NewServer(b, Options{})
	go func() {
		_, _ = io.WriteString(a, http2.ClientPreface)
		f := http2.NewFramer(a, nil)
		_ = f.WriteSettings()
		for f.WritePing(false, [8]byte{}) == nil {
		}
	}()
	if err := server.Run(); !errors.Is(err, errFlood) {
		t.Error(err)
	}
}

// TestStreamLimit checks that Open fails when the peer's limit of streams is reached, and after GOAWAY.
func TestStreamLimit(t *testing.T) {
	a, b := tcpPair(t)
	client, server := NewClient(a, Options{}), NewServer(b, Options{Accept: acceptEcho, MaxStreams: 2})
	go func() { _ = client.Run() }()
	go func() { _ = server.Run() }()
	first := openStream(t, client, &testReceiver{})
	r := &testReceiver{}
	openStream(t, client, r)
	waitFor(t, "the server accepts the stream",
		func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.header) > 0 })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrTooManyStreams) {
		t.Error(err)
	}
	first.Reset(http2.ErrCodeCancel)
	server.GoAway()
	waitFor(t, "the client has received GOAWAY", func() bool { return !client.Usable() })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) {
		t.Error(err)
	}
	if _, _, err := r.received(); err != nil {
		t.Error("GOAWAY has ended an open stream")
	}
	client.Close(nil)
	server.Close(nil)
}

// TestGoingAway checks that GOAWAY closes the channel GoingAway while open streams continue. The end of the
// connection closes the channel too (KON-053).
func TestGoingAway(t *testing.T) {
	goingAway := func(c *Conn) bool {
		select {
		case <-c.GoingAway():
			return true
		default:
			return false
		}
	}
	client, server := pair(t, acceptEcho)
	r := &testReceiver{}
	s := openStream(t, client, r)
	sendAll(s, randomBytes(1000))
	waitFor(t, "the data is echoed", func() bool { n, _, _ := r.received(); return n == 1000 })
	if goingAway(client) || goingAway(server) {
		t.Error("GoingAway is closed without GOAWAY")
	}
	for range 2 { // gRPC sends it twice
		server.GoAway()
	}
	waitFor(t, "the client has received GOAWAY", func() bool { return goingAway(client) })
	sendAll(s, randomBytes(1000))
	waitFor(t, "the open stream continues", func() bool { n, _, _ := r.received(); return n == 2000 })
	if goingAway(server) {
		t.Error("GoingAway of the server is closed, but the client has sent no GOAWAY")
	}
	client.Close(nil)
	waitFor(t, "the end of the connection closes the channel", func() bool { return goingAway(server) })
}

// TestRetire checks that a retired connection opens no new streams and is closed when its last stream has
// ended. A retired connection without streams is closed at once (KON-053).
func TestRetire(t *testing.T) {
	client, _ := pair(t, acceptEcho)
	r := &testReceiver{}
	s := openStream(t, client, r)
	client.Retire()
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) ||
		client.Usable() {
		t.Error(err)
	}
	sendAll(s, randomBytes(1000))
	waitFor(t, "the open stream continues", func() bool { n, _, _ := r.received(); return n == 1000 })
	s.End(nil)
	waitFor(t, "the connection is closed", func() bool { return client.Err() != nil })
	waitFor(t, "the stream has ended normally", func() bool { _, end, err := r.received(); return end && err == nil })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) {
		t.Error(err)
	}
	client, _ = pair(t, acceptEcho)
	client.Retire()
	waitFor(t, "a retired connection without streams is closed", func() bool { return client.Err() != nil })
}

// FuzzRead checks that arbitrary bytes from the peer end the connection with an error and leave no stream.
func FuzzRead(f *testing.F) {
	var seed bytes.Buffer
	w := http2.NewFramer(&seed, nil)
	_ = w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: true})
	_ = w.WriteDataPadded(1, false, []byte("data"), []byte{0, 0})
	_ = w.WriteWindowUpdate(1, 7)
	_ = w.WriteRSTStream(1, 8)
	_ = w.WritePing(false, [8]byte{1})
	_ = w.WriteGoAway(0, 0, nil)
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, frames []byte) {
		a, b := net.Pipe()
		server := NewServer(b, Options{Accept: acceptEcho, MaxStreams: 10})
		go func() { _, _ = io.Copy(io.Discard, a) }()
		go func() {
			_, _ = io.WriteString(a, http2.ClientPreface)
			_, _ = a.Write(frames)
			_ = a.Close()
		}()
		if err := server.Run(); err == nil || server.StreamCount() != 0 {
			t.Errorf("Run returns %v, %d streams are open; want an error and no streams", err, server.StreamCount())
		}
	})
}

// blockedConn is a connection whose peer reads nothing. It ignores deadlines.
type blockedConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (m *blockedConn) SetWriteDeadline(time.Time) error { return nil }
func (m *blockedConn) SetDeadline(time.Time) error      { return nil }

func (m *blockedConn) Write(p []byte) (int, error) {
	if len(p) < 16<<10 {
		return m.Conn.Write(p)
	}
	<-m.closed
	return 0, net.ErrClosed
}

func (m *blockedConn) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// TestCloseBlockedConn checks that Close does not wait for a peer that reads nothing. The close of a TLS
// connection would wait for the pending write (KON-053).
func TestCloseBlockedConn(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS() // only for its TLS configuration
	defer certificate.Close()
	near, far := net.Pipe()
	m := &blockedConn{Conn: near, closed: make(chan struct{})}
	certificate.TLS.DynamicRecordSizingDisabled = true // otherwise the first TLS records are small
	server := tls.Server(tlsbatch.Conn(m), certificate.TLS)
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
	go func() { _ = server.Handshake() }()
	must(t, client.Handshake())
	go func() { _, _ = io.Copy(io.Discard, client) }()
	conn := NewClient(server, Options{})
	go func() { _ = conn.Run() }()
	_, err := server.Write(make([]byte, 100<<10)) // tlsbatch buffers this write and writes it later
	must(t, err)
	ended := make(chan struct{})
	go func() {
		conn.Close(nil)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Errorf("Close blocks for longer than %v", testTimeout)
	}
}

// TestExpiryEndsWithTheConnection checks that the timer of a stream stops when its connection ends, because it would
// keep the stream in memory.
func TestExpiryEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		client := NewClient(near, Options{})
		ended := make(chan error, 1)
		go func() { ended <- client.Run() }()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		must(t, http2.NewFramer(far, nil).WriteSettings())
		s := openStream(t, client, &testReceiver{})
		s.StartExpiry()
		must(t, far.Close())
		<-ended
		if s.expiryTimer.Stop() {
			t.Error("got a running timer of a stream whose connection has ended")
		}
	})
}

// TestRetireUnreadConn checks that a retired connection without streams is closed after lingerTimeout, even if
// its peer reads nothing (KON-053).
func TestRetireUnreadConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // has no buffer
		defer far.Close()
		client := NewClient(near, Options{})
		go func() { _ = client.Run() }()
		must(t, http2.NewFramer(far, nil).WriteSettings())
		s := openStream(t, client, &testReceiver{})
		synctest.Wait() // until the first batch is being written
		s.Reset(http2.ErrCodeCancel)
		client.Retire()
		<-time.After(lingerTimeout - time.Millisecond)
		if err := client.Err(); err != nil {
			t.Errorf("closed before lingerTimeout: %v", err)
		}
		<-time.After(closeNoticeTimeout + 2*time.Millisecond) // the connection waits for a GOAWAY of the peer
		synctest.Wait()
		if client.Err() == nil {
			t.Errorf("still open after %s", lingerTimeout)
			client.Close(nil)
		}
	})
}

// TestRetireDeliversData checks that a retired connection delivers the data of its last stream before it is
// closed (KON-044).
func TestRetireDeliversData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // has no buffer
		client := NewClient(near, Options{})
		go func() { _ = client.Run() }()
		f := http2.NewFramer(far, far)
		go func() { _, _ = io.ReadFull(far, make([]byte, len(http2.ClientPreface))) }()
		synctest.Wait()
		must(t, f.WriteSettings())
		s := openStream(t, client, &testReceiver{})
		readUntil := func(last http2.FrameType, flags http2.Flags) (n int) {
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if data, ok := frame.(*http2.DataFrame); ok {
					n += len(data.Data())
				}
				if h := frame.Header(); h.Type == last && h.Flags.Has(flags) {
					return n
				}
			}
		}
		readUntil(http2.FrameHeaders, 0)
		// :status 200
		must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: []byte{0x88}, EndHeaders: true,
			EndStream: true}))
		client.Retire()
		sendAll(s, randomBytes(1000))
		s.End(nil)
		synctest.Wait() // until the data is being written; the peer does not read yet
		if n := readUntil(http2.FrameData, http2.FlagDataEndStream); n != 1000 {
			t.Errorf("%d of 1000 bytes arrive", n)
		}
		synctest.Wait()
		if client.Err() == nil {
			t.Error("the connection is not closed")
		}
	})
}
