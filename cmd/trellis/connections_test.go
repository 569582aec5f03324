package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// maxFiles is the limit of open files of the server. maxAuthenticated is the limit of authenticated connections that
// results from it. It is half of maxFiles, minus the descriptors that are reserved for unauthenticated connections.
const (
	maxFiles         = 64
	maxAuthenticated = maxFiles/2 - 8
)

// limitedServer is a server process with a low limit of open files.
type limitedServer struct {
	*testing.T
	url, address string
	admin        *rest.Config
}

func startLimited(t *testing.T) *limitedServer {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, "sh", "-c",
		fmt.Sprintf(`ulimit -n %d && exec trellis serve --secure-port 0 --data-dir "$0"`, maxFiles), dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		cancel()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	l := &limitedServer{T: t}
	ready := regexp.MustCompile(`ready at (https://(\S+))`)
	lines := bufio.NewScanner(out)
	for l.url == "" && lines.Scan() {
		if m := ready.FindStringSubmatch(lines.Text()); m != nil {
			l.url, l.address = m[1], m[2]
		}
	}
	if l.url == "" {
		t.Fatal("the server did not start: ", log.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if l.admin, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return l
}

// openIdleConnections opens n unauthenticated connections until the end of the test. Every second connection
// completes its TLS handshake.
func (l *limitedServer) openIdleConnections(n int) {
	l.Helper()
	for i := range n {
		conn, err := net.Dial("tcp", l.address)
		if err != nil {
			l.Fatal(err)
		}
		l.Cleanup(func() { conn.Close() })
		if i%2 == 1 {
			// The handshake fails if the server has closed the connection.
			_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake()
		}
	}
}

// checkReady checks /readyz on a new connection without credentials.
func (l *limitedServer) checkReady() {
	l.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := c.Get(l.url + "/readyz")
	if err != nil {
		l.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || string(text) != "ok" {
		l.Fatal(resp.Status, string(text), err)
	}
}

// client returns an HTTP client with the administrator's certificate and a new connection.
func (l *limitedServer) client() *http.Client {
	l.Helper()
	config, err := rest.TLSConfigFor(l.admin)
	if err != nil {
		l.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	l.Cleanup(c.CloseIdleConnections)
	return c
}

// write creates a ConfigMap of 200 KiB and returns the response.
func (l *limitedServer) write(c *http.Client, name string) (status int, header http.Header, text string) {
	l.Helper()
	data := strings.Repeat("x", 200<<10)
	resp, err := c.Post(l.url+"/api/v1/namespaces/default/configmaps", "application/json",
		strings.NewReader(fmt.Sprintf(`{"metadata":{"name":%q},"data":{"x":%q}}`, name, data)))
	if err != nil {
		l.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		l.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

// TestUnauthenticatedConnectionsLeaveDescriptors checks a server process with a low limit of file descriptors. Idle
// connections of clients that never authenticate do not block the store, health checks or an authenticated client.
func TestUnauthenticatedConnectionsLeaveDescriptors(t *testing.T) {
	l := startLimited(t)
	l.openIdleConnections(3 * maxFiles)
	c := l.client()
	for i := range 100 { // more data than the store keeps in memory, so that it must open files
		if i%10 == 0 {
			l.openIdleConnections(maxFiles)
			l.checkReady()
		}
		if status, _, text := l.write(c, fmt.Sprintf("c%d", i)); status != http.StatusCreated {
			t.Fatal(i, text)
		}
	}
}

// TestAuthenticatedConnectionsLeaveDescriptors checks that authenticated connections at the limit do not block the
// store or health checks. A connection above the limit gets 503, and the other connections keep working.
func TestAuthenticatedConnectionsLeaveDescriptors(t *testing.T) {
	l := startLimited(t)
	var all []*http.Client
	for i := range maxAuthenticated {
		c := l.client()
		if status, _, text := l.write(c, fmt.Sprintf("c%d", i)); status != http.StatusCreated {
			t.Fatal(i, text)
		}
		all = append(all, c)
	}
	status, header, text := l.write(l.client(), "late")
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" ||
		!strings.Contains(text, "too many connections") {
		t.Error(status, header, text)
	}
	l.openIdleConnections(maxFiles)
	l.checkReady()
	for i, c := range all {
		if status, _, text := l.write(c, fmt.Sprintf("d%d", i)); status != http.StatusCreated {
			t.Error(i, text)
		}
	}
	all[0].CloseIdleConnections()
	deadline, c := time.Now().Add(time.Minute), l.client()
	for status = 0; status != http.StatusCreated && time.Now().Before(deadline); {
		status, _, text = l.write(c, "late")
	}
	if status != http.StatusCreated {
		t.Error("a closed connection is still counted: ", text)
	}
}
