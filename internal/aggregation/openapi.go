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

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// fetchTimeout is how long a document that all others wait for may take, and fetchAgain how long it is taken as it is.
	fetchTimeout = 2 * time.Second
	fetchAgain   = 10 * time.Second
	maxDocument  = 16 << 20 // bytes of an OpenAPI document
)

// reader is who this server is when it reads the documents of others, as to kube-apiserver.
var reader = &user.DefaultInfo{Name: "system:aggregator", Groups: []string{user.AllAuthenticated}}

// ServeOpenAPIV3 answers with the document of a group version, as the server has it that serves the group version.
func (a *Aggregator) ServeOpenAPIV3(w http.ResponseWriter, r *http.Request, s *resource.APIService) {
	a.ServeHTTP(w, r, s, reader, false)
}

// OpenAPIV3Hash names the content of that document; "" where there is none.
func (a *Aggregator) OpenAPIV3Hash(ctx context.Context, s *resource.APIService) string {
	b := a.backend(s)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if text, _ := b.index.get(ctx, b, "/openapi/v3"); json.Unmarshal(text, &index) != nil {
		return ""
	}
	at, err := url.Parse(index.Paths[strings.TrimPrefix(b.path(), "/")].ServerRelativeURL)
	if err != nil {
		return ""
	}
	return at.Query().Get("hash")
}

// OpenAPIV2 returns the document of all that the server of s serves, and its hash; nil where there is none.
func (a *Aggregator) OpenAPIV2(ctx context.Context, s *resource.APIService) (document []byte, hash string) {
	b := a.backend(s)
	return b.whole.get(ctx, b, "/openapi/v2")
}

// document is one of a backend, as it was when it could last be read.
type document struct {
	mu      sync.Mutex
	asked   time.Time
	reading chan struct{} // closed when it has been read; nil: nobody reads it
	text    []byte
	sum     string // hash of text
	etag    string
}

// get returns what is known of the document at a path. What was read some time ago is read again meanwhile; only for what has
// never been read does it wait, and not longer than ctx.
func (d *document) get(ctx context.Context, b *backend, path string) (text []byte, sum string) {
	d.mu.Lock()
	now := b.of.config.Clock.Now()
	if b.condition.Load().Available && d.reading == nil && now.Sub(d.asked) >= fetchAgain {
		d.asked, d.reading = now, make(chan struct{})
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

// read reads the document, which stays as it was if it cannot be read.
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

// fetch reads a document as no user; a status that is no success is that there is none.
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
	b.of.config.Headers.Set(req.Header, reader)
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
