// Package h2 implements HTTP/2 (RFC 9113) for tunnels: connections with very many streams, most of them idle.
//
// It does not use the client and server of golang.org/x/net/http2, which need two goroutines for each stream,
// nor grpc-go, which needs one to three goroutines and at least 10 KiB for each stream. Neither allows the
// server to open a stream. A stream of this package is about 200 bytes and needs no goroutine. See
// docs/dependencies.md and docs/benchmarks.md for the comparison. Frames and header compression come from
// golang.org/x/net/http2 and hpack.
//
// The goroutine that reads the connection passes received data to the Receiver of the stream. Data to send is
// queued in the stream. Streams with queued data take turns, as far as their windows allow. The package must not
// import anything about gRPC or about the tunnelled protocol.
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
	initialStreamWindow = 64 << 10         // initial receive window of a stream in bytes
	maxStreamWindow     = 1 << 20          // receive window of a stream whose reader keeps up
	initialConnWindow   = 256 << 10        // initial receive window of the connection in bytes
	maxConnWindow       = 16 << 20         // largest receive window of a connection
	maxHeaderBytes      = 16 << 10         // decoded size of a header
	maxReplies          = 10_000           // queued replies to frames of the peer
	maxControlBytes     = 4 << 20          // queued bytes of frames other than DATA, checked when a header is queued
	handshakeTimeout    = 10 * time.Second // time for the peer to send its first frame
	defaultWindow       = 65535            // RFC 9113, 6.9.2
	defaultFrame        = 16 << 10         // RFC 9113, 6.5.2
)

// SettingTunnel is an HTTP/2 setting that the client sends to allow the server to open streams too, each a CONNECT
// (RFC 9113, 8.5). No standard defines it, and implementations ignore unknown settings (RFC 9113, 6.5.2). A
// setting applies to one connection. It therefore does not reach a server behind a proxy, which would not forward
// such streams.
const SettingTunnel http2.SettingID = 0xf0c1

var (
	// ErrClosed is the error of a connection that this side has closed.
	ErrClosed = errors.New("HTTP/2 connection closed")
	// ErrGoingAway is the error of a stream that cannot be opened because the peer accepts no more streams.
	ErrGoingAway = errors.New("HTTP/2 peer accepts no more streams")
	// ErrRefused is the error of a stream that the peer has refused without processing it. The request can be
	// retried on another connection (RFC 9113, 8.7).
	ErrRefused = errors.New("HTTP/2 peer refused the stream")
	// ErrTooManyStreams is the error of a stream that cannot be opened because the peer's limit of open streams
	// is reached.
	ErrTooManyStreams = errors.New("HTTP/2 peer's limit of open streams is reached")
	// ErrNotHTTP2 is the error of a connection whose peer speaks another protocol.
	ErrNotHTTP2 = errors.New("peer does not speak HTTP/2")
	errSilent   = errors.New("HTTP/2 peer does not answer")
	errFlood    = errors.New("HTTP/2 peer requests replies but does not read them")
)

// clockStart is the origin of all times in nanoseconds. They are monotonic: they do not jump when the system
// clock is set.
var clockStart = time.Now()

func now() int64 { return int64(time.Since(clockStart)) }

// Options configure a connection.
type Options struct {
	// Accept returns the Receiver of a stream that the peer has opened. A nil Receiver refuses the stream. If the
	// field Accept is nil, all streams are refused. Accept must not block.
	Accept func(s *Stream, header []hpack.HeaderField) Receiver
	// MaxStreams is the maximum number of streams that the peer may have open. 0 means no limit.
	MaxStreams uint32
	// EnableTunnel sends SettingTunnel.
	EnableTunnel bool
}

// Receiver receives the events of a stream. The goroutine that reads the connection calls its methods one at a
// time, so they must not block. The stream argument is the stream that Open returned or that Accept received.
type Receiver interface {
	// Header receives a header. end reports whether the peer has ended the stream.
	Header(s *Stream, fields []hpack.HeaderField, end bool)
	// Data receives data in a Buffer that the Receiver owns. The Buffer is nil if there is no data. Releasing the
	// Buffer allows the peer to send as many bytes again. end reports whether the peer has ended the stream.
	Data(s *Stream, b *Buffer, end bool)
	// Ended reports that the peer has reset the stream or that the connection has ended. It is the last call
	// for the stream.
	Ended(s *Stream, err error)
}

