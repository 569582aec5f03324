package bench

import (
	"crypto/tls"
	"io"
	"net"
)

// What the destination is to a connection is said by its first byte.
const (
	sink   = 's' // reads
	source = 'o' // writes
	echo   = 'e'
)

const (
	chunk     = 32 << 10 // bytes in a write, as of io.Copy
	connected = '+'
)

type dialFunc func(network, address string) (net.Conn, error)

// startFar serves what is behind the tunnels: the destination, and two relays in a row before it, with plain TCP or TLS between them.
func (b *bed) startFar() error {
	pair, err := tls.LoadX509KeyPair(b.cert, b.cert)
	if err != nil {
		return err
	}
	target, err := b.serve(nil, destination)
	if err != nil {
		return err
	}
	b.far = []string{target}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true} // whose certificate it is costs the same to know or not
	for _, config := range []*tls.Config{nil, secure} {
		middle, err := b.serve(config, func(c net.Conn) { relay(c, net.Dial, target, []byte{connected}) })
		if err != nil {
			return err
		}
		dial := net.Dial
		if config != nil {
			dial = func(network, address string) (net.Conn, error) { return tls.Dial(network, address, config) }
		}
		first, err := b.serve(nil, func(c net.Conn) { relay(c, dial, middle, nil) })
		if err != nil {
			return err
		}
		b.far = append(b.far, first)
	}
	return nil
}

// serve handles connections, of TLS unless config is nil, until the end of the bench.
func (b *bed) serve(config *tls.Config, handle func(net.Conn)) (address string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	b.listeners = append(b.listeners, l)
	if config != nil {
		l = tls.NewListener(l, config)
	}
	go accept(l, handle)
	return l.Addr().String(), nil
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// relay copies both ways until either side ends. hello goes back once the far side is connected.
func relay(near net.Conn, dial dialFunc, address string, hello []byte) {
	far, err := dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	if _, err := near.Write(hello); err != nil {
		return
	}
	go func() {
		defer far.Close()
		_, _ = io.Copy(far, near)
	}()
	_, _ = io.Copy(near, far)
}

func destination(c net.Conn) {
	role := make([]byte, 1)
	_, _ = io.ReadFull(c, role)
	switch role[0] {
	case sink:
		_, _ = io.Copy(io.Discard, c)
	case source:
		repeat(c.Write, func(int) {})
	case echo:
		_, _ = io.Copy(c, c)
	}
}

// repeat reads or writes until that fails.
func repeat(f func([]byte) (int, error), count func(int)) {
	for data := make([]byte, chunk); ; {
		n, err := f(data)
		if count(n); err != nil {
			return
		}
	}
}
