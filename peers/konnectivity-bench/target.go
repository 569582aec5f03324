package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
)

// The first byte of a connection selects the target's role.
const (
	sink   = 's' // reads and discards
	source = 'o' // writes
	echo   = 'e' // writes the received data back
)

const (
	chunk           = 32 << 10 // bytes of a write, as in io.Copy
	targetListeners = 3
	firstListenerFD = 3   // descriptor of the first inherited listener
	connected       = '+' // sent by the last relay when it has connected to the target
)

type netDialFunc func(network, address string) (net.Conn, error)

// runTarget serves the target of the measurements, in a process started by runBenchmark. The target consists of a
// destination and two chains of two relays that lead to the destination. The relays of one chain use plain TCP,
// those of the other chain use TLS between them. cert is a file with the certificate for TLS. runTarget inherits
// its listeners and returns when in is closed.
func runTarget(cert string, in io.Reader) error {
	certificate, err := tls.LoadX509KeyPair(cert, cert)
	if err != nil {
		return err
	}
	var listeners [targetListeners]net.Listener
	for i := range listeners {
		if listeners[i], err = net.FileListener(os.NewFile(uintptr(firstListenerFD+i), "listener")); err != nil {
			return fmt.Errorf("no listeners inherited (only konnectivity-bench starts this command): %w", err)
		}
	}
	go accept(listeners[0], serveTarget)
	// Verification of the certificate is off, because it would not change the measured cost.
	tlsConfig := &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true}
	for i, config := range []*tls.Config{nil, tlsConfig} {
		middle, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		address, dial := middle.Addr().String(), net.Dial
		if config != nil {
			middle = tls.NewListener(middle, config)
			dial = func(network, address string) (net.Conn, error) { return tls.Dial(network, address, config) }
		}
		go accept(listeners[1+i], func(c net.Conn) { relay(c, dial, address, nil) })
		go accept(middle, func(c net.Conn) { relay(c, net.Dial, listeners[0].Addr().String(), []byte{connected}) })
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

// relay copies data in both directions until one side ends. When it has connected to address, it first writes
// hello to the client.
func relay(client net.Conn, dial netDialFunc, address string, hello []byte) {
	server, err := dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	if _, err := client.Write(hello); err != nil {
		return
	}
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	_, _ = io.Copy(client, server)
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

// repeat calls the function f, which reads or writes, until f fails. It passes the number of bytes of each call to
// the function count.
func repeat(f func([]byte) (int, error), count func(int)) {
	for data := make([]byte, chunk); ; {
		n, err := f(data)
		if count(n); err != nil {
			return
		}
	}
}
