// Package h2 is HTTP/2 (RFC 9113) for tunnels: connections with very many streams, of which most are silent. A stream is some two
// hundred bytes and no goroutine: what arrives for it is told to its Receiver, what is sent waits in its queue until the window of
// the stream and its turn let it out. Frames and header compression are golang.org/x/net/http2's. It knows neither gRPC nor what
// is tunnelled.
package h2

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	initialStreamWindow = 64 << 10         // bytes of a stream that may wait for its reader, at first
	maxStreamWindow     = 1 << 20          // and where the reader keeps up
	initialConnWindow   = 256 << 10        // bytes of all streams that are on their way, at first
	maxConnWindow       = 16 << 20         // and where that keeps a faster connection busy
	maxHeaderBytes      = 16 << 10         // of a header, decoded
	maxReplies          = 10_000           // frames that the other side has asked for and does not read
	maxControlBytes     = 4 << 20          // bytes of frames other than DATA that wait to be written when there is a header to send
	handshakeTimeout    = 10 * time.Second // to say the first thing
	defaultWindow       = 65535            // RFC 9113, 6.9.2
	defaultFrame        = 16 << 10         // RFC 9113, 6.5.2
)

// SettingTunnel is a setting by which the client of a connection says that the server may open streams as well, each a CONNECT
// (RFC 9113, 8.5). It is of no standard; who does not know it ignores it (RFC 9113, 6.5.2). Being one of the connection, it does
// not pass a proxy that would not let such streams pass either.
const SettingTunnel http2.SettingID = 0xf0c1

var (
	// ErrClosed is that of a connection which this side has closed.
	ErrClosed = errors.New("the connection has been closed")
	// ErrGoingAway is that of a stream which is not opened, as the other side takes no more of them.
	ErrGoingAway = errors.New("the other end of the connection is going away")
	// ErrRefused is that of a stream that was opened and that the other side has not taken up: it may be asked for elsewhere (RFC 9113, 8.7).
	ErrRefused = errors.New("the other end of the connection has refused the stream")
	// ErrTooManyStreams is that of a stream which is not opened, as there are as many as the other side takes.
	ErrTooManyStreams = errors.New("as many streams are open as the other end of the connection takes")
	// ErrNotHTTP2 is that of a connection whose other end speaks something else.
	ErrNotHTTP2 = errors.New("the other end of the connection does not speak HTTP/2")
	errSilent   = errors.New("the other end of the connection does not answer")
	errFlood    = errors.New("the other end of the connection asks for answers and does not read them")
)

// clockStart is what times are counted from: such a time is in nanoseconds, and does not step back when the clock is set.
var clockStart = time.Now()

func now() int64 { return int64(time.Since(clockStart)) }

// Options say how a connection behaves.
type Options struct {
	// Accept is told of a stream that the other side has opened, and returns its Receiver; nil refuses it. Without Accept, all are.
	// It must not block.
	Accept func(s *Stream, header []hpack.HeaderField) Receiver
	// MaxStreams of the other side may be open at a time; 0: no limit.
	MaxStreams uint32
	// EnableTunnel sends SettingTunnel.
	EnableTunnel bool
}

// Receiver is told what happens to a stream, one thing at a time by the goroutine that reads the connection: it must not block. The
// stream is the one that Open has returned or Accept was given.
type Receiver interface {
	// Header has arrived; end: nothing comes after it.
	Header(s *Stream, fields []hpack.HeaderField, end bool)
	// Data has arrived, in a Buffer that the Receiver owns, nil if there are none. When it is Released the other side may send as much
	// again. end: nothing comes after it.
	Data(s *Stream, b *Buffer, end bool)
	// Ended says that the stream was broken off, by the other side or with its connection. Nothing is told after it.
	Ended(s *Stream, err error)
}

