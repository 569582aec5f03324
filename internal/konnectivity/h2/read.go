package h2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// read reads frames until the connection ends and returns the reason.
func (c *Conn) read() error {
	_ = c.netConn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	if !c.client {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c.reader, preface); err != nil {
			return err
		}
		if string(preface) != http2.ClientPreface {
			return fmt.Errorf("%w: it sent %q", ErrNotHTTP2, preface)
		}
	} else if start, _ := c.reader.Peek(len("HTTP")); string(start) == "HTTP" { // no frame has this length
		line, _ := c.reader.ReadSlice('\n') // limited to the read buffer
		return fmt.Errorf("%w: it answered %q", ErrNotHTTP2, bytes.TrimSpace(line))
	}
	for first := true; ; first = false {
		h, err := c.framer.ReadFrameHeader()
		if err == nil && first && h.Type != http2.FrameSettings {
			err = http2.ConnectionError(http2.ErrCodeProtocol) // RFC 9113, 3.4
		}
		if err == nil {
			err = c.readFrame(h)
		}
		if first {
			_ = c.netConn.SetReadDeadline(time.Time{})
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.resetStream(broken.StreamID, broken.Code)
			err = nil
		}
		if err != nil {
			c.writeGoAway(err)
			return err
		}
	}
}

// writeGoAway sends GOAWAY if err is an error of the protocol. The connection is closed afterwards, whether or
// not the peer has received the frame.
func (c *Conn) writeGoAway(err error) {
	var code http2.ConnectionError
	if !errors.As(err, &code) {
		return
	}
	var frame []byte
	c.mu.Lock()
	last := c.lastPeerID
	c.mu.Unlock()
	_ = http2.NewFramer(sliceWriter{&frame}, nil).WriteGoAway(last, http2.ErrCode(code), nil)
	_ = c.netConn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.netConn.Write(frame)
}

// readFrame reads the rest of a frame and processes it.
func (c *Conn) readFrame(h http2.FrameHeader) error {
	c.lastReceived.Store(now())
	if h.Type == http2.FrameData {
		return c.readData(h)
	}
	frame, err := c.framer.ReadFrameForHeader(h)
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.readHeader(f)
	case *http2.SettingsFrame:
		return c.readSettings(f)
	case *http2.WindowUpdateFrame:
		return c.readWindowUpdate(f)
	case *http2.RSTStreamFrame:
		c.endStream(f.StreamID, resetError(f))
	case *http2.PingFrame:
		if !f.IsAck() {
			c.mu.Lock()
			c.reply(func() error { return c.controlFramer.WritePing(true, f.Data) })
			c.mu.Unlock()
		}
	case *http2.GoAwayFrame:
		c.readGoAway(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // ignores PRIORITY and unknown frames
}

// resetError returns the error of a stream that the peer has reset.
func resetError(f *http2.RSTStreamFrame) error {
	if f.ErrCode == http2.ErrCodeRefusedStream {
		return ErrRefused
	}
	return http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode}
}

// readData reads the payload of a DATA frame into a new Buffer and passes it to the stream's Receiver.
func (c *Conn) readData(h http2.FrameHeader) error {
	b := NewBuffer(int(h.Length))
	if _, err := io.ReadFull(c.reader, b.Bytes()); err != nil {
		b.Release()
		return err
	}
	if h.Flags.Has(http2.FlagDataPadded) {
		if b.Len() == 0 || int(b.Bytes()[0]) >= b.Len() {
			b.Release()
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		b.Truncate(b.Len() - int(b.Bytes()[0]))
		b.Skip(1)
	}
	end := h.Flags.Has(http2.FlagDataEndStream)
	s, err := c.countReceived(h.StreamID, h.Length, end)
	if s == nil {
		b.Release()
		return err
	}
	if b.SetWindow(s, int(h.Length)); b.Len() == 0 {
		b.Release()
		b = nil
	}
	s.receiver.Data(s, b, end)
	return nil
}

// countReceived counts n received bytes in the windows of the connection and of a stream. It returns a nil
// stream if the stream no longer exists.
func (c *Conn) countReceived(id, n uint32, end bool) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if grant := c.recvWindow.receive(int64(n)); grant > 0 {
		_ = c.controlFramer.WriteWindowUpdate(0, uint32(grant))
		c.work.Signal()
	}
	s := c.streams[id]
	switch {
	case s == nil && c.isIdle(id):
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil, nil
	case s.recvEnded:
		return nil, http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case int64(n) > int64(s.recvAvailable):
		return nil, http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	}
	s.recvAvailable -= int32(n)
	s.uncredited += int32(n)
	if end {
		s.recvEnded = true
		c.removeIfEnded(s)
	}
	return s, nil
}

// isIdle reports whether the stream has never been opened.
func (c *Conn) isIdle(id uint32) bool {
	if c.isPeerStream(id) {
		return id == 0 || id > c.lastPeerID
	}
	return id == 0 || id >= c.nextID
}

