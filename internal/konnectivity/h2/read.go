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

// read reads the connection until it ends, and returns why.
func (c *Conn) read() error {
	_ = c.wire.SetReadDeadline(time.Now().Add(handshakeTime))
	if !c.client {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(c.in, preface); err != nil {
			return err
		}
		if string(preface) != http2.ClientPreface {
			return fmt.Errorf("%w: it says %q", ErrNotHTTP2, preface)
		}
	} else if said, _ := c.in.Peek(len("HTTP")); string(said) == "HTTP" { // the length of no frame
		line, _ := c.in.ReadSlice('\n') // no more than is read ahead
		return fmt.Errorf("%w: it answers %q", ErrNotHTTP2, bytes.TrimSpace(line))
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
			_ = c.wire.SetReadDeadline(time.Time{})
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.breakOff(broken.StreamID, broken.Code)
			err = nil
		}
		if err != nil {
			c.sayWhy(err)
			return err
		}
	}
}

// sayWhy tells the other side what it has done wrong. Whether it hears it before the connection is closed does not matter.
func (c *Conn) sayWhy(err error) {
	var code http2.ConnectionError
	if !errors.As(err, &code) {
		return
	}
	var frame []byte
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	_ = http2.NewFramer(sink{&frame}, nil).WriteGoAway(last, http2.ErrCode(code), nil)
	_ = c.wire.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.wire.Write(frame)
}

// readFrame reads the rest of a frame, and does what it says.
func (c *Conn) readFrame(h http2.FrameHeader) error {
	c.heard.Store(now())
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
		return c.readWindow(f)
	case *http2.RSTStreamFrame:
		c.end(f.StreamID, reason(f))
	case *http2.PingFrame:
		if !f.IsAck() {
			c.mu.Lock()
			c.answer(func() error { return c.out.WritePing(true, f.Data) })
			c.mu.Unlock()
		}
	case *http2.GoAwayFrame:
		c.readGoAway(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // priorities, and frames that nobody knows
}

// reason is why the other side has broken a stream off.
func reason(f *http2.RSTStreamFrame) error {
	if f.ErrCode == http2.ErrCodeRefusedStream {
		return ErrRefused
	}
	return http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode}
}

// readData reads the payload of a DATA frame into a Buffer of its own.
func (c *Conn) readData(h http2.FrameHeader) error {
	b := NewBuffer(int(h.Length))
	if _, err := io.ReadFull(c.in, b.Bytes()); err != nil {
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
	s, err := c.receive(h.StreamID, h.Length, end)
	if s == nil {
		b.Release()
		return err
	}
	if b.Owe(s, int(h.Length)); b.Len() == 0 {
		b.Release()
		b = nil
	}
	s.receiver.Data(s, b, end)
	return nil
}

// receive counts what has arrived for a stream; nil: it has been given up.
func (c *Conn) receive(id, n uint32, end bool) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if grant := c.flight.land(int64(n)); grant > 0 {
		_ = c.out.WriteWindowUpdate(0, uint32(grant))
		c.work.Signal()
	}
	s := c.streams[id]
	switch {
	case s == nil && c.isIdle(id):
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil, nil
	case s.over:
		return nil, http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case int64(n) > int64(s.left):
		return nil, http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	}
	s.left -= int32(n)
	s.held += int32(n)
	if end {
		s.over = true
		c.forget(s)
	}
	return s, nil
}

// isIdle says that a stream has never been opened.
func (c *Conn) isIdle(id uint32) bool {
	if c.isTheirs(id) {
		return id == 0 || id > c.last
	}
	return id == 0 || id >= c.next
}

