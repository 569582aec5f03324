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

const patience = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t testing.TB, what string, true func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !true() {
		select {
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
		case <-time.After(time.Millisecond):
		}
	}
}

// wires returns both ends of a TCP connection.
func wires(t testing.TB) (client, server net.Conn) {
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

// stream is a Receiver that keeps what arrives, or echoes it.
type stream struct {
	echo  bool
	stall bool // gives no credit

	mu     sync.Mutex
	header []hpack.HeaderField
	data   []byte
	kept   []*Buffer
	end    bool
	err    error
}

func (r *stream) Header(s *Stream, fields []hpack.HeaderField, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = append(r.header, fields...)
	if r.end = r.end || end; end && r.echo {
		s.End(nil)
	}
}

func (r *stream) Data(s *Stream, b *Buffer, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case b == nil:
	case r.echo:
		s.Send(b)
	case r.stall:
		r.kept = append(r.kept, b)
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

func (r *stream) Ended(_ *Stream, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *stream) look(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *stream) got() (n int, end bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.data), r.end, r.err
}

func open(t testing.TB, c *Conn, r Receiver) *Stream {
	s, err := c.Open(func(*Stream) Receiver { return r }, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: "a:1"}}, false)
	must(t, err)
	return s
}

// pair returns both ends of a connection, and what the server was asked for.
func pair(t testing.TB, accept func(*Stream, []hpack.HeaderField) Receiver) (client, server *Conn) {
	a, b := wires(t)
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

func echoes(s *Stream, _ []hpack.HeaderField) Receiver {
	s.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	return &stream{echo: true}
}

func noise(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.Read(p)
	return p
}

// send sends all of it, in pieces.
func send(s *Stream, p []byte) {
	for len(p) > 0 {
		n := min(len(p), MaxPiece)
		s.Send(BufferOf(p[:n]))
		p = p[n:]
	}
}

// KON-050: what golang.org/x/net/http2 sends to this server comes back, larger than any window, with a trailer of either side.
func TestServerWithAnotherClient(t *testing.T) {
	a, b := wires(t)
	server := NewServer(b, Options{Accept: func(s *Stream, header []hpack.HeaderField) Receiver { return echoes(s, header) }})
	go func() { _ = server.Run() }()
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: nil, MaxReadFrameSize: 1 << 20}
	c, err := tr.NewClientConn(a)
	must(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			data := noise(3 << 20)
			resp, err := c.RoundTrip(httptestRequest(data))
			if err != nil {
				t.Error(err)
				return
			}
			got, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
			}
		})
	}
	all.Wait()
	until(t, "all streams are forgotten", func() bool { return server.StreamCount() == 0 })
}

func httptestRequest(body []byte) *http.Request {
	req, _ := http.NewRequest(http.MethodPost, "http://a/", io.NopCloser(bytes.NewReader(body)))
	req.Trailer = http.Header{"X-End": {"1"}}
	req.Header.Set("X-Large", strings.Repeat("x", 8<<10))
	return req
}

// KON-050: this client with the server of golang.org/x/net/http2.
func TestClientWithAnotherServer(t *testing.T) {
	a, b := wires(t)
	go (&http2.Server{MaxReadFrameSize: 16 << 10}).ServeConn(b, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-End", r.URL.Path)
	})})
	c := NewClient(a, Options{})
	go func() { _ = c.Run() }()
	for range 4 {
		r := &stream{}
		s, err := c.Open(func(*Stream) Receiver { return r }, []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
			{Name: ":path", Value: "/path"}, {Name: ":authority", Value: "a"}}, false)
		must(t, err)
		data := noise(3 << 20)
		send(s, data)
		s.End(nil)
		until(t, "the answer ends", func() bool { _, end, err := r.got(); return end || err != nil })
		r.look(func() {
			if r.err != nil || !bytes.Equal(r.data, data) || !strings.Contains(headers(r.header), "x-end: /path") {
				t.Errorf("%d bytes of %d, %v, %v", len(r.data), len(data), r.err, r.header)
			}
		})
	}
	until(t, "all streams are forgotten", func() bool { return c.StreamCount() == 0 })
	c.Close(nil)
}

func headers(fields []hpack.HeaderField) string {
	var all strings.Builder
	for _, f := range fields {
		all.WriteString(f.Name + ": " + f.Value + "\n")
	}
	return all.String()
}

