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

// TestMatrix runs the same tests with every combination of server, agent, client and transport (KON-004,
// KON-005, KON-007, KON-008, KON-043, KON-044, KON-050, KON-051).
func TestMatrix(t *testing.T) {
	for _, tr := range transports {
		for server, startServer := range map[string]func(testing.TB, *pki, transport) *tunnelServer{
			"Trellis server": startTrellisServer, "reference server": startReferenceServer,
		} {
			for agent, startAgent := range map[string]func(testing.TB, *pki, string) (open func() int){
				"Trellis agent": func(t testing.TB, p *pki, address string) func() int {
					return connectTrellisAgent(t, p, address).ConnCount
				},
				"reference agent": func(t testing.TB, p *pki, address string) func() int {
					startReferenceAgent(t, p, address)
					return func() int { return 0 }
				},
			} {
				for client, newDialer := range map[string]func(testing.TB, *pki, transport, string) dialer{
					"Trellis client": trellisClient, "reference client": referenceClient,
				} {
					t.Run(strings.Join([]string{tr.String(), server, agent, client}, ", "), func(t *testing.T) {
						p := newPKI(t)
						s := startServer(t, p, tr)
						open := startAgent(t, p, s.agents)
						dial := newDialer(t, p, tr, s.frontend)
						waitFor(t, "the server is ready", s.ready)
						connectionRefused(t, dial) // opens the client's connection before leakCheck
						noLeaks := leakCheck(t)
						checkTunnel(t, dial, server, agent, client)
						waitPromptly(t, "the agent has no open connections", func() bool { return open() == 0 })
						// the reference client closes connections only by garbage collection
						if client == "Trellis client" {
							noLeaks()
						}
						if s.trellis != nil {
							shutDownPromptly(t, s.trellis)
						}
					})
				}
			}
		}
	}
}

// promptLimit is shorter than any timeout at the end of a connection, and longer than a normal end takes.
const promptLimit = 20 * time.Second

// waitPromptly waits for a condition, and fails the test if this takes longer than promptLimit.
func waitPromptly(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	began := time.Now()
	if waitFor(t, condition, holds); time.Since(began) > promptLimit {
		t.Errorf("condition met only after %v: %s", time.Since(began), condition)
	}
}

// shutDownPromptly shuts down a server that has no open connections. It fails the test if this takes longer than
// promptLimit.
func shutDownPromptly(t testing.TB, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), promptLimit)
	defer cancel()
	if s.Shutdown(ctx); ctx.Err() != nil {
		t.Error("the server waits although no connection is open")
	}
}

// checkTunnel runs all tests that this combination supports.
func checkTunnel(t *testing.T, dial dialer, server, agent, client string) {
	tests := map[string]func(*testing.T, dialer){
		"many connections":            manyConnections,
		"connection refused":          connectionRefused,
		"the destination closes":      destinationCloses,
		"the client closes":           clientCloses,
		"a cancelled dial":            cancelledDial,
		"the destination sends first": destinationSendsFirst,
		"half-close":                  halfClose,
		"the end after CloseWrite":    endAfterCloseWrite,
		"many closes":                 manyCloses,
	}
	if client != "Trellis client" || server != "Trellis server" {
		delete(tests, "the destination sends first") // the reference client drops, and its server corrupts, early data
	}
	if agent != "Trellis agent" {
		delete(tests, "the client closes") // the reference agent drops queued data
	}
	if server != "Trellis server" || agent != "Trellis agent" || client != "Trellis client" {
		delete(tests, "half-close")
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, dial) })
	}
}

func mustDial(t *testing.T, dial dialer, address string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	conn, err := dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func randomBytes(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return p
}

// manyConnections echoes data on many connections at the same time.
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
			data := randomBytes(rand.IntN(1 << 20))
			go func() { _, _ = conn.Write(data) }()
			got := make([]byte, len(data))
			if n, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, data) {
				t.Errorf("received %d of %d bytes, error %v", n, len(data), err)
			}
			_ = conn.Close()
		})
	}
	all.Wait()
}

func connectionRefused(t *testing.T, dial dialer) {
	_, err := dial(t.Context(), "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got error %v, want connection refused", err)
	}
}

func destinationCloses(t *testing.T, dial dialer) {
	data := randomBytes(300_000)
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write(data)
		_ = c.Close()
	}))
	defer conn.Close()
	if _, err := conn.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
		t.Errorf("received %d of %d bytes, error %v", len(got), len(data), err)
	}
}

func clientCloses(t *testing.T, dial dialer) {
	data := randomBytes(300_000)
	got := make(chan []byte, 1)
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
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
			t.Errorf("%d of %d bytes arrived", len(all), len(data))
		}
	case <-time.After(testTimeout):
		t.Error("the destination does not receive the end")
	}
}

// endAfterCloseWrite checks that reading ends after CloseWrite. Without support for half-closed connections, it
// may end with an error.
func endAfterCloseWrite(t *testing.T, dial dialer) {
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
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
		return // the reference client has no CloseWrite
	}
	_ = half.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("reading does not end after CloseWrite")
	}
}

// manyCloses closes connections on one side, on the other side, and on both sides.
func manyCloses(t *testing.T, dial dialer) {
	closesFirst := serve(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = io.WriteString(c, "0123456789")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	})
	closesSecond := serve(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	for range 10 {
		conn := mustDial(t, dial, closesFirst)
		_, _ = conn.Write([]byte("x"))
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
		conn = mustDial(t, dial, closesSecond)
		_, _ = conn.Write([]byte("x"))
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.Close()
	}
}

func cancelledDial(t *testing.T, dial dialer) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	conn, err := dial(ctx, "192.0.2.1:80") // reserved for documentation (RFC 5737): no response or unreachable
	if err == nil {
		_ = conn.Close()
		t.Error("connected to a documentation address")
	}
}

func destinationSendsFirst(t *testing.T, dial dialer) {
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0")
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}))
	defer conn.Close()
	got := make([]byte, 7)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "SSH-2.0" {
		t.Errorf("received %q, error %v", got, err)
	}
}

// halfClose checks that a destination can respond after the end of the request.
func halfClose(t *testing.T, dial dialer) {
	data := randomBytes(300_000)
	conn := mustDial(t, dial, serve(t, func(c net.Conn) {
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
		t.Errorf("received %d of %d bytes, error %v", len(got), len(data), err)
	}
}
