package h2

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
)

// lastRecord is how many bytes surely go into one record: crypto/tls begins with small ones.
const lastRecord = 1 << 10

// NewTLSListener returns a listener of TLS, whose connections are for NewServer.
func NewTLSListener(l net.Listener, config *tls.Config) net.Listener {
	return tls.NewListener(recordsListener{l}, config)
}

// NewTLSClient agrees on TLS over a connection, which it takes. What it returns is for NewClient.
func NewTLSClient(ctx context.Context, conn net.Conn, config *tls.Config) (net.Conn, error) {
	secured := tls.Client(&records{Conn: conn}, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

type recordsListener struct{ net.Listener }

// Accept implements net.Listener.
func (l recordsListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &records{Conn: conn}, nil
}

// records are a connection under TLS, which writes each record of at most 16 KiB by a system call of its own. That costs more than to
// encrypt it: here those of a batch go out by one.
type records struct {
	net.Conn
	hold atomic.Bool // until the record after it is cleared
	held *[]byte     // TLS has one write at a time
}

// Write implements net.Conn.
func (r *records) Write(p []byte) (int, error) {
	hold := r.hold.Load()
	if r.held == nil && !hold {
		return r.Conn.Write(p)
	}
	if r.held == nil {
		r.held = outs.Get().(*[]byte)
	}
	*r.held = append(*r.held, p...)
	if hold {
		return len(p), nil
	}
	_, err := r.Conn.Write(*r.held)
	release(r.held)
	r.held = nil
	return len(p), err
}

// writeBatch writes to a connection, and to the system at once if that is TLS over records.
func writeBatch(wire net.Conn, out []byte) error {
	if secured, ok := wire.(*tls.Conn); ok {
		if r, ok := secured.NetConn().(*records); ok && len(out) > lastRecord {
			if err := secured.Handshake(); err != nil { // which is not to be held
				return err
			}
			r.hold.Store(true)
			_, err := secured.Write(out[:len(out)-lastRecord])
			if r.hold.Store(false); err != nil {
				return err
			}
			out = out[len(out)-lastRecord:]
		}
	}
	_, err := wire.Write(out)
	return err
}
