package robustness_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// readResponse reads up to 1 MiB from a connection until the connection is closed or the time in wait has passed.
func readResponse(c net.Conn, wait time.Duration) string {
	_ = c.SetReadDeadline(time.Now().Add(wait))
	data, _ := io.ReadAll(io.LimitReader(c, 1<<20))
	return string(data)
}

// TestMalformedHTTP checks the status of malformed, oversized and truncated HTTP/1.1 requests.
func TestMalformedHTTP(t *testing.T) {
	f := newFixture(t)
	get := "GET " + configMapPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	post := "POST " + configMapsPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
	body := `{"metadata":{"name":"smuggled"}}`
	for _, c := range []struct{ name, request, want string }{
		{"plain", get + "\r\n", "HTTP/1.1 200 "},
		{"TLS bytes", "\x16\x03\x01\x00\r\n\r\n", "HTTP/1.1 400 "},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
		{"an old version", "GET / HTTP/0.9\r\n\r\n", "HTTP/1.1 505 "},
		{"one header of 2 MiB", get + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", "HTTP/1.1 431 "},
		{"too many headers", get + strings.Repeat("X: y\r\n", 400_000) + "\r\n", "HTTP/1.1 431 "},
		{"100,000 headers", get + strings.Repeat("X: y\r\n", 100_000) + "\r\n", "HTTP/1.1 200 "},
		{"40,000 impersonated groups", get + strings.Repeat("Impersonate-Group: g\r\n", 40_000) + "\r\n", "HTTP/1.1 "},
		{"a request line of 2 MiB", "GET /" + strings.Repeat("x", 2<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n",
			"HTTP/1.1 431 "},
		{"NUL in a header", get + "X: \x00\r\n\r\n", "HTTP/1.1 400 "},
		{"space before a colon", get + "X : y\r\n\r\n", "HTTP/1.1 400 "},
		{"two slashes", strings.Replace(get, "/api", "//api", 1) + "\r\n", "HTTP/1.1 404 "},
		{"a path without a slash", "GET api/v1/namespaces HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 400 "},
		{"an absolute URL", "GET http://elsewhere" + configMapPath +
			" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 "},
		{"two lengths", post + "Content-Length: 32\r\nContent-Length: 5\r\n\r\n" + body, "HTTP/1.1 400 "},
		{"a negative length", post + "Content-Length: -1\r\n\r\n" + body, "HTTP/1.1 400 "},
		{"an unknown transfer coding", post + "Transfer-Encoding: gzip\r\n\r\n" + body, "HTTP/1.1 501 "},
		{"a bad chunk", post + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n" + body, "HTTP/1.1 400 "},
		{"a huge chunk", post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + body, "HTTP/1.1 400 "},
		{"a length above the limit", post + "Content-Length: 99999999999\r\n\r\n" + body, "HTTP/1.1 413 "},
		{"a body shorter than its length", post + "Content-Length: 100\r\n\r\n" + body, "HTTP/1.1 400 "},
		{"an unknown expectation", post + "Expect: everything\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 417 "},
		{"an upgrade to h2c", get + "Upgrade: h2c\r\n\r\n", "HTTP/1.1 200 "},
	} {
		conn := f.dial("http/1.1")
		go func() {
			_, _ = io.WriteString(conn, c.request)
			_ = conn.CloseWrite()
		}()
		if got := readResponse(conn, timeout); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, abbreviate(got), c.want)
		}
		_ = conn.Close()
	}
	f.checkUnchanged()
}

// TestSlowClients checks that hundreds of connections with incomplete requests do not delay another client.
func TestSlowClients(t *testing.T) {
	f := newFixture(t)
	var conns []net.Conn
	for _, prefix := range []string{
		"", "GET / HTTP/1.1\r\nX: ",
		"POST " + configMapsPath + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
			"1000\r\n\r\n{\"metadata\":",
		"POST " + configMapsPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\"",
		"GET " + configMapPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
		"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
	} {
		for range 30 {
			c := f.dial("http/1.1")
			_, _ = io.WriteString(c, prefix)
			conns = append(conns, c)
		}
	}
	for range 100 {
		c, err := net.Dial("tcp", f.host)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	start := time.Now()
	f.mustSend(http.MethodGet, configMapPath, "", "")
	if elapsed := time.Since(start); elapsed > timeout/2 {
		t.Errorf("GET of another client took %v, want at most %v", elapsed, timeout/2)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	f.checkUnchanged()
}

// dialHTTP2 opens an HTTP/2 connection and sends the settings.
func (f *fixture) dialHTTP2(settings ...http2.Setting) (net.Conn, *http2.Framer) {
	f.t.Helper()
	c := f.dial("h2")
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		f.t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	framer.AllowIllegalWrites = true
	if err := framer.WriteSettings(settings...); err != nil {
		f.t.Fatal(err)
	}
	return c, framer
}

// headerBlock encodes the headers of a GET request. The headers x-0, x-1 and so on have the given values.
func headerBlock(path string, values ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "x"}, {":path", path}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	for i, v := range values {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: v})
	}
	return b.Bytes()
}