// Conn is one side of an HTTP/2 connection.
type Conn struct {
	options      Options
	netConn      net.Conn
	client       bool
	lastReceived atomic.Int64  // time of the last received frame, in nanoseconds since clockStart
	done         chan struct{} // closed when the connection has ended
	goingAway    chan struct{} // closed when the peer accepts no more streams or the connection has ended

	reader       *bufio.Reader
	framer       *http2.Framer
	settingsSent atomic.Int64 // time at which the settings were sent, in nanoseconds since clockStart
	recvWindow   recvWindow

	mu             sync.Mutex
	work           sync.Cond     // signals that there is something to write or that the connection is closed
	control        []byte        // queued frames, which are written before any DATA
	controlFramer  *http2.Framer // writes to control
	pendingReplies int           // number of frames in control that reply to frames of the peer
	flooded        bool          // pendingReplies or control has exceeded its limit
	shortQueue     streamQueue   // streams with few bytes to send, which have priority
	longQueue      streamQueue   // other streams, which get at least half of each batch
	streams        map[uint32]*Stream
	fromPeer
	nextID       uint32 // ID of the next stream that this side opens
	sendWindow   int64  // bytes that the peer allows for all streams together
	peerSettings settings
	encoder      *hpack.Encoder
	headerBlock  bytes.Buffer // output of encoder
	pings
	noNewStreams bool  // this side opens no more streams
	retired      bool  // the connection is closed when its last stream ends
	err          error // why the connection has ended; nil while it is open
}

// fromPeer counts the streams that the peer opens.
type fromPeer struct {
	peerStreams uint32 // number of open streams
	lastPeerID  uint32 // highest ID of a stream
	maxPeerID   uint32 // highest stream ID that this side accepts, limited by GoAway
}

// pings holds the state of KeepAlive.
type pings struct {
	keepAlive      time.Duration // interval
	keepAliveTimer *time.Timer   // nil means that KeepAlive has not been called
	receivedAtPing int64         // value of lastReceived when the last ping was sent
}

// settings holds the settings of the peer.
type settings struct {
	streamWindow int64
	maxFrame     int
	maxStreams   uint32
	tunnel       bool
}

// NewClient returns the client side of a connection. The caller must call Run.
func NewClient(netConn net.Conn, o Options) *Conn {
	c := newConn(netConn, o)
	c.client, c.nextID = true, 1
	c.control = append(c.control, http2.ClientPreface...)
	c.queueSettings()
	return c
}

// NewServer returns the server side of a connection. The caller must call Run.
func NewServer(netConn net.Conn, o Options) *Conn {
	c := newConn(netConn, o)
	c.nextID = 2
	c.queueSettings()
	return c
}

func newConn(netConn net.Conn, o Options) *Conn {
	c := &Conn{
		options:      o,
		netConn:      netConn,
		done:         make(chan struct{}),
		goingAway:    make(chan struct{}),
		reader:       bufio.NewReaderSize(netConn, readBufferSize(netConn)),
		streams:      map[uint32]*Stream{},
		sendWindow:   defaultWindow,
		fromPeer:     fromPeer{maxPeerID: 1<<32 - 1},
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

// readBufferSize returns the size of the read buffer. With TLS it is small, because a tls.Conn buffers its own
// reads. Without TLS, a large buffer saves system calls.
func readBufferSize(conn net.Conn) int {
	if _, ok := conn.(*tls.Conn); ok {
		return 4 << 10
	}
	return 64 << 10
}

// queueSettings queues the first frames: the settings and the window of the connection.
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
	_ = c.controlFramer.WriteSettings(all...) // writing to controlFramer cannot fail: it writes to memory
	c.recvWindow.size = initialConnWindow
	_ = c.controlFramer.WriteWindowUpdate(0, initialConnWindow-defaultWindow)
}

// Run serves the connection until it ends and returns the reason. It closes the underlying connection.
func (c *Conn) Run() error {
	var writer sync.WaitGroup
	writer.Go(c.write)
	c.Close(c.read())
	writer.Wait()
	c.mu.Lock()
	streams, unsent := c.streams, make([]*Buffer, 0, len(c.streams))
	c.streams = nil
	for _, s := range streams {
		unsent = append(unsent, s.discardQueue())
		s.stopExpiry()
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

// Close ends the connection. Run then ends all streams with err. A nil err means ErrClosed. Queued data is
// discarded. If Close is called several times, the first error is kept.
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
			_ = secure.NetConn().Close() // closing the tls.Conn would wait for pending writes
		}
		_ = c.netConn.Close()
	}
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// GoingAway returns a channel that is closed when the peer has sent GOAWAY or the connection has ended.
func (c *Conn) GoingAway() <-chan struct{} { return c.goingAway }

// closeGoingAway closes the goingAway channel if it is open. The caller must hold mu.
func (c *Conn) closeGoingAway() {
	select {
	case <-c.goingAway:
	default:
		close(c.goingAway)
	}
}

// Err returns why the connection has ended, or nil if it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Usable reports whether this side can open streams.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.noNewStreams && c.nextID < 1<<31
}

