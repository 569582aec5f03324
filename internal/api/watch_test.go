package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// watch opens a watch through the loopback, and returns the response and a reader of its body.
func (h *harness) watch(path string, headers ...string) (*http.Response, *bufio.Reader) {
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

// nextEvent reads one event of a JSON stream.
func nextEvent(t testing.TB, r *bufio.Reader) map[string]any {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("cannot read an event: %v", err)
	}
	return tree(t, bytes.NewReader(line))
}

// wantEvent checks the type of an event and the name of its object.
func wantEvent(t testing.TB, e map[string]any, kind, name string) {
	t.Helper()
	if e["type"] != kind || at(e, "object", "metadata", "name") != name {
		t.Fatalf("got event %v, want %s %s", e, kind, name)
	}
}

// TestWatch checks the events of a watch for a create, a patch and a delete (CRD-062).
func TestWatch(t *testing.T) {
	h := withCronTabs(t)
	resp, r := h.watch(crontabs + "?watch=true")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != runtime.ContentTypeJSON {
		t.Fatalf("got %d %v, want 200 with Content-Type %s", resp.StatusCode, resp.Header, runtime.ContentTypeJSON)
	}
	wantEvent(t, nextEvent(t, r), "ADDED", "a")
	h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"b"`, 1))
	wantEvent(t, nextEvent(t, r), "ADDED", "b")
	h.want(200, "PATCH", crontabs+"/b", `{"spec":{"replicas":9}}`, "Content-Type: application/merge-patch+json")
	wantEvent(t, nextEvent(t, r), "MODIFIED", "b")
	h.want(200, "DELETE", crontabs+"/b", "")
	wantEvent(t, nextEvent(t, r), "DELETED", "b")
}

// TestWatchEndsAfterTimeoutSeconds checks that a watch ends without an error after its timeout (CRD-062).
func TestWatchEndsAfterTimeoutSeconds(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.watch(crontabs + "?watch=true&timeoutSeconds=1&resourceVersion=1")
	if rest, err := io.ReadAll(r); err != nil {
		t.Errorf("the stream ended with error %v after %q, want no error", err, rest)
	}
}

// TestInitialEventsEnd checks that a bookmark with upstream's annotation follows the initial events (CRD-063).
func TestInitialEventsEnd(t *testing.T) {
	h := withCronTabs(t)
	query := crontabs + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, accept := range []string{runtime.ContentTypeJSON, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"} {
		_, r := h.watch(query, "Accept: "+accept)
		wantEvent(t, nextEvent(t, r), "ADDED", "a")
		e := nextEvent(t, r)
		if e["type"] != "BOOKMARK" ||
			at(e, "object", "metadata", "annotations", metav1.InitialEventsAnnotationKey) != "true" ||
			at(e, "object", "metadata", "resourceVersion") == nil {
			t.Errorf("%s: got %v after the initial events, want a bookmark", accept, e)
		}
	}
	_, r := h.watch(query+"&includeObject=None", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	nextEvent(t, r)
	e := nextEvent(t, r)
	if at(e, "object", "rows", 0, "object", "metadata", "annotations", metav1.InitialEventsAnnotationKey) != "true" {
		t.Errorf("Table: got %v after the initial events, want a bookmark", e)
	}
}

// TestBookmarkRowHasNoDefaults checks that the row of a bookmark in a Table has no default values, like upstream's
// (CRD-064).
func TestBookmarkRowHasNoDefaults(t *testing.T) {
	h := newHarness(t)
	for path, want := range map[string]any{
		"/apis/apps/v1/namespaces/default/deployments": []any{"", "0/0", 0.0, 0.0, "<unknown>", "", "", ""},
		"/api/v1/namespaces/default/services": []any{"", "", "<none>", "<unknown>", "<none>", "<unknown>",
			"<none>"},
	} {
		const query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		_, r := h.watch(path+query, "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
		if e := nextEvent(t, r); e["type"] != "BOOKMARK" ||
			fmt.Sprint(at(e, "object", "rows", 0, "cells")) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want a bookmark with cells %v", path, e, want)
		}
	}
}

// TestWatchListIsCompressed checks that a watch with initial events is compressed for clients that accept gzip, and
// flushed after each event. Other watches are not compressed (CRD-063).
func TestWatchListIsCompressed(t *testing.T) {
	h := withCronTabs(t)
	list := crontabs + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	resp, compressed := h.watch(list, "Accept-Encoding: gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("got headers %v, want gzip and Vary: Accept-Encoding", resp.Header)
	}
	z, err := gzip.NewReader(compressed)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(z)
	wantEvent(t, nextEvent(t, r), "ADDED", "a")
	if e := nextEvent(t, r); e["type"] != "BOOKMARK" {
		t.Errorf("got event %v, want a bookmark", e)
	}
	for _, name := range []string{"b", "c"} {
		h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"`+name+`"`, 1))
		wantEvent(t, nextEvent(t, r), "ADDED", name)
	}
	for path, encoding := range map[string]string{list: "identity", crontabs + "?watch=1": "gzip",
		strings.Replace(list, "allowWatchBookmarks=true", "", 1): "gzip"} {
		if resp, _ := h.watch(path, "Accept-Encoding: "+encoding); resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s with Accept-Encoding %s: got headers %v, want no Content-Encoding", path, encoding,
				resp.Header)
		}
	}
}