// discardFrames reads and discards frames until the connection fails, then closes it.
func discardFrames(c net.Conn, framer *http2.Framer) {
	for {
		if _, err := framer.ReadFrame(); err != nil {
			_ = c.Close()
			return
		}
	}
}

// TestHTTP2FrameFloods checks that floods of frames and malformed frames stop neither the server nor another client.
// The attacks are CVE-2023-44487 and CVE-2023-39325 (rapid reset), CVE-2023-45288 (continuation), CVE-2019-9512 and
// CVE-2019-9515 (pings and settings), CVE-2019-9514 (resets) and CVE-2022-41723 (a header in many frames).
func TestHTTP2FrameFloods(t *testing.T) {
	f := newFixture(t)
	var attacks sync.WaitGroup
	for name, attack := range map[string]func(c net.Conn, framer *http2.Framer){
		"endless continuation": func(c net.Conn, framer *http2.Framer) {
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock(configMapPath),
				EndStream: true})
			for range 5_000 {
				if framer.WriteContinuation(1, false, []byte{0x40, 1, 'a', 1, 'b'}) != nil {
					return
				}
			}
		},
		"rapid reset": func(c net.Conn, framer *http2.Framer) {
			block := headerBlock(configMapsPath)
			for i := range uint32(5_000) {
				if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block,
					EndHeaders: true, EndStream: true}) != nil ||
					framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
					return
				}
			}
		},
		"a flood of settings and pings": func(c net.Conn, framer *http2.Framer) {
			for range 5_000 {
				if framer.WriteSettings() != nil || framer.WritePing(false, [8]byte{}) != nil {
					return
				}
			}
		},
		"a flood of pings, responses unread": func(_ net.Conn, framer *http2.Framer) {
			for range 20_000 {
				if framer.WritePing(false, [8]byte{}) != nil {
					return
				}
			}
		},
		"a flood of resets, responses unread": func(_ net.Conn, framer *http2.Framer) {
			// A header name with a capital letter is invalid in HTTP/2, so the server resets the stream.
			block := append(headerBlock(configMapPath), 0, 1, 'A', 1, 'b')
			for i := range uint32(20_000) {
				if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block,
					EndHeaders: true, EndStream: true}) != nil {
					return
				}
			}
		},
		"a header in many frames": func(_ net.Conn, framer *http2.Framer) {
			// 0x7f 0xff 0x7f encodes a value of 16,510 bytes, which is more than the frames contain.
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
				BlockFragment: append(headerBlock(configMapPath), 0, 1, 'a', 0x7f, 0xff, 0x7f), EndStream: true})
			for range 16_000 {
				if framer.WriteContinuation(1, false, []byte{'b'}) != nil {
					return
				}
			}
		},
		"headers of 2 MiB": func(c net.Conn, framer *http2.Framer) {
			block := headerBlock(configMapPath, strings.Repeat("y", 2<<20))
			for first := true; len(block) > 0; first = false {
				n := min(len(block), 16<<10)
				part, rest := block[:n], block[n:]
				if first {
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndStream: true})
				} else if framer.WriteContinuation(1, len(rest) == 0, part) != nil {
					return
				}
				block = rest
			}
		},
		"header bomb": func(c net.Conn, framer *http2.Framer) {
			// Each byte 0xbe refers to the same large entry of the dynamic table.
			block := append(headerBlock(configMapPath, strings.Repeat("y", 3000)),
				bytes.Repeat([]byte{0xbe}, 12<<10)...)
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true,
				EndStream: true})
		},
		"invalid bytes": func(c net.Conn, framer *http2.Framer) {
			_, _ = c.Write(bytes.Repeat([]byte{0xff}, 100_000))
		},
		"data on an unopened stream": func(c net.Conn, framer *http2.Framer) {
			_ = framer.WriteData(99, true,
				make([]byte, 10_000))
		},
		"window overflow": func(c net.Conn, framer *http2.Framer) {
			_ = framer.WriteWindowUpdate(0, 1<<31-1)
			_ = framer.WriteWindowUpdate(0, 1<<31-1)
		},
	} {
		c, framer := f.dialHTTP2()
		if !strings.HasSuffix(name, "unread") {
			attacks.Go(func() { discardFrames(c, framer) })
		}
		attack(c, framer)
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		f.mustSend(http.MethodGet, configMapPath, "", "")
		if strings.HasSuffix(name, "unread") {
			_ = c.Close()
		}
		if t.Failed() {
			t.Fatalf("the server failed after %s", name)
		}
	}
	attacks.Wait()
	f.checkUnchanged()
}