// TunnelEnabled reports whether the peer has sent SettingTunnel. The result is final once a header has arrived.
func (c *Conn) TunnelEnabled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerSettings.tunnel
}

// ReceivedSince reports whether any frame has arrived since t.
func (c *Conn) ReceivedSince(t time.Time) bool {
	return c.lastReceived.Load() > int64(t.Sub(clockStart))
}

// StreamCount returns the number of open streams.
func (c *Conn) StreamCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

// GoAway sends GOAWAY: the peer may open no more streams. Open streams continue.
func (c *Conn) GoAway() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maxPeerID = c.lastPeerID
	_ = c.controlFramer.WriteGoAway(c.lastPeerID, http2.ErrCodeNo, nil)
	c.work.Signal()
}

// Retire prevents this side from opening streams, as if the peer had sent GOAWAY. The connection is closed when
// it has no streams and all queued data is written.
func (c *Conn) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noNewStreams, c.retired = true, true
	c.closeIfIdle()
}

// closeIfIdle makes the writer close a retired connection that has no streams. The writer first writes the queued
// data, for at most lingerTimeout. The caller must hold mu.
func (c *Conn) closeIfIdle() {
	if c.retired && len(c.streams) == 0 {
		_ = c.netConn.SetWriteDeadline(time.Now().Add(lingerTimeout)) // if this fails, the next write also fails
		c.work.Signal()
	}
}

// Open opens a stream. The function bind returns the Receiver of the stream. Open calls it before any event of the
// stream. bind must only store the stream. end reports whether this side sends nothing after the header.
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
	s := c.newStream(c.nextID)
	s.sendEnded, s.endSent = end, end
	s.receiver = bind(s)
	c.nextID += 2
	c.streams[s.id] = s
	c.queueHeader(s.id, header, end)
	return s, nil
}

// KeepAlive pings the peer when nothing has arrived for the given interval, and closes the connection if nothing
// arrives for another interval. A later call replaces the interval. A call with interval 0 has no effect. As in
// gRPC, a connection without streams is not pinged.
func (c *Conn) KeepAlive(interval time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if interval <= 0 || c.err != nil {
		return
	}
	c.keepAlive, c.receivedAtPing = interval, 0
	if c.keepAliveTimer == nil {
		c.lastReceived.Store(now())
		c.keepAliveTimer = time.AfterFunc(interval, c.checkKeepAlive)
		return
	}
	c.keepAliveTimer.Reset(interval)
}

// checkKeepAlive pings a silent peer or closes the connection, and schedules the next check.
func (c *Conn) checkKeepAlive() {
	c.mu.Lock()
	last, next := c.lastReceived.Load(), c.keepAlive
	silent := time.Duration(now() - last)
	switch {
	case c.err != nil:
		c.mu.Unlock()
		return
	case silent < c.keepAlive:
		next -= silent
	case c.receivedAtPing == last:
		c.mu.Unlock()
		c.Close(fmt.Errorf("%w for %v", errSilent, silent.Round(time.Millisecond)))
		return
	case len(c.streams) > 0:
		c.receivedAtPing = last
		_ = c.controlFramer.WritePing(false, [8]byte{})
		c.work.Signal()
	}
	c.keepAliveTimer.Reset(next)
	c.mu.Unlock()
}
