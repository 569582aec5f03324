package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/access"

	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// follow opens a watch through the loopback and returns its body.
func (h *harness) follow(path string, headers ...string) (*http.Response, *bufio.Reader) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	h.t.Cleanup(cancel)
	r := newRequest("GET", path, "", headers...).WithContext(ctx)
	resp, err := h.server.Loopback(access.Loopback()).RoundTrip(r)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

// next reads one event of a JSON stream.
func next(t testing.TB, r *bufio.Reader) map[string]any {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("read an event: %v", err)
	}
	return tree(t, bytes.NewReader(line))
}

func expect(t testing.TB, e map[string]any, kind, name string) {
	t.Helper()
	if e["type"] != kind || at(e, "object", "metadata", "name") != name {
		t.Fatalf("got %v, want %s %s", e, kind, name)
	}
}

// CRD-062
func TestWatch(t *testing.T) {
	h := withCronTabs(t)
	resp, r := h.follow(crontabs + "?watch=true")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != mediaJSON {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	expect(t, next(t, r), "ADDED", "a")
	h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"b"`, 1))
	expect(t, next(t, r), "ADDED", "b")
	h.want(200, "PATCH", crontabs+"/b", `{"spec":{"replicas":9}}`, "Content-Type: application/merge-patch+json")
	expect(t, next(t, r), "MODIFIED", "b")
	h.want(200, "DELETE", crontabs+"/b", "")
	expect(t, next(t, r), "DELETED", "b")
}

// CRD-062
func TestWatchEndsAfterTimeoutSeconds(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.follow(crontabs + "?watch=true&timeoutSeconds=1&resourceVersion=1")
	if rest, err := io.ReadAll(r); err != nil {
		t.Errorf("the stream ends with %v after %q", err, rest)
	}
}

// CRD-063
func TestInitialEventsEnd(t *testing.T) {
	h := withCronTabs(t)
	query := crontabs + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, accept := range []string{mediaJSON, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"} {
		_, r := h.follow(query, "Accept: "+accept)
		expect(t, next(t, r), "ADDED", "a")
		e := next(t, r)
		if e["type"] != "BOOKMARK" || at(e, "object", "metadata", "annotations", metav1.InitialEventsAnnotationKey) != "true" || at(e, "object", "metadata", "resourceVersion") == nil {
			t.Errorf("%s: the initial events end with %v", accept, e)
		}
	}
	_, r := h.follow(query+"&includeObject=None", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	next(t, r)
	if e := next(t, r); at(e, "object", "rows", 0, "object", "metadata", "annotations", metav1.InitialEventsAnnotationKey) != "true" {
		t.Errorf("a Table's initial events end with %v", e)
	}
}

// The row of a BOOKMARK is that of an object without defaults, as with upstream (CRD-064).
func TestBookmarkRowHasNoDefaults(t *testing.T) {
	h := newHarness(t)
	for path, want := range map[string]any{
		"/apis/apps/v1/namespaces/default/deployments": []any{"", "0/0", 0.0, 0.0, "<unknown>", "", "", ""},
		"/api/v1/namespaces/default/services":          []any{"", "", "<none>", "<unknown>", "<none>", "<unknown>", "<none>"},
	} {
		_, r := h.follow(path+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
		if e := next(t, r); e["type"] != "BOOKMARK" || fmt.Sprint(at(e, "object", "rows", 0, "cells")) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", path, e, want)
		}
	}
}

// A watch that begins with a list is compressed for clients that accept it, event by event, and others are not (CRD-063).
func TestWatchListIsCompressed(t *testing.T) {
	h := withCronTabs(t)
	list := crontabs + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	resp, packed := h.follow(list, "Accept-Encoding: gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("%v", resp.Header)
	}
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(z)
	expect(t, next(t, r), "ADDED", "a")
	if e := next(t, r); e["type"] != "BOOKMARK" {
		t.Errorf("%v", e)
	}
	for _, name := range []string{"b", "c"} {
		h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"`+name+`"`, 1))
		expect(t, next(t, r), "ADDED", name)
	}
	for path, encoding := range map[string]string{list: "identity", crontabs + "?watch=1": "gzip", strings.Replace(list, "allowWatchBookmarks=true", "", 1): "gzip"} {
		if resp, _ := h.follow(path, "Accept-Encoding: "+encoding); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s, %s: %v", path, encoding, resp.Header)
		}
	}
}