// TestZeroFlowControlWindow checks that a client with 100 streams and a flow control window of 0 does not block others.
func TestZeroFlowControlWindow(t *testing.T) {
	f := newFixture(t)
	c, framer := f.dialHTTP2(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range uint32(100) {
		path := configMapPath
		if i%2 > 0 {
			path = "/openapi/v2"
		}
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: headerBlock(path),
			EndHeaders: true, EndStream: true})
	}
	f.mustSend(http.MethodGet, configMapPath, "", "")
	_ = c.Close()
	f.checkUnchanged()
}

// TestClientsThatNeverRead checks watches and lists whose responses are not read. They do not block other clients,
// and use no more memory than the buffers of their connections.
func TestClientsThatNeverRead(t *testing.T) {
	f := newFixture(t)
	big := `{"data":{"x":"` + strings.Repeat("x", 200_000) + `"}}`
	for i := range 20 {
		f.mustSend(http.MethodPost, configMapsPath, asJSON, fmt.Sprintf(`{"metadata":{"name":"big-%d"},%s`, i, big[1:]))
	}
	var conns []net.Conn
	before := liveHeapBytes()
	for range 20 {
		for _, path := range []string{configMapsPath + "?watch=1", configMapsPath, configMapsPath + "?pretty=1",
			configMapsPath + "/big-1"} {
			c := f.dial("http/1.1")
			_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
			conns = append(conns, c)
		}
	}
	for i := range 60 {
		f.mustSend(http.MethodPatch, fmt.Sprintf("%s/big-%d", configMapsPath, i%20), asMerge,
			fmt.Sprintf(`{"data":{"y":"%d"}}`, i))
	}
	if grown := liveHeapBytes() - before; grown > 300<<20 {
		t.Errorf("clients that do not read use %d MiB of heap, want at most 300", grown>>20)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	f.waitForGoroutines()
}

// TestManyWatches checks that thousands of closed watches leave no goroutines and little memory.
func TestManyWatches(t *testing.T) {
	f := newFixture(t)
	client := f.newClient(true)
	client.Timeout = 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := liveHeapBytes()
	count := 5000
	if testing.Short() {
		count = 500
	}
	bodies := make(chan io.ReadCloser, count)
	var opening sync.WaitGroup
	for i := range 50 {
		path := []string{configMapsPath, cronTabsPath, "/api/v1/secrets", "/api/v1/namespaces"}[i%4] +
			"?watch=1&allowWatchBookmarks=true"
		opening.Go(func() {
			for range count / 50 {
				r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+f.host+path, nil)
				resp, err := client.Do(r)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("watch: got response %v, error %v", resp, err)
					return
				}
				bodies <- resp.Body
			}
		})
	}
	opening.Wait()
	close(bodies)
	f.mustSend(http.MethodPatch, configMapPath, asMerge, `{"data":{"a":"c"}}`)
	cancel()
	for b := range bodies {
		_ = b.Close()
	}
	f.waitForGoroutines()
	if grown := liveHeapBytes() - before; grown > 16<<20 {
		t.Errorf("closed watches use %d MiB of heap, want at most 16", grown>>20)
	}
}

