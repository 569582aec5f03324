package konnectivity_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// KON-004 KON-005 KON-007 KON-008 KON-043 KON-044 KON-050 KON-051: every server with every agent, over every transport, by every client:
// users see no difference.
func TestMatrix(t *testing.T) {
	for _, tr := range transports {
		for server, startServer := range map[string]func(testing.TB, *pki, transport) *tunnelServer{"our server": ourServer, "the reference's server": referenceServer} {
			for agent, startAgent := range map[string]func(testing.TB, *pki, string){
				"our agent":             func(t testing.TB, p *pki, address string) { ourAgent(t, p, address) },
				"the reference's agent": referenceAgent,
			} {
				for client, front := range map[string]func(testing.TB, *pki, transport, string) dialer{"our client": ourFront, "the reference's client": referenceFront} {
					t.Run(strings.Join([]string{tr.String(), server, agent, client}, ", "), func(t *testing.T) {
						p := newPKI(t)
						s := startServer(t, p, tr)
						startAgent(t, p, s.agents)
						dial := front(t, p, tr, s.front)
						until(t, "the server is ready", s.ready)
						suite(t, dial, server, agent, client)
					})
				}
			}
		}
	}
}

// suite is what every tunnel does, but for what the reference's programs do not.
func suite(t *testing.T, dial dialer, server, agent, client string) {
	tests := map[string]func(*testing.T, dialer){
		"many connections":             manyConnections,
		"nobody listens":               nobodyListens,
		"the destination closes":       destinationCloses,
		"the client closes":            clientCloses,
		"a dial that is given up":      dialGivenUp,
		"the destination speaks first": speaksFirst,
		"half-close":                   halfClose,
	}
	if client != "our client" || server != "our server" {
		delete(tests, "the destination speaks first") // its client drops, and its server garbles, what comes right after the connection
	}
	if agent != "our agent" {
		delete(tests, "the client closes") // its agent drops what it has not written by then
	}
	if server != "our server" || agent != "our agent" || client != "our client" {
		delete(tests, "half-close")
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, dial) })
	}
}

func open(t *testing.T, dial dialer, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func noise(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return p
}

// manyConnections sends data there and back on many at once.
func manyConnections(t *testing.T, dial dialer) {
	echo := serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			conn, err := dial(t.Context(), echo)
			if err != nil {
				t.Error(err)
				return
			}
			data := noise(rand.IntN(1 << 20))
			go func() { _, _ = conn.Write(data) }()
			got := make([]byte, len(data))
			if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes of %d came back, %v", n, len(data), err)
			}
			_ = conn.Close()
		})
	}
	all.Wait()
}

func nobodyListens(t *testing.T, dial dialer) {
	_, err := dial(t.Context(), "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

func destinationCloses(t *testing.T, dial dialer) {
	data := noise(300_000)
	conn := open(t, dial, serve(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write(data)
		_ = c.Close()
	}))
	defer conn.Close()
	if _, err := conn.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}

func clientCloses(t *testing.T, dial dialer) {
	data := noise(300_000)
	got := make(chan []byte, 1)
	conn := open(t, dial, serve(t, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		got <- all
		_ = c.Close()
	}))
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	select {
	case all := <-got:
		if !bytes.Equal(all, data) {
			t.Errorf("%d bytes of %d arrived", len(all), len(data))
		}
	case <-time.After(patience):
		t.Error("the destination does not see the end")
	}
}

func dialGivenUp(t *testing.T, dial dialer) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	conn, err := dial(ctx, "192.0.2.1:80") // for documentation, RFC 5737: nobody answers, or the network says that it is not there
	if err == nil {
		_ = conn.Close()
		t.Error("connected to nobody")
	}
}

func speaksFirst(t *testing.T, dial dialer) {
	conn := open(t, dial, serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0")
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}))
	defer conn.Close()
	got := make([]byte, 7)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "SSH-2.0" {
		t.Errorf("%q, %v", got, err)
	}
}

// halfClose: what is asked has an end, after which there is an answer.
func halfClose(t *testing.T, dial dialer) {
	data := noise(300_000)
	conn := open(t, dial, serve(t, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		_, _ = c.Write(all)
		_ = c.Close()
	}))
	defer conn.Close()
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}