// A reader that stalls holds up its own stream alone, of which no more than a window is kept.
func TestStalledReader(t *testing.T) {
	stalled, other := &stream{stall: true}, &stream{}
	receivers := make(chan Receiver, 2)
	receivers <- stalled
	receivers <- other
	client, _ := pair(t, func(*Stream, []hpack.HeaderField) Receiver { return <-receivers })
	first := open(t, client, &stream{})
	send(first, noise(4<<20))
	until(t, "a window has arrived", func() bool { n, _, _ := stalled.got(); return n == initialStreamWindow })
	second := open(t, client, &stream{})
	send(second, noise(4<<20))
	until(t, "all has arrived beside it", func() bool { n, _, _ := other.got(); return n == 4<<20 })
	if n, _, _ := stalled.got(); n != initialStreamWindow {
		t.Errorf("%d bytes have come to a reader that stalls", n)
	}
	client.mu.Lock()
	queued := first.queued
	client.mu.Unlock()
	if queued != 4<<20-initialStreamWindow {
		t.Errorf("%d bytes wait", queued)
	}
	first.Reset(http2.ErrCodeCancel)
	until(t, "it is broken off", func() bool { _, _, err := stalled.got(); return err != nil })
	for _, b := range stalled.kept {
		b.Release() // of a stream that is no more
	}
}

