package bench

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
)

// What the destination is to a connection is said by its first byte.
const (
	sink   = 's' // reads
	source = 'o' // writes
	echo   = 'e'
)

const (
	chunk           = 32 << 10 // bytes in a write, as of io.Copy
	targetListeners = 3
	firstListenerFD = 3 // the descriptor
	connected       = '+'
)

type netDialFunc func(network, address string) (net.Conn, error)

// RunTarget is the other half of Run, in a process of its own: the destination, and two relays in a row before it, with plain TCP or
// TLS (of cert, a file) between them. It has listeners that it inherits, until in is closed.
func RunTarget(cert string, in io.Reader) error {
	pair, err := tls.LoadX509KeyPair(cert, cert)
	if err != nil {
		return err
	}
	var l [targetListeners]net.Listener
	for i := range l {
		if l[i], err = net.FileListener(os.NewFile(uintptr(firstListenerFD+i), "listener")); err != nil {
			return fmt.Errorf("no listener is inherited; the bench itself starts this: %w", err)
		}
	}
	go accept(l[0], serveTarget)
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true} // whose certificate it is costs the same to know or not
	for i, config := range []*tls.Config{nil, secure} {
		middle, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		address, dial := middle.Addr().String(), net.Dial
		if config != nil {
			middle = tls.NewListener(middle, config)
			dial = func(network, address string) (net.Conn, error) { return tls.Dial(network, address, config) }
		}
		go accept(l[1+i], func(c net.Conn) { relay(c, dial, address, nil) })
		go accept(middle, func(c net.Conn) { relay(c, net.Dial, l[0].Addr().String(), []byte{connected}) })
	}
	_, err = io.Copy(io.Discard, in)
	return err
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
func relay(near net.Conn, dial netDialFunc, address string, hello []byte) {
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

func serveTarget(c net.Conn) {
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