// Conn is one end of a connection.
type Conn struct {
	options      Options
	netConn      net.Conn
	client       bool
	lastReceived atomic.Int64 // when something last arrived, in nanoseconds
	done         chan struct{}
	goingAway    chan struct{}

	reader       *bufio.Reader
	framer       *http2.Framer
	settingsSent atomic.Int64 // when the settings were sent, in nanoseconds
	recvWindow   recvWindow

	mu             sync.Mutex
	work           sync.Cond     // there is something to write, or the connection is closed
	control        []byte        // frames that are written before any DATA
	controlFramer  *http2.Framer // writes to control
	pendingReplies int           // of them, that the other side has asked for
	flooded        bool          // by them
	shortQueue     streamQueue   // streams with few bytes to send go first,
	longQueue      streamQueue   // but not alone
	streams        map[uint32]*Stream
	peerStreams    uint32 // streams of the other side that are open
	nextID         uint32 // stream of this side
	lastPeerID     uint32 // stream of the other side
	maxPeerID      uint32 // the last of these that is taken
	sendWindow     int64  // that the other side has for all streams
	peerSettings   settings
	encoder        *hpack.Encoder
	headerBlock    bytes.Buffer  // what it has encoded
	keepAlive      time.Duration // of KeepAlive
	keepAliveTimer *time.Timer   // looks; nil: there is no KeepAlive
	receivedAtPing int64         // what was heard last when the other side was pinged
	noNewStreams   bool          // no more streams are opened
	retired        bool          // and it is closed with the last of them
	err            error         // it is closed
}

// settings are the other side's.
type settings struct {
	streamWindow int64
	maxFrame     int
	maxStreams   uint32
	tunnel       bool
}

// NewClient returns the end of a connection that opens it. The caller Runs it.
func NewClient(wire net.Conn, o Options) *Conn {
	c := newConn(wire, o)
	c.client, c.nextID = true, 1
	c.control = append(c.control, http2.ClientPreface...)
	c.queueSettings()
	return c
}

// NewServer returns the end of a connection that accepts it. The caller Runs it.
func NewServer(wire net.Conn, o Options) *Conn {
	c := newConn(wire, o)
	c.nextID = 2
	c.queueSettings()
	return c
}

func newConn(wire net.Conn, o Options) *Conn {
	c := &Conn{
		options:      o,
		netConn:      wire,
		done:         make(chan struct{}),
		goingAway:    make(chan struct{}),
		reader:       bufio.NewReaderSize(wire, readBufferSize(wire)),
		streams:      map[uint32]*Stream{},
		sendWindow:   defaultWindow,
		maxPeerID:    1<<32 - 1,
		peerSettings: settings{streamWindow: defaultWindow, maxFrame: defaultFrame, maxStreams: 1<<32 - 1},
	}
	c.work.L = &c.mu
	c.encoder = hpack.NewEncoder(&c.headerBlock)
	c.controlFramer = http2.NewFramer(sliceWriter{&c.control}, nil)
	c.framer = http2.NewFramer(nil, c.reader)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(MaxPiece)
	c.framer.MaxHeaderListSize = maxHeaderBytes
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return c
}

// readBufferSize is how many bytes are read at a time, where that spares system calls: TLS keeps what it has read itself.
func readBufferSize(wire net.Conn) int {
	if _, ok := wire.(*tls.Conn); ok {
		return 4 << 10
	}
	return 64 << 10
}

// queueSettings has the settings be written first.
func (c *Conn) queueSettings() {
	all := []http2.Setting{
		{ID: http2.SettingInitialWindowSize, Val: initialStreamWindow},
		{ID: http2.SettingMaxFrameSize, Val: MaxPiece},
		{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderBytes},
	}
	if c.client {
		all = append(all, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	}
	if c.options.MaxStreams > 0 {
		all = append(all, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: c.options.MaxStreams})
	}
	if c.options.EnableTunnel {
		all = append(all, http2.Setting{ID: SettingTunnel, Val: 1})
	}
	_ = c.controlFramer.WriteSettings(all...) // into memory, as all that is written to out
	c.recvWindow.size = initialConnWindow
	_ = c.controlFramer.WriteWindowUpdate(0, initialConnWindow-defaultWindow)
}

// Run serves the connection until it ends, and returns why. It closes the connection below.
func (c *Conn) Run() error {
	var others sync.WaitGroup
	others.Go(c.write)
	c.Close(c.read())
	others.Wait()
	c.mu.Lock()
	streams, unsent := c.streams, make([]*Buffer, 0, len(c.streams))
	c.streams = nil
	for _, s := range streams {
		unsent = append(unsent, s.discardQueue())
	}
	c.mu.Unlock()
	for _, b := range unsent {
		releaseAll(b)
	}
	for _, s := range streams {
		s.receiver.Ended(s, c.err)
	}
	return c.err
}