func (c *Conn) readHeader(f *http2.MetaHeadersFrame) error {
	if f.Truncated {
		c.resetStream(f.StreamID, http2.ErrCodeEnhanceYourCalm)
		return nil
	}
	c.mu.Lock()
	s := c.streams[f.StreamID]
	switch {
	case s != nil && s.recvEnded:
		c.mu.Unlock()
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	case s != nil:
		if f.StreamEnded() {
			s.recvEnded = true
			c.removeIfEnded(s)
		}
		c.mu.Unlock()
		s.receiver.Header(s, f.Fields, f.StreamEnded())
		return nil
	case !c.isIdle(f.StreamID):
		c.mu.Unlock()
		return nil // the stream has been reset
	case !c.isPeerStream(f.StreamID):
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.lastPeerID = f.StreamID
	if f.StreamID > c.maxPeerID { // GOAWAY has excluded this stream
		c.mu.Unlock()
		return nil
	}
	if c.options.Accept == nil || c.options.MaxStreams > 0 && c.peerStreams >= c.options.MaxStreams {
		c.replyReset(f.StreamID, http2.ErrCodeRefusedStream)
		c.mu.Unlock()
		return nil
	}
	s = c.newStream(f.StreamID)
	s.receiver, s.recvEnded = DiscardReceiver{}, f.StreamEnded()
	c.streams[s.id] = s
	c.peerStreams++
	c.mu.Unlock()
	if c.acceptStream(s, f.Fields); f.StreamEnded() {
		s.receiver.Data(s, nil, true)
	}
	return nil
}

// acceptStream sets the Receiver of a stream that the peer has opened, or refuses the stream.
func (c *Conn) acceptStream(s *Stream, header []hpack.HeaderField) {
	r := c.options.Accept(s, header)
	if r == nil {
		c.resetStream(s.id, http2.ErrCodeRefusedStream)
		return
	}
	c.mu.Lock()
	s.receiver = r
	c.mu.Unlock()
}

// DiscardReceiver is a Receiver that discards all received data.
type DiscardReceiver struct{}

// Header implements Receiver.
func (DiscardReceiver) Header(*Stream, []hpack.HeaderField, bool) {}

// Data implements Receiver.
func (DiscardReceiver) Data(_ *Stream, b *Buffer, _ bool) { b.Release() }

// Ended implements Receiver.
func (DiscardReceiver) Ended(*Stream, error) {}

func (c *Conn) readSettings(f *http2.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if sent := c.settingsSent.Load(); sent != 0 {
			c.recvWindow.roundTrip = time.Duration(now() - sent)
		}
		return nil
	}
	window := c.peerSettings.streamWindow
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			window = int64(s.Val)
		case http2.SettingMaxFrameSize:
			c.peerSettings.maxFrame = int(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.peerSettings.maxStreams = s.Val
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(min(s.Val, 4096))
		case SettingTunnel:
			c.peerSettings.tunnel = s.Val == 1
		}
		return nil
	})
	c.reply(c.controlFramer.WriteSettingsAck)
	if err != nil {
		return err
	}
	return c.adjustWindows(window - c.peerSettings.streamWindow)
}

// adjustWindows changes the send windows of all streams by delta (RFC 9113, 6.9.2).
func (c *Conn) adjustWindows(delta int64) error {
	c.peerSettings.streamWindow += delta
	for _, s := range c.streams {
		if s.sendWindow += delta; s.sendWindow > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.schedule(s)
	}
	return nil
}

func (c *Conn) readWindowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.sendWindow += int64(f.Increment); c.sendWindow > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.work.Signal()
		return nil
	}
	s := c.streams[f.StreamID]
	switch {
	case s == nil && c.isIdle(f.StreamID):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil
	}
	if s.sendWindow += int64(f.Increment); s.sendWindow > 1<<31-1 {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	c.schedule(s)
	return nil
}

// readGoAway ends the streams of this side that the peer will not process.
func (c *Conn) readGoAway(f *http2.GoAwayFrame) {
	var unprocessed []*Stream
	c.mu.Lock()
	c.noNewStreams = true
	c.closeGoingAway()
	for id, s := range c.streams {
		if !c.isPeerStream(id) && id > f.LastStreamID {
			unprocessed = append(unprocessed, s)
		}
	}
	c.mu.Unlock()
	for _, s := range unprocessed {
		c.endStream(s.id, ErrGoingAway)
	}
}

// resetStream resets a stream and notifies its Receiver.
func (c *Conn) resetStream(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	if c.isPeerStream(id) {
		c.lastPeerID = max(c.lastPeerID, id) // the stream may be new
	}
	c.replyReset(id, code)
	c.mu.Unlock()
	c.endStream(id, http2.StreamError{StreamID: id, Code: code})
}

// endStream removes a stream that has been reset and notifies its Receiver.
func (c *Conn) endStream(id uint32, err error) {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		c.mu.Unlock()
		return
	}
	unsent := s.discardQueue()
	c.remove(s)
	c.mu.Unlock()
	releaseAll(unsent)
	s.receiver.Ended(s, err)
}
