package konnectivity_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// KON-004 KON-005 KON-007 KON-008 KON-043 KON-044 KON-050 KON-051: every server with every agent, over every transport, by every client:
// users see no difference.
func TestMatrix(t *testing.T) {
	for _, tr := range transports {
		for server, startServer := range map[string]func(testing.TB, *pki, transport) *tunnelServer{"our server": ourServer, "the reference's server": referenceServer} {
			for agent, startAgent := range map[string]func(testing.TB, *pki, string) (open func() int){
				"our agent": func(t testing.TB, p *pki, address string) func() int { return ourAgent(t, p, address).ConnCount },
				"the reference's agent": func(t testing.TB, p *pki, address string) func() int {
					referenceAgent(t, p, address)
					return func() int { return 0 }
				},
			} {
				for client, front := range map[string]func(testing.TB, *pki, transport, string) dialer{"our client": ourFront, "the reference's client": referenceFront} {
					t.Run(strings.Join([]string{tr.String(), server, agent, client}, ", "), func(t *testing.T) {
						p := newPKI(t)
						s := startServer(t, p, tr)
						open := startAgent(t, p, s.agents)
						dial := front(t, p, tr, s.front)
						until(t, "the server is ready", s.ready)
						nobodyListens(t, dial) // what is opened once is open
						rest := atRest(t)
						suite(t, dial, server, agent, client)
						soon(t, "the agent has nothing open", func() bool { return open() == 0 })
						if client == "our client" { // its own leaves connections to the garbage collector
							rest()
						}
						if s.ours != nil {
							atOnce(t, s.ours)
						}
					})
				}
			}
		}
	}
}

// lingers is less than how long anything is left to itself at the end of a connection, and more than it takes to end.
const lingers = 20 * time.Second

// soon waits for something to become true while nothing that lingers ends.
func soon(t testing.TB, what string, true func() bool) {
	t.Helper()
	began := time.Now()
	if until(t, what, true); time.Since(began) > lingers {
		t.Errorf("only after %v: %s", time.Since(began), what)
	}
}

// atOnce has a server shut down that has nothing open, and so does not wait.
func atOnce(t testing.TB, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lingers)
	defer cancel()
	if s.Shutdown(ctx); ctx.Err() != nil {
		t.Error("the server waits for a connection that nobody has")
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
		"what is written ends":         writtenEnds,
		"many that end":                manyEnd,
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

// writtenEnds: after the end of what is written there is an end of what is read, be it an error where halves are not known.
func writtenEnds(t *testing.T, dial dialer) {
	conn := open(t, dial, serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}))
	defer conn.Close()
	_, _ = conn.Write([]byte("x"))
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return // the reference's client knows none
	}
	_ = half.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it does not end")
	}
}

// manyEnd ends connections by either end, and by both.
func manyEnd(t *testing.T, dial dialer) {
	says := serve(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = io.WriteString(c, "0123456789")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	})
	hears := serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	for range 10 {
		conn := open(t, dial, says)
		_, _ = conn.Write([]byte("x"))
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
		conn = open(t, dial, hears)
		_, _ = conn.Write([]byte("x"))
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.Close()
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