// webSocketFrame returns a WebSocket frame. Its first byte is head, its length has 8 bytes, and its mask key is 0.
func webSocketFrame(head byte, mask bool, length uint64, payload string) []byte {
	b := []byte{head, 127}
	if mask {
		b[1] |= 0x80
	}
	b = binary.BigEndian.AppendUint64(b, length)
	if mask {
		b = append(b, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// TestMalformedWebSockets checks that malformed frames and handshakes of WebSockets do not affect the server.
func TestMalformedWebSockets(t *testing.T) {
	f := newFixture(t)
	handshake := "GET " + configMapsPath +
		"?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: " +
		"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for name, frames := range map[string][]byte{
		"unmasked":                     webSocketFrame(0x81, false, 3, "abc"),
		"reserved opcode":              webSocketFrame(0x83, true, 3, "abc"),
		"reserved bits":                webSocketFrame(0xf1, true, 3, "abc"),
		"too long":                     webSocketFrame(0x82, true, 1<<62, "abc"),
		"negative length":              webSocketFrame(0x82, true, 1<<63, "abc"),
		"a megabyte":                   webSocketFrame(0x82, true, 1<<20, strings.Repeat("x", 1<<20)),
		"a long ping":                  webSocketFrame(0x89, true, 1000, strings.Repeat("x", 1000)),
		"a ping in fragments":          webSocketFrame(0x09, true, 3, "abc"),
		"continuation without a start": webSocketFrame(0x80, true, 3, "abc"),
		"pings":                        bytes.Repeat([]byte{0x89, 0x80, 0, 0, 0, 0}, 20_000),
		"bad close":                    {0x88, 0x81, 0, 0, 0, 0, 1},
		"bad text":                     webSocketFrame(0x81, true, 1, "\xff"),
		"no frame":                     {},
	} {
		c := f.dial("http/1.1")
		_, _ = io.WriteString(c, handshake+"\r\n")
		r := bufio.NewReader(c)
		if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, " 101 ") {
			t.Fatalf("%s: got %q, error %v, want status 101", name, line, err)
		}
		go func() { _, _ = c.Write(frames) }()
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = io.Copy(io.Discard, r)
		_ = c.Close()
	}
	for name, change := range map[string][2]string{
		"version": {"Version: 13", "Version: 99"},
		"key":     {"dGhlIHNhbXBsZSBub25jZQ==", "x"},
		"no key":  {"Sec-WebSocket-Key", "X"},
		"method":  {"GET", "POST"},
	} {
		c := f.dial("http/1.1")
		_, _ = io.WriteString(c, strings.Replace(handshake, change[0], change[1], 1)+"Content-Length: 0\r\n\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		if !strings.HasPrefix(line, "HTTP/1.1 4") {
			t.Errorf("bad %s: got %q, want a status 4xx", name, line)
		}
		_ = c.Close()
	}
	f.checkUnchanged()
}