// TestWatchAsTable checks that only the first event of a watch as Tables has column definitions (CRD-064).
func TestWatchAsTable(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.watch(crontabs+"?watch=1", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	e := nextEvent(t, r)
	if at(e, "object", "kind") != "Table" || at(e, "object", "columnDefinitions", 1, "name") != "Spec" ||
		at(e, "object", "rows", 0, "cells", 0) != "a" {
		t.Errorf("first event: got %v, want a Table with columns and row a", e)
	}
	h.want(201, "POST", crontabs, strings.Replace(crontabA, `"a"`, `"b"`, 1))
	e = nextEvent(t, r)
	if at(e, "object", "columnDefinitions") != nil || at(e, "object", "rows", 0, "cells", 0) != "b" {
		t.Errorf("second event: got %v, want row b without columns", e)
	}
}

// TestWatchAsProtobuf checks the media type and the length-prefixed frames of a watch in protobuf (CRD-068).
func TestWatchAsProtobuf(t *testing.T) {
	h := withCronTabs(t)
	h.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"},"data":{"k":"v"}}`)
	resp, r := h.watch("/api/v1/configmaps?watch=1", "Accept: "+runtime.ContentTypeProtobuf)
	if got := resp.Header.Get("Content-Type"); got != runtime.ContentTypeProtobuf+";stream=watch" {
		t.Errorf("got Content-Type %q, want %s;stream=watch", got, runtime.ContentTypeProtobuf)
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
		t.Errorf("got event %v, error %v, want ADDED with a protobuf object", e, err)
	}
}

// TestWatchOfCompactedRevision checks that a watch from a compacted revision fails with 410 Expired (CRD-062).
func TestWatchOfCompactedRevision(t *testing.T) {
	h := withCronTabs(t)
	store := h.engine.Store
	for range 3 {
		h.want(200, "PATCH", crontabs+"/a", `{"spec":{"image":"`+time.Now().String()+`"}}`,
			"Content-Type: application/merge-patch+json")
	}
	if err := store.(*logstore.Store).Compact(context.Background(), store.Head().Revision()-1); err != nil {
		t.Fatal(err)
	}
	resp, r := h.watch(crontabs + "?watch=1&resourceVersion=2")
	status := tree(t, r)
	if resp.StatusCode == 200 {
		status = status["object"].(map[string]any)
	}
	if status["code"] != 410.0 || status["reason"] != "Expired" {
		t.Errorf("got %d %v, want a Status 410 Expired", resp.StatusCode, status)
	}
}

// TestWatchOverWebSocket checks that a watch works over a WebSocket connection (CRD-062).
func TestWatchOverWebSocket(t *testing.T) {
	h := withCronTabs(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), access.Loopback())))
	}))
	defer server.Close()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http")+crontabs+
		"?watch=1&timeoutSeconds=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kind, data, err := conn.ReadMessage()
	if err != nil || kind != websocket.TextMessage {
		t.Fatalf("got a message of type %d, error %v, want a text message", kind, err)
	}
	wantEvent(t, tree(t, bytes.NewReader(data)), "ADDED", "a")
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the stream ended with %v, want a normal closure", err)
	}
}

// TestDrain checks that Drain ends watches without an error, and that later requests get 429 (CRD-062).
func TestDrain(t *testing.T) {
	h := withCronTabs(t)
	_, r := h.watch(crontabs + "?watch=1")
	wantEvent(t, nextEvent(t, r), "ADDED", "a")
	drained := make(chan struct{})
	go func() {
		h.server.Drain()
		close(drained)
	}()
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("the stream ended with error %v, want no error", err)
	}
	<-drained
	if w := h.do("GET", crontabs+"/a", ""); w.Code != 429 || w.Header().Get("Retry-After") != "5" {
		t.Errorf("after Drain: got %d %v, want 429 with Retry-After 5", w.Code, w.Header())
	}
	h.server.Drain()
}

// TestClosedBodyEndsLoopbackWatch checks that closing the response body of a loopback watch ends the watch (CRD-062).
func TestClosedBodyEndsLoopbackWatch(t *testing.T) {
	h := withCronTabs(t)
	resp, r := h.watch(crontabs + "?watch=1")
	wantEvent(t, nextEvent(t, r), "ADDED", "a")
	if h.server.inflight.Load() != 1 {
		t.Fatalf("got %d requests in flight, want 1", h.server.inflight.Load())
	}
	resp.Body.Close()
	h.server.Drain() // returns when no request is in flight
}

// serve handles a request and returns the response.
func serve(h *harness, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, r)
	return w
}