func (c *Conn) readHeader(f *http2.MetaHeadersFrame) error {
	if f.Truncated {
		c.breakOff(f.StreamID, http2.ErrCodeEnhanceYourCalm)
		return nil
	}
	c.mu.Lock()
	s := c.streams[f.StreamID]
	switch {
	case s != nil && s.over:
		c.mu.Unlock()
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	case s != nil:
		if f.StreamEnded() {
			s.over = true
			c.forget(s)
		}
		c.mu.Unlock()
		s.receiver.Header(s, f.Fields, f.StreamEnded())
		return nil
	case !c.isIdle(f.StreamID):
		c.mu.Unlock()
		return nil // it has been given up
	case !c.isTheirs(f.StreamID):
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.last = f.StreamID
	if f.StreamID > c.until { // it has been told that this is not taken
		c.mu.Unlock()
		return nil
	}
	if c.options.Accept == nil || c.options.MaxStreams > 0 && c.theirs >= c.options.MaxStreams {
		c.reset(f.StreamID, http2.ErrCodeRefusedStream)
		c.mu.Unlock()
		return nil
	}
	s = &Stream{conn: c, id: f.StreamID, receiver: Unserved{}, window: c.peer.window, size: initialWindow, left: initialWindow, over: f.StreamEnded()}
	c.streams[s.id] = s
	c.theirs++
	c.mu.Unlock()
	if c.accept(s, f.Fields); f.StreamEnded() {
		s.receiver.Data(s, nil, true)
	}
	return nil
}

// accept asks who receives what arrives.
func (c *Conn) accept(s *Stream, header []hpack.HeaderField) {
	r := c.options.Accept(s, header)
	if r == nil {
		c.breakOff(s.id, http2.ErrCodeRefusedStream)
		return
	}
	c.mu.Lock()
	s.receiver = r
	c.mu.Unlock()
}

// Unserved is the Receiver of a stream that nobody serves: what arrives is dropped.
type Unserved struct{}

// Header implements Receiver.
func (Unserved) Header(*Stream, []hpack.HeaderField, bool) {}

// Data implements Receiver.
func (Unserved) Data(_ *Stream, b *Buffer, _ bool) { b.Release() }

// Ended implements Receiver.
func (Unserved) Ended(*Stream, error) {}

func (c *Conn) readSettings(f *http2.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if asked := c.asked.Load(); asked != 0 {
			c.flight.roundTrip = time.Duration(now() - asked)
		}
		return nil
	}
	window := c.peer.window
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			window = int64(s.Val)
		case http2.SettingMaxFrameSize:
			c.peer.frame = int(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.peer.maxStreams = s.Val
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(min(s.Val, 4096))
		case SettingTunnel:
			c.peer.tunnel = s.Val == 1
		}
		return nil
	})
	c.answer(c.out.WriteSettingsAck)
	if err != nil {
		return err
	}
	return c.resize(window - c.peer.window)
}

// resize changes the windows of all streams (RFC 9113, 6.9.2).
func (c *Conn) resize(by int64) error {
	c.peer.window += by
	for _, s := range c.streams {
		if s.window += by; s.window > 1<<31-1 {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.ready(s)
	}
	return nil
}

func (c *Conn) readWindow(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > 1<<31-1 {
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
	if s.window += int64(f.Increment); s.window > 1<<31-1 {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl}
	}
	c.ready(s)
	return nil
}

// readGoAway ends the streams of this side that the other has not taken up.
func (c *Conn) readGoAway(f *http2.GoAwayFrame) {
	var lost []*Stream
	c.mu.Lock()
	c.away = true
	c.leave()
	for id, s := range c.streams {
		if !c.isTheirs(id) && id > f.LastStreamID {
			lost = append(lost, s)
		}
	}
	c.mu.Unlock()
	for _, s := range lost {
		c.end(s.id, ErrGoingAway)
	}
}

// breakOff resets a stream, and tells its Receiver.
func (c *Conn) breakOff(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	if c.isTheirs(id) {
		c.last = max(c.last, id) // it may be the first that is heard of it
	}
	c.reset(id, code)
	c.mu.Unlock()
	c.end(id, http2.StreamError{StreamID: id, Code: code})
}

// end ends a stream that is broken off.
func (c *Conn) end(id uint32, err error) {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		c.mu.Unlock()
		return
	}
	unsent := s.drop()
	c.remove(s)
	c.mu.Unlock()
	releaseAll(unsent)
	s.receiver.Ended(s, err)
}
