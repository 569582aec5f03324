package aggregation_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/request/headerrequest"

	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/object"
)

func read(t *fixture.Env, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestDecodedPathIsForwarded checks that the backend receives the decoded path, which is the one that was authorized.
// X-Forwarded-Uri also contains it.
func TestDecodedPathIsForwarded(t *testing.T) {
	paths := make(chan [2]string, 1)
	server, ca := extension(t, func(_ http.ResponseWriter, r *http.Request) {
		paths <- [2]string{r.URL.EscapedPath(), r.Header.Get("X-Forwarded-Uri")}
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	const below = "/apis/wardle.example.com/v1alpha1/"
	for sent, want := range map[string][2]string{
		"flunders/x":                       {"flunders/x"},
		"flunders/x%2Fstatus":              {"flunders/x/status"},
		"flunders/x%2fstatus/":             {"flunders/x/status/"},
		"namespaces/a%2Fflunders/x":        {"namespaces/a/flunders/x"},
		"flunders/a%3Fb":                   {"flunders/a%3Fb"},
		"flunders/a%2523":                  {"flunders/a%2523"},
		"flunders/%C3%A9%20x":              {"flunders/%C3%A9%20x"},
		"flunders/%61%2E%2D":               {"flunders/a.-"},
		"flunders//x":                      {"flunders//x", "flunders/x"},
		"namespaces/a/flunders/x%2F%2Fy?a": {"namespaces/a/flunders/x//y", "namespaces/a/flunders/x/y"},
	} {
		resp, err := http.Get(e.served.URL + below + sent)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want[1] == "" {
			want[1] = want[0]
		}
		if got := <-paths; got != [2]string{below + want[0], below + want[1]} {
			t.Errorf("%s: forwarded as %q, want %q below %s", sent, got, want, below)
		}
	}
}

// restart starts a copy of a closed server at its address.
func restart(t *testing.T, like *httptest.Server, address string) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(like.Config.Handler)
	s.Listener.Close()
	s.Listener, s.TLS, s.EnableHTTP2 = l, like.TLS, true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// TestUserHeaders checks that the backend receives the user in headers that upstream's authenticator reads, together
// with a client certificate. The client's own identity headers and credentials are not forwarded. AGG-006, AGG-011,
// AGG-015 to AGG-018, AGG-020, AGG-030, AGG-058
func TestUserHeaders(t *testing.T) {
	var got *http.Request
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("Audit-Id", "another")
		w.Header().Set("Cache-Control", "public")
		w.Header().Set("Warning", `299 - "careful"`)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, r.Body)
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	req, err := http.NewRequest(http.MethodPost, e.served.URL+
		"/apis/wardle.example.com/v1alpha1/namespaces/a%2Fb/flunders?fieldManager=me", strings.NewReader("the body"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer secret", "X-Remote-User": "admin", "x-remote-group": "system:masters",
		"X-Remote-Extra-Scopes": "all", "X-Remote-Uid": "0",
		"Traceparent": "00-1-2-3", "Accept": "application/json",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body := read(e.Env, resp); resp.StatusCode != http.StatusTeapot || body != "the body" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	for name, want := range map[string]string{"Audit-Id": "the-audit-id", "Cache-Control": "public",
		"Warning": `299 - "careful"`} {
		if got := resp.Header[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q once", name, got, want)
		}
	}
	if got.URL.RequestURI() != "/apis/wardle.example.com/v1alpha1/namespaces/a/b/flunders?fieldManager=me" ||
		got.Header.Get("Traceparent") != "00-1-2-3" || got.Header.Get("Audit-Id") != "the-audit-id" {
		t.Errorf("%s %v", got.URL.RequestURI(), got.Header)
	}
	if got.Header.Get("Authorization") != "" {
		t.Error("the backend received the client's credentials")
	}
	if cn := got.TLS.PeerCertificates[0].Subject.CommonName; cn != "front-proxy-client" {
		t.Errorf("the client certificate is for %q", cn)
	}
	reader, err := headerrequest.New([]string{"X-Remote-User"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"},
		[]string{"X-Remote-Extra-"})
	if err != nil {
		t.Fatal(err)
	}
	identity, ok, err := reader.AuthenticateRequest(got)
	if err != nil || !ok || identity.User.GetName() != "jane" || identity.User.GetUID() != "7" ||
		!slices.Equal(identity.User.GetGroups(), []string{"dev", "ops"}) ||
		len(identity.User.GetExtra()) != 1 || !slices.Equal(identity.User.GetExtra()["example.com/what%"],
		[]string{"a", "b"}) {
		t.Errorf("%+v %v %v", identity, ok, err)
	}
}

// TestCVE20223172 checks that a redirect of a backend is rejected, because clients would send their credentials to the
// target of the redirect.
func TestCVE20223172(t *testing.T) {
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://evil.example.com", http.StatusFound)
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusBadGateway,
		"the backend attempted to redirect this request, which is not permitted")
}

// TestStream checks that data in both directions is forwarded at once, before the sender sends more. It covers lines
// of a watch, responses of unknown length, large bodies and trailers. TestUpgrade tests upgrades, and TestUserHeaders
// tests headers. AGG-058
func TestStream(t *testing.T) {
	const large = 1 << 20
	const held = 64 << 10 // maximum size of all buffers
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	next, gotHalf := make(chan string), make(chan struct{})
	receive := func() string {
		select {
		case s := <-next:
			return s
		case <-ctx.Done():
			return ""
		}
	}
	send := func(s string) {
		select {
		case next <- s:
		case <-ctx.Done():
		}
	}
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.CopyN(io.Discard, r.Body, large-held)
			close(gotHalf)
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintln(w, n, err)
		case strings.HasSuffix(r.URL.Path, "/large"):
			w.Header().Set("Content-Length", strconv.Itoa(2*large))
			_, _ = w.Write(make([]byte, large))
			receive()
			_, _ = w.Write(make([]byte, large))
		default:
			w.Header().Set("Trailer", "X-Sum")
			for line := receive(); line != ""; line = receive() {
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			}
			w.Header().Set("X-Sum", "3")
		}
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	url := e.served.URL + "/apis/wardle.example.com/v1alpha1/flunders"
	for _, query := range []string{"?watch=1", ""} {
		go send("one")
		resp := e.do(ctx, http.MethodGet, url+query, nil)
		lines := bufio.NewReader(resp.Body)
		for _, want := range []string{"one", "two", "three"} {
			if want != "one" {
				send(want)
			}
			if line, err := lines.ReadString('\n'); line != want+"\n" {
				t.Fatal(line, err)
			}
		}
		send("")
		if rest, err := io.ReadAll(lines); len(rest) != 0 || err != nil || resp.Trailer.Get("X-Sum") != "3" {
			t.Errorf("got rest %q, error %v, trailer %v", rest, err, resp.Trailer)
		}
		resp.Body.Close()
	}

	resp := e.do(ctx, http.MethodGet, url+"/large", nil)
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, large-held); err != nil {
		t.Fatal(err)
	}
	send("more")
	if n, err := io.Copy(io.Discard, resp.Body); n != large+held || err != nil {
		t.Error(n, err)
	}

	body, write := io.Pipe()
	go func() {
		_, _ = write.Write(make([]byte, large))
		select {
		case <-gotHalf:
		case <-ctx.Done():
		}
		_, _ = write.Write(make([]byte, large))
		write.Close()
	}()
	resp = e.do(ctx, http.MethodPost, url, body)
	defer resp.Body.Close()
	if got, want := read(e.Env, resp), fmt.Sprintln(large+held, "<nil>"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func (e *env) do(ctx context.Context, method, url string, body io.Reader) *http.Response {
	e.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		e.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	return resp
}

// TestUpgrade checks that data is forwarded in both directions after the backend has upgraded a connection. If the
// backend refuses the upgrade, the connection is closed, and no further data of the client is forwarded. AGG-058,
// CVE-2018-1002105
func TestUpgrade(t *testing.T) {
	var smuggled atomic.Int32
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") == "admin" {
			smuggled.Add(1)
		}
		if r.URL.Query().Get("refuse") != "" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+
			"\r\n\r\n")
		line, _ := both.ReadString('\n')
		fmt.Fprint(conn, "echo "+line)
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	for _, protocol := range []string{"websocket", "SPDY/3.1"} {
		conn, in := e.upgrade("/apis/wardle.example.com/v1alpha1/namespaces/default/flunders/a/exec", protocol)
		if status, err := in.ReadString('\n'); !strings.Contains(status, "101") {
			t.Fatalf("%s: %q %v", protocol, status, err)
		}
		fmt.Fprint(conn, "hello\n")
		if rest, err := io.ReadAll(in); !strings.HasSuffix(string(rest), "\r\n\r\necho hello\n") {
			t.Errorf("%s: %q %v", protocol, rest, err)
		}
		conn.Close()
	}
	conn, in := e.upgrade("/apis/wardle.example.com/v1alpha1/namespaces/default/flunders/a/exec?refuse=1", "SPDY/3.1")
	defer conn.Close()
	if status, err := in.ReadString('\n'); !strings.Contains(status, "403") {
		t.Fatal(status, err)
	}
	fmt.Fprint(conn, "GET /secret HTTP/1.1\r\nHost: x\r\nX-Remote-User: admin\r\nConnection: close\r\n\r\n")
	_, _ = io.ReadAll(in)
	if smuggled.Load() != 0 {
		t.Error("data that followed a refused upgrade reached the backend")
	}
}

// TestAnotherProtocol checks that the connection is closed if the backend switches to a protocol that the client has
// not requested. AGG-058
func TestAnotherProtocol(t *testing.T) {
	ended := make(chan struct{})
	server, ca := extension(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	_, in := e.upgrade("/apis/wardle.example.com/v1alpha1/x", "websocket")
	if status, err := in.ReadString('\n'); !strings.Contains(status, "503") {
		t.Error(status, err)
	}
	select {
	case <-ended:
	case <-t.Context().Done():
		t.Error("the connection is still open")
	}
}

// upgrade sends a request to upgrade to a protocol.
func (e *env) upgrade(path, protocol string) (net.Conn, *bufio.Reader) {
	e.Helper()
	conn, err := net.Dial("tcp", e.served.Listener.Addr().String())
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", path, protocol)
	return conn, bufio.NewReader(conn)
}

// TestSafeRequestsGoElsewhere checks that a request without side effects is sent to a second endpoint if the first one
// fails, and that other requests are sent only once.
func TestSafeRequestsGoElsewhere(t *testing.T) {
	var posts atomic.Int32
	breaks := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		panic(http.ErrAbortHandler)
	}
	works, ca := extension(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "here") })
	broken := httptest.NewUnstartedServer(nil)
	broken.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			works.Config.Handler.ServeHTTP(w, r)
			return
		}
		breaks(w, r)
	})
	broken.TLS, broken.EnableHTTP2 = works.TLS.Clone(), true
	broken.StartTLS()
	t.Cleanup(broken.Close)
	e := newEnv(t)
	e.setEndpoints(nil, works, broken)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	for range 4 {
		e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	}
	failed := 0
	for posts.Load() == 0 { // the broken endpoint gets a request once its probe has succeeded
		resp, err := http.Post(e.served.URL+"/apis/wardle.example.com/v1alpha1/flunders", "application/json",
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			failed++
		}
	}
	if n := int(posts.Load()); n != failed || n == 0 {
		t.Errorf("%d requests failed, and the broken endpoint received %d", failed, n)
	}
}
