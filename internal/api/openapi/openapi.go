// Package openapi publishes the Catalog as OpenAPI v2 and v3. Documents are built on first use, and cached only
// while they are requested. It must not import storage, and does not read objects.
package openapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"

	"github.com/trellis-k8s/trellis/internal/api/gzipped"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// cacheBytes is the maximum size of all cached documents in bytes.
const cacheBytes = 4 << 20

// Handler returns a handler for /openapi/v2, /openapi/v3 and /openapi/v3/... of live. Documents are JSON or
// gnostic's protobuf (KEP-2896). aggregated returns the documents of other servers.
//
// The v3 index contains a URL with a hash for each document. A request with the current hash gets a response that
// clients can cache forever. A request with an old hash is redirected to the current URL. All documents have an
// ETag, so that a client with the current document gets no body. A change of a CRD changes only the documents of
// its group versions.
func Handler(live *catalog.Live, aggregated Aggregated) http.Handler {
	return &server{live: live, aggregated: aggregated, now: time.Now, cache: newCache(cacheBytes)}
}

// Aggregated provides the documents of group versions that other servers serve.
type Aggregated interface {
	// ServeOpenAPIV3 serves the v3 document of s. OpenAPIV3Hash returns the hash of the document, or "" if s has no
	// v3 document. The handler then converts the v2 document.
	ServeOpenAPIV3(w http.ResponseWriter, r *http.Request, s *catalog.APIService)
	OpenAPIV3Hash(ctx context.Context, s *catalog.APIService) string
	// OpenAPIV2 returns the v2 document that describes s, and the hash of the document. It returns nil if s has no
	// v2 document.
	OpenAPIV2(ctx context.Context, s *catalog.APIService) (document []byte, hash string)
}

type server struct {
	live       *catalog.Live
	aggregated Aggregated
	now        func() time.Time
	cache      *cache

	mu         sync.Mutex
	last       *published
	merged     *merged     // v2 document that includes the documents of other servers; nil before the first request
	compressed *compressed // compressed v2 document; nil before the first request
}

// published returns the documents of the current catalog.
func (s *server) published(ctx context.Context) (*published, error) {
	catalog, err := s.live.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the latest catalog: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.groups.Catalog != catalog {
		s.last = publish(catalog, s.last, s.cache)
	}
	return s.last, nil
}

// ServeHTTP serves one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET")
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	p, err := s.published(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	switch path := r.URL.Path; {
	case path == "/openapi/v2":
		s.serve(w, r, v2, s.v2Document(r.Context(), p))
	case path == "/openapi/v3":
		s.serveIndex(w, r, p)
	case strings.HasPrefix(path, "/openapi/v3/"):
		name := strings.TrimPrefix(path, "/openapi/v3/")
		if service := p.aggregatedService(name); service != nil {
			if s.aggregated.OpenAPIV3Hash(r.Context(), service) == "" {
				if d := s.converted(r.Context(), service); d.sourceHash != "" {
					s.serve(w, r, v3, d)
					return
				}
			}
			s.aggregated.ServeOpenAPIV3(w, r, service)
			return
		}
		if e := p.find(name); e != nil {
			s.serve(w, r, v3, e)
			return
		}
		http.NotFound(w, r)
	default:
		http.NotFound(w, r)
	}
}

// serveIndex serves the index of the v3 documents.
func (s *server) serveIndex(w http.ResponseWriter, r *http.Request, p *published) {
	index, err := p.index()
	if len(p.services) > 0 && err == nil {
		index, err = p.newIndex(s.aggregatedEntries(r.Context(), p.services))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", index.etag)
	w.Header().Set("Content-Type", "application/json")
	serveContent(w, r, index.text)
}

// serveContent serves body, or the requested ranges of it.
func serveContent(w http.ResponseWriter, r *http.Request, body []byte) {
	http.ServeContent(&directWriter{w}, r, "", time.Time{}, bytes.NewReader(body))
}

// directWriter is a ResponseWriter to which http.ServeContent writes the body without copying it to a buffer.
type directWriter struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom.
func (o *directWriter) ReadFrom(r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	if ok {
		if body, ok := limited.R.(*bytes.Reader); ok && int64(body.Len()) <= limited.N {
			return body.WriteTo(o.ResponseWriter)
		}
	}
	return io.Copy(o.ResponseWriter, r)
}

// negotiate reports whether the client prefers protobuf to JSON. ok is false if the client accepts no supported
// form.
func negotiate(r *http.Request, e edition) (protobuf, ok bool) {
	header := r.Header.Get("Accept")
	if header == "" {
		header = "*/*"
	}
	version := map[edition]string{v2: "v2", v3: "v3"}[e]
	for _, clause := range goautoneg.ParseAccept(header) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "*", "json":
			return false, true
		case "com.github.proto-openapi.spec." + version + "@v1.0+protobuf",
			"com.github.proto-openapi.spec." + version + ".v1.0+protobuf":
			return true, true
		}
	}
	return false, false
}

// serve serves a document.
func (s *server) serve(w http.ResponseWriter, r *http.Request, e edition, d servedDocument) {
	w.Header().Set("Vary", "Accept")
	protobuf, ok := negotiate(r, e)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	hash, err := d.hash()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	etag := `"` + hash + `"`
	w.Header().Set("Etag", etag)
	if requested := r.URL.Query().Get("hash"); requested != "" && e == v3 {
		if requested != hash {
			current := serverRelativeURL(strings.TrimPrefix(r.URL.Path, "/openapi/v3/"), hash)
			http.Redirect(w, r, current, http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", s.now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	if hasETag(r, etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, err := d.body(s.cache, protobuf)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if protobuf {
		version := map[edition]string{v2: "v2", v3: "v3"}[e]
		w.Header().Set("Content-Type", "application/com.github.proto-openapi.spec."+version+".v1.0+protobuf")
	}
	if e == v2 && acceptsGzip(r) {
		if body, err = s.compress(hash, protobuf, body); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		gzipped.Header(w.Header())
	}
	serveContent(w, r, body)
}

// hasETag reports whether If-None-Match contains the ETag of the document.
func hasETag(r *http.Request, etag string) bool {
	for _, t := range strings.Split(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == etag || t == "*" {
			return true
		}
	}
	return false
}

// serverRelativeURL returns the URL of the document with the given hash.
func serverRelativeURL(name, hash string) string {
	u := url.URL{Path: "/openapi/v3/" + name, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}