// Close ends the connection and, by Run, all its streams with an error, ErrClosed for nil. What waits to be sent is lost. The first
// error counts.
func (c *Conn) Close(err error) {
	if err == nil {
		err = ErrClosed
	}
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		c.closeGoingAway()
		if c.keepAliveTimer != nil {
			c.keepAliveTimer.Stop()
		}
		c.work.Broadcast()
	}
	c.mu.Unlock()
	if first {
		close(c.done)
		if secure, ok := c.netConn.(*tls.Conn); ok {
			_ = secure.NetConn().Close() // TLS would wait for what it has written
		}
		_ = c.netConn.Close()
	}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// GoingAway is closed when the other end has said that it takes no more streams, or the connection has ended.
func (c *Conn) GoingAway() <-chan struct{} { return c.goingAway }

// closeGoingAway closes leaving, which may be closed. The caller holds mu.
func (c *Conn) closeGoingAway() {
	select {
	case <-c.goingAway:
	default:
		close(c.goingAway)
	}
}

// Err is why it has ended; nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Usable says that streams can be opened.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.noNewStreams && c.nextID < 1<<31
}

// TunnelEnabled says whether the other side has sent SettingTunnel. It is known once a header has arrived.
func (c *Conn) TunnelEnabled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerSettings.tunnel
}

// ReceivedSince says whether anything has arrived since a time.
func (c *Conn) ReceivedSince(t time.Time) bool {
	return c.lastReceived.Load() > int64(t.Sub(clockStart))
}

// StreamCount is how many are open.
func (c *Conn) StreamCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// GoAway has the other side open no more streams. Those that are open go on.
func (c *Conn) GoAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxPeerID = c.lastPeerID
	_ = c.controlFramer.WriteGoAway(c.lastPeerID, http2.ErrCodeNo, nil)
	c.work.Signal()
}

// Retire has this side open no more streams, as if the other took none, and closes the connection as soon as there are none and all is
// written.
func (c *Conn) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noNewStreams, c.retired = true, true
	c.closeIfIdle()
}

// closeIfIdle has a connection that has been retired and has no streams be closed, when all is written or is not taken. The caller holds mu.
func (c *Conn) closeIfIdle() {
	if c.retired && len(c.streams) == 0 {
		_ = c.netConn.SetWriteDeadline(time.Now().Add(lingerTimeout)) // an error would come back with the next write
		c.work.Signal()
	}
}

// Open opens a stream; end: nothing will be sent on it. Its Receiver is what bind returns, which is called before anything can arrive,
// and may do nothing but keep the stream.
func (c *Conn) Open(bind func(*Stream) Receiver, header []hpack.HeaderField, end bool) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.noNewStreams, c.nextID >= 1<<31:
		return nil, ErrGoingAway
	case c.err != nil:
		return nil, c.err
	case uint32(len(c.streams))-c.peerStreams >= c.peerSettings.maxStreams:
		return nil, ErrTooManyStreams
	}
	s := &Stream{conn: c, id: c.nextID, sendWindow: c.peerSettings.streamWindow, recvWindow: initialStreamWindow, recvAvailable: initialStreamWindow, sendEnded: end, endSent: end}
	s.receiver = bind(s)
	c.nextID += 2
	c.streams[s.id] = s
	c.queueHeader(s.id, header, end)
	return s, nil
}

// KeepAlive has the connection be pinged when it has been silent for a time, and closed when it is then silent for as long again. What
// it was told last counts; 0 is never. Without a stream it is left alone, as gRPC has it.
func (c *Conn) KeepAlive(every time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if every <= 0 || c.err != nil {
		return
	}
	c.keepAlive, c.receivedAtPing = every, 0
	if c.keepAliveTimer == nil {
		c.lastReceived.Store(now())
		c.keepAliveTimer = time.AfterFunc(every, c.checkKeepAlive)
		return
	}
	c.keepAliveTimer.Reset(every)
}

// checkKeepAlive pings the other end if it is silent, or gives it up, and looks again.
func (c *Conn) checkKeepAlive() {
	c.mu.Lock()
	heard, next := c.lastReceived.Load(), c.keepAlive
	silent := time.Duration(now() - heard)
	switch {
	case c.err != nil:
		c.mu.Unlock()
		return
	case silent < c.keepAlive:
		next -= silent
	case c.receivedAtPing == heard:
		c.mu.Unlock()
		c.Close(fmt.Errorf("%w for %v", errSilent, silent.Round(time.Millisecond)))
		return
	case len(c.streams) > 0:
		c.receivedAtPing = heard
		_ = c.controlFramer.WritePing(false, [8]byte{})
		c.work.Signal()
	}
	c.keepAliveTimer.Reset(next)
	c.mu.Unlock()
}
