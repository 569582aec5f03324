package aggregation

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

const (
	// fetchTimeout limits how long a request waits for a document that is fetched for the first time.
	fetchTimeout = 2 * time.Second
	// refetchAfter is the age at which a document is fetched again.
	refetchAfter = 10 * time.Second
	maxDocument  = 16 << 20 // bytes of an OpenAPI document
)

// aggregatorUser is this server's identity when it fetches documents. It equals kube-apiserver's.
var aggregatorUser = &user.DefaultInfo{Name: "system:aggregator", Groups: []string{user.AllAuthenticated}}

// ServeOpenAPIV3 serves the OpenAPI v3 document of a group version from the backend of s.
func (a *Aggregator) ServeOpenAPIV3(w http.ResponseWriter, r *http.Request, s *catalog.APIService) {
	a.ServeHTTP(w, r, s, aggregatorUser, false)
}

// OpenAPIV3Hash returns the hash of the OpenAPI v3 document, or "" if there is none.
func (a *Aggregator) OpenAPIV3Hash(ctx context.Context, s *catalog.APIService) string {
	b := a.backend(s)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if text, _ := b.openAPIV3.get(ctx, b, "/openapi/v3"); json.Unmarshal(text, &index) != nil {
		return ""
	}
	location, err := url.Parse(index.Paths[strings.TrimPrefix(b.path(), "/")].ServerRelativeURL)
	if err != nil {
		return ""
	}
	return location.Query().Get("hash")
}

// OpenAPIV2 returns the backend's OpenAPI v2 document and its hash. The document is nil if there is none.
func (a *Aggregator) OpenAPIV2(ctx context.Context, s *catalog.APIService) (document []byte, hash string) {
	b := a.backend(s)
	return b.openAPIV2.get(ctx, b, "/openapi/v2")
}

// document holds a document of a backend, as the last fetch has returned it.
type document struct {
	mu      sync.Mutex
	started time.Time     // of the last fetch
	reading chan struct{} // closed when the running fetch ends; nil means that none is running
	text    []byte
	sum     string // hash of text
	etag    string
}

// get returns the document at a path. If the document is old, get starts to fetch it again in the background, and
// returns the old document. If no document has been fetched yet, get waits for the first fetch until ctx is done.
func (d *document) get(ctx context.Context, b *backend, path string) (text []byte, sum string) {
	d.mu.Lock()
	now := b.aggregator.config.Clock.Now()
	if b.condition.Load().Available && d.reading == nil && now.Sub(d.started) >= refetchAfter {
		d.started, d.reading = now, make(chan struct{})
		go d.read(b, path)
	}
	text, sum, reading := d.text, d.sum, d.reading
	d.mu.Unlock()
	if text != nil || reading == nil {
		return text, sum
	}
	select {
	case <-reading:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text, d.sum
}

// read fetches the document. If that fails, read keeps the previous document.
func (d *document) read(b *backend, path string) {
	text, etag, err := b.fetch(path, d.etag)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.text, d.etag, d.sum = text, etag, fmt.Sprintf("%X", sha256.Sum256(text))
	}
	close(d.reading)
	d.reading = nil
}

var errUnchanged = errors.New("not modified")

// fetch fetches a document as aggregatorUser. A response other than 200 or 304 means that there is no document.
func (b *backend) fetch(path, known string) (text []byte, etag string, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.host+path, nil)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Accept", "application/json")
	if known != "" {
		req.Header.Set("If-None-Match", known)
	}
	b.aggregator.config.Headers.Set(req.Header, aggregatorUser)
	resp, err := b.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNotModified:
		return nil, "", errUnchanged
	case http.StatusOK:
	default:
		return nil, "", nil
	}
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("%s of %s is larger than %d bytes", path, b.host, maxDocument)
	}
	return text, resp.Header.Get("Etag"), err
}