// A few bytes go before the many that others have waiting, and many are not held up by few for ever.
func TestFewBytesGoFirst(t *testing.T) {
	a, _ := net.Pipe()
	c := NewClient(a, Options{})
	c.sendWindow = 1 << 30
	var many []*Stream
	for range 100 {
		s := open(t, c, &stream{})
		send(s, make([]byte, initialStreamWindow))
		many = append(many, s)
	}
	small := open(t, c, &stream{})
	small.Send(BufferOf(make([]byte, 100)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = c.control[:0]
	_, done := c.fillBatch(nil, nil)
	if small.queued != 0 || small.firstBuffer != nil {
		t.Error("the few bytes are not in the first batch")
	}
	if many[0].queued == initialStreamWindow {
		t.Error("nor is anything of the others")
	}
	for c.longQueue.first != nil || c.shortQueue.first != nil {
		_, done = c.fillBatch(nil, done)
	}
	for i, s := range many {
		if want := initialStreamWindow - defaultWindow; s.queued != want {
			t.Errorf("stream %d has %d bytes left, not %d: all have their turn", i, s.queued, want)
		}
	}
}

// What was sent as one piece goes out in one frame, as far as the window lets it, with others where they find room.
func TestWholePieces(t *testing.T) {
	a, _ := net.Pipe()
	c := NewClient(a, Options{})
	c.sendWindow, c.peerSettings.maxFrame = 1<<30, MaxPiece
	s := open(t, c, &stream{})
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
		t.Errorf("frames of %v KiB, not %v", lengths, want)
	}
}

// The window of a stream follows what is read of it: also where a round trip takes long, and not where nobody reads.
func TestWindowsGrow(t *testing.T) {
	for name, at := range map[string]struct {
		roundTrip, took time.Duration
		held            int
		want            int32
	}{
		"near":           {0, 10 * time.Millisecond, 0, 2 * initialStreamWindow},
		"slow":           {0, 100 * time.Millisecond, 0, initialStreamWindow},
		"far":            {200 * time.Millisecond, 100 * time.Millisecond, 0, 2 * initialStreamWindow},
		"it is not read": {0, 10 * time.Millisecond, initialStreamWindow, initialStreamWindow},
	} {
		a, _ := net.Pipe()
		c := NewClient(a, Options{})
		c.recvWindow.roundTrip = at.roundTrip
		s := open(t, c, &stream{})
		s.uncredited = int32(at.held + initialStreamWindow/2)
		s.lastUpdate = now() - int64(at.took)
		if s.Credit(initialStreamWindow / 2); s.recvWindow != at.want {
			t.Errorf("%s: the window is %d, not %d", name, s.recvWindow, at.want)
		}
	}
}

// One direction ends before the other, and Close ends both once all is sent.
func TestEnds(t *testing.T) {
	accepted := make(chan *Stream, 1)
	theirs := &stream{}
	client, server := pair(t, func(s *Stream, _ []hpack.HeaderField) Receiver {
		accepted <- s
		return theirs
	})
	ours := &stream{}
	s := open(t, client, ours)
	data := noise(200 << 10)
	send(s, data)
	s.End(nil)
	until(t, "the end", func() bool { _, end, _ := theirs.got(); return end })
	back := <-accepted
	send(back, data)
	back.Close(nil)
	until(t, "the other end", func() bool { _, end, _ := ours.got(); return end })
	theirs.look(func() {
		ours.look(func() {
			if !bytes.Equal(theirs.data, data) || !bytes.Equal(ours.data, data) {
				t.Errorf("%d and %d bytes, not %d", len(theirs.data), len(ours.data), len(data))
			}
		})
	})
	until(t, "both forget it", func() bool { return client.StreamCount() == 0 && server.StreamCount() == 0 })

	theirs, ours = &stream{}, &stream{}
	s = open(t, client, ours)
	<-accepted
	send(s, data)
	s.Close(nil)
	until(t, "all of it, and that nothing is wanted", func() bool { n, end, err := theirs.got(); return n == len(data) && end && err != nil })
	var reset http2.StreamError
	if _, _, err := theirs.got(); !errors.As(err, &reset) || reset.Code != http2.ErrCodeNo {
		t.Errorf("%v", err)
	}
	until(t, "both forget it", func() bool { return client.StreamCount() == 0 && server.StreamCount() == 0 })
}

// A connection that is lost ends its streams, once each, and its goroutines.
func TestLostConnection(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, cut := range []func(client, server net.Conn){
		func(client, _ net.Conn) { _ = client.Close() },
		func(_, server net.Conn) { _ = server.Close() },
		func(client, _ net.Conn) { _ = client.(*net.TCPConn).CloseWrite() },
	} {
		a, b := wires(t)
		client, server := NewClient(a, Options{}), NewServer(b, Options{Accept: echoes})
		var both sync.WaitGroup
		both.Go(func() { _ = client.Run() })
		both.Go(func() { _ = server.Run() })
		all := make([]*stream, 100)
		for i := range all {
			all[i] = &stream{}
			send(open(t, client, all[i]), make([]byte, 100<<10))
		}
		cut(a, b)
		both.Wait()
		for _, r := range all {
			if _, _, err := r.got(); err == nil {
				t.Fatal("a stream has not ended")
			}
		}
		if _, err := client.Open(func(*Stream) Receiver { return nil }, nil, false); err == nil {
			t.Error("a stream of a connection that is no more")
		}
	}
	until(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// The other end may be gone without a word: it does not answer a ping.
func TestSilence(t *testing.T) {
	a, b := wires(t)
	server := NewServer(b, Options{Accept: echoes})
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

	client, server := pair(t, echoes)
	open(t, client, &stream{})
	client.KeepAlive(20 * time.Millisecond)
	began := client.lastReceived.Load()
	until(t, "it is pinged ten times", func() bool {
		return client.Err() != nil || time.Duration(client.lastReceived.Load()-began) > 200*time.Millisecond
	})
	if client.Err() != nil {
		t.Error(client.Err())
	}
	server.Close(nil)
}

// Who asks for answers and does not read them is sent away.
func TestFlood(t *testing.T) {
	a, b := wires(t)
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

// The other side says how many streams it takes, and when it takes none.
func TestStreamsThatAreNotTaken(t *testing.T) {
	a, b := wires(t)
	client, server := NewClient(a, Options{}), NewServer(b, Options{Accept: echoes, MaxStreams: 2})
	go func() { _ = client.Run() }()
	go func() { _ = server.Run() }()
	first := open(t, client, &stream{})
	r := &stream{}
	open(t, client, r)
	until(t, "an answer", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.header) > 0 })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrTooManyStreams) {
		t.Error(err)
	}
	first.Reset(http2.ErrCodeCancel)
	server.GoAway()
	until(t, "it is going away", func() bool { return !client.Usable() })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) {
		t.Error(err)
	}
	if _, _, err := r.got(); err != nil {
		t.Error("a stream that is open has ended")
	}
	client.Close(nil)
	server.Close(nil)
}

// KON-053: that the other end takes no more streams is told while those that are open go on; so is the end of the connection.
func TestLeaving(t *testing.T) {
	leaving := func(c *Conn) bool {
		select {
		case <-c.GoingAway():
			return true
		default:
			return false
		}
	}
	client, server := pair(t, echoes)
	r := &stream{}
	s := open(t, client, r)
	send(s, noise(1000))
	until(t, "an answer", func() bool { n, _, _ := r.got(); return n == 1000 })
	if leaving(client) || leaving(server) {
		t.Error("nobody has said so")
	}
	for range 2 { // as gRPC does
		server.GoAway()
	}
	until(t, "it is told", func() bool { return leaving(client) })
	send(s, noise(1000))
	until(t, "what is open goes on", func() bool { n, _, _ := r.got(); return n == 2000 })
	if leaving(server) {
		t.Error("the client has not said so")
	}
	client.Close(nil)
	until(t, "the end is told", func() bool { return leaving(server) })
}