// CRD-064
func TestWatchAsTable(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.follow(crontabs+"?watch=1", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	e := next(t, r)
	if at(e, "object", "kind") != "Table" || at(e, "object", "columnDefinitions", 1, "name") != "Spec" || at(e, "object", "rows", 0, "cells", 0) != "a" {
		t.Errorf("first event: %v", e)
	}
	h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"b"`, 1))
	e = next(t, r)
	if at(e, "object", "columnDefinitions") != nil || at(e, "object", "rows", 0, "cells", 0) != "b" {
		t.Errorf("second event: %v", e)
	}
}

// CRD-068
func TestWatchAsProtobuf(t *testing.T) {
	h := withCronTabs(t)
	h.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"},"data":{"k":"v"}}`)
	resp, r := h.follow("/api/v1/configmaps?watch=1", "Accept: "+mediaProtobuf)
	if got := resp.Header.Get("Content-Type"); got != mediaProtobuf+";stream=watch" {
		t.Errorf("Content-Type %q", got)
	}
	size := make([]byte, 4)
	if _, err := io.ReadFull(r, size); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(size))
	if _, err := io.ReadFull(r, frame); err != nil {
		t.Fatal(err)
	}
	var e metav1.WatchEvent
	if err := e.Unmarshal(frame); err != nil || e.Type != "ADDED" || !bytes.HasPrefix(e.Object.Raw, []byte("k8s\x00")) {
		t.Errorf("event %v %v", e, err)
	}
}

// CRD-062
func TestWatchOfACompactedRevision(t *testing.T) {
	h := withCronTabs(t)
	store := h.server.engine.Store
	for range 3 {
		h.want(200, "PATCH", crontabs+"/a", `{"spec":{"image":"`+time.Now().String()+`"}}`, "Content-Type: application/merge-patch+json")
	}
	if err := store.(*embedded.Store).Compact(context.Background(), store.Head().Revision()-1); err != nil {
		t.Fatal(err)
	}
	resp, r := h.follow(crontabs + "?watch=1&resourceVersion=2")
	status := tree(t, r)
	if resp.StatusCode == 200 {
		status = status["object"].(map[string]any)
	}
	if status["code"] != 410.0 || status["reason"] != "Expired" {
		t.Errorf("%d %v", resp.StatusCode, status)
	}
}

// CRD-062
func TestWatchOverWebSocket(t *testing.T) {
	h := withCronTabs(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), access.Loopback())))
	}))
	defer server.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http")+crontabs+"?watch=1&timeoutSeconds=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kind, data, err := conn.ReadMessage()
	if err != nil || kind != websocket.TextMessage {
		t.Fatalf("message of kind %d: %v", kind, err)
	}
	expect(t, tree(t, bytes.NewReader(data)), "ADDED", "a")
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the stream ends with %v", err)
	}
}

// Drain ends watches cleanly and refuses what comes after.
// CRD-062
func TestDrain(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.follow(crontabs + "?watch=1")
	expect(t, next(t, r), "ADDED", "a")
	drained := make(chan struct{})
	go func() {
		h.server.Drain()
		close(drained)
	}()
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
	<-drained
	if w := h.do("GET", crontabs+"/a", ""); w.Code != 429 || w.Header().Get("Retry-After") != "5" {
		t.Errorf("after Drain: %d %v", w.Code, w.Header())
	}
	h.server.Drain()
}

// A closed body ends the watch behind it.
// CRD-062
func TestLoopbackEndsWithItsBody(t *testing.T) {
	h := withCronTabs(t)
	resp, r := h.follow(crontabs + "?watch=1")
	expect(t, next(t, r), "ADDED", "a")
	if h.server.inflight.Load() != 1 {
		t.Fatalf("%d requests in flight", h.server.inflight.Load())
	}
	resp.Body.Close()
	h.server.Drain() // returns when nothing is in flight
}

// CRD-062
func TestErrorEventsAreEncoded(t *testing.T) {
	q := &request{media: media{offer: offers(true)[2]}}
	e := &events{request: q}
	s := &metav1.Status{Code: 410}
	if got, err := e.appendError(nil, s); err != nil || !bytes.Contains(got, []byte("k8s\x00")) {
		t.Errorf("protobuf: %q %v", got, err)
	}
	q.media.offer = offers(true)[3]
	if got, err := e.appendError(nil, s); err != nil || !bytes.HasPrefix(got, cborTag) {
		t.Errorf("CBOR: %q %v", got, err)
	}
	q.media.offer = offers(true)[0]
	got, err := e.appendError(nil, s)
	if err != nil || !json.Valid(got) || !bytes.HasPrefix(got, []byte(`{"type":"ERROR","object":{`)) {
		t.Errorf("JSON: %q %v", got, err)
	}
}

func recordFor(h *harness, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, r)
	return w
}
