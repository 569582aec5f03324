// Package openapi publishes the Catalog as OpenAPI v2 and v3, each group and
// version built on first use and kept no longer than it is asked for. It knows no
// objects and no storage.
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
	"github.com/trellis-k8s/trellis/internal/resource"
)

// keepBytes is how many bytes of documents stay in memory between requests.
const keepBytes = 4 << 20

// Handler serves /openapi/v2, /openapi/v3 and /openapi/v3/... of live, as JSON or as
// gnostic's protobuf (KEP-2896). The index of v3 names each document with a hash; asked for with that hash it
// may be kept for ever, and with another one the client is sent to the right one. All have
// an ETag, so that a client which has the newest costs nothing. A change of a CRD changes only the documents of
// its group and versions. What other servers serve is described by theirs.
func Handler(live *resource.Live, theirs Aggregated) http.Handler {
	return &server{live: live, theirs: theirs, now: time.Now, cache: newCache(keepBytes)}
}

// Aggregated are the documents of group versions that other servers serve.
type Aggregated interface {
	// ServeOpenAPIV3 answers with that of v3, and OpenAPIV3Hash names its content; "" where there is none, and that of v2 counts.
	ServeOpenAPIV3(w http.ResponseWriter, r *http.Request, s *resource.APIService)
	OpenAPIV3Hash(ctx context.Context, s *resource.APIService) string
	// OpenAPIV2 returns the document of v2 that has s in it, and its hash; nil where there is none.
	OpenAPIV2(ctx context.Context, s *resource.APIService) (document []byte, hash string)
}

type server struct {
	live   *resource.Live
	theirs Aggregated
	now    func() time.Time
	cache  *cache

	mu     sync.Mutex
	last   *published
	merged *merged // of v2; nil: it has not been asked for
	packed *packed // the same
}

// published returns what is to be served now.
func (s *server) published(ctx context.Context) (*published, error) {
	catalog, err := s.live.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the newest kinds: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.groups.Catalog != catalog {
		s.last = publish(catalog, s.last, s.cache)
	}
	return s.last, nil
}

// ServeHTTP answers one request.
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
		s.serve(w, r, v2, s.whole(r.Context(), p))
	case path == "/openapi/v3":
		s.serveIndex(w, r, p)
	case strings.HasPrefix(path, "/openapi/v3/"):
		name := strings.TrimPrefix(path, "/openapi/v3/")
		if to := p.theirs(name); to != nil {
			if s.theirs.OpenAPIV3Hash(r.Context(), to) == "" {
				if d := s.converted(r.Context(), to); d.of != "" {
					s.serve(w, r, v3, d)
					return
				}
			}
			s.theirs.ServeOpenAPIV3(w, r, to)
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

// serveIndex answers with the list of v3 documents.
func (s *server) serveIndex(w http.ResponseWriter, r *http.Request, p *published) {
	index, err := p.index()
	if len(p.services) > 0 && err == nil {
		index, err = p.newIndex(s.entriesOf(r.Context(), p.services))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", index.etag)
	w.Header().Set("Content-Type", "application/json")
	serveContent(w, r, index.text)
}

// serveContent answers with body, or with the ranges of it that are asked for.
func serveContent(w http.ResponseWriter, r *http.Request, body []byte) {
	http.ServeContent(&inOnePiece{w}, r, "", time.Time{}, bytes.NewReader(body))
}

// inOnePiece is a ResponseWriter to which http.ServeContent writes without a copy in between.
type inOnePiece struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom.
func (o *inOnePiece) ReadFrom(r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	if ok {
		if body, ok := limited.R.(*bytes.Reader); ok && int64(body.Len()) <= limited.N {
			return body.WriteTo(o.ResponseWriter)
		}
	}
	return io.Copy(o.ResponseWriter, r)
}

// negotiate returns whether a document is wanted as protobuf, or false.
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

// serve answers with a document.
func (s *server) serve(w http.ResponseWriter, r *http.Request, e edition, d served) {
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
	if asked := r.URL.Query().Get("hash"); asked != "" && e == v3 {
		if asked != hash {
			http.Redirect(w, r, serverRelativeURL(strings.TrimPrefix(r.URL.Path, "/openapi/v3/"), hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", s.now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	if has(r, etag) {
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
		w.Header().Set("Content-Type", "application/com.github.proto-openapi.spec."+map[edition]string{v2: "v2", v3: "v3"}[e]+".v1.0+protobuf")
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

// has says whether the client already has the document, by its If-None-Match.
func has(r *http.Request, etag string) bool {
	for _, t := range strings.Split(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == etag || t == "*" {
			return true
		}
	}
	return false
}

// serverRelativeURL is where a version of a document is found.
func serverRelativeURL(name, hash string) string {
	u := url.URL{Path: "/openapi/v3/" + name, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}