// KON-053: a connection that is retired opens no more streams, and is closed with the last of those that it has; at once if it has none.
func TestRetire(t *testing.T) {
	client, _ := pair(t, echoes)
	r := &stream{}
	s := open(t, client, r)
	client.Retire()
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) || client.Usable() {
		t.Error(err)
	}
	send(s, noise(1000))
	until(t, "what it has goes on", func() bool { n, _, _ := r.got(); return n == 1000 })
	s.End(nil)
	until(t, "it is closed", func() bool { return client.Err() != nil })
	until(t, "it has ended in order", func() bool { _, end, err := r.got(); return end && err == nil })
	if _, err := client.Open(func(*Stream) Receiver { return r }, nil, false); !errors.Is(err, ErrGoingAway) {
		t.Error(err)
	}
	client, _ = pair(t, echoes)
	client.Retire()
	until(t, "one without streams is closed", func() bool { return client.Err() != nil })
}

// FuzzRead: no bytes of the other side do harm.
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
		server := NewServer(b, Options{Accept: echoes, MaxStreams: 10})
		go func() { _, _ = io.Copy(io.Discard, a) }()
		go func() {
			_, _ = io.WriteString(a, http2.ClientPreface)
			_, _ = a.Write(frames)
			_ = a.Close()
		}()
		if err := server.Run(); err == nil || server.StreamCount() != 0 {
			t.Error("it has not ended")
		}
	})
}

// mute is a connection whose other side takes nothing, and that heeds no deadline in time.
type mute struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (m *mute) SetWriteDeadline(time.Time) error { return nil }
func (m *mute) SetDeadline(time.Time) error      { return nil }

func (m *mute) Write(p []byte) (int, error) {
	if len(p) < 16<<10 {
		return m.Conn.Write(p)
	}
	<-m.closed
	return 0, net.ErrClosed
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// KON-053: a connection over TLS to one that takes nothing is closed at once, whatever is on its way: TLS would wait for that.
func TestCloseToTheMute(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS() // for its configuration alone
	defer certificate.Close()
	near, far := net.Pipe()
	m := &mute{Conn: near, closed: make(chan struct{})}
	certificate.TLS.DynamicRecordSizingDisabled = true // else the first records are small
	server := tls.Server(tlsbatch.Conn(m), certificate.TLS)
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true})
	go func() { _ = server.Handshake() }()
	must(t, client.Handshake())
	go func() { _, _ = io.Copy(io.Discard, client) }()
	conn := NewClient(server, Options{})
	go func() { _ = conn.Run() }()
	_, err := server.Write(make([]byte, 100<<10)) // is taken over
	must(t, err)
	ended := make(chan struct{})
	go func() {
		conn.Close(nil)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the connection is not closed within a minute")
	}
}

// KON-053: a connection that is retired and has no streams waits for one that takes nothing for a time, not for ever.
func TestRetireToTheMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // which holds nothing
		defer far.Close()
		client := NewClient(near, Options{})
		go func() { _ = client.Run() }()
		must(t, http2.NewFramer(far, nil).WriteSettings())
		s := open(t, client, &stream{})
		synctest.Wait() // until a batch is on its way
		s.Reset(http2.ErrCodeCancel)
		client.Retire()
		<-time.After(lingerTimeout - time.Millisecond)
		if err := client.Err(); err != nil {
			t.Errorf("it is closed before its time: %v", err)
		}
		<-time.After(closeNoticeTimeout + 2*time.Millisecond) // it listens for a reason
		synctest.Wait()
		if client.Err() == nil {
			t.Errorf("it is open after %s", lingerTimeout)
			client.Close(nil)
		}
	})
}

// KON-044: the last that goes through a connection that is retired arrives before that is closed.
func TestRetireAfterTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe() // which holds nothing
		client := NewClient(near, Options{})
		go func() { _ = client.Run() }()
		f := http2.NewFramer(far, far)
		go func() { _, _ = io.ReadFull(far, make([]byte, len(http2.ClientPreface))) }()
		synctest.Wait()
		must(t, f.WriteSettings())
		s := open(t, client, &stream{})
		frames := func(last http2.FrameType, flags http2.Flags) (n int) {
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
		frames(http2.FrameHeaders, 0)
		must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})) // :status 200
		client.Retire()
		send(s, noise(1000))
		s.End(nil)
		synctest.Wait() // until it is on its way, to one who does not read yet
		if n := frames(http2.FrameData, http2.FlagDataEndStream); n != 1000 {
			t.Errorf("%d bytes of 1000 arrive", n)
		}
		synctest.Wait()
		if client.Err() == nil {
			t.Error("it is not closed")
		}
	})
}
