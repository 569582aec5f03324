package aggregation

import (
	"context"
	"encoding/json"
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
	maxDocument  = 64 << 20 // bytes of an OpenAPI document
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

// OpenAPIV2 returns the document of all that the server of s serves, and its ETag; nil where there is none.
func (a *Aggregator) OpenAPIV2(ctx context.Context, s *resource.APIService) (document []byte, etag string) {
	b := a.backend(s)
	return b.whole.get(ctx, b, "/openapi/v2")
}

// document is one of a backend, as it was when it could last be read.
type document struct {
	mu    sync.Mutex
	asked time.Time
	text  []byte
	etag  string
}

// get reads the document at a path again if that was some time ago. What cannot be read is as it was.
func (d *document) get(ctx context.Context, b *backend, path string) (text []byte, etag string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := b.of.config.Clock.Now()
	if b.condition.Load().Available && now.Sub(d.asked) >= fetchAgain && d.read(ctx, b, path) == nil {
		d.asked = now
	}
	return d.text, d.etag
}

func (d *document) read(ctx context.Context, b *backend, path string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+b.host+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if d.etag != "" {
		req.Header.Set("If-None-Match", d.etag)
	}
	b.of.config.Headers.set(req.Header, reader)
	resp, err := b.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusNotModified:
		return nil
	case http.StatusOK:
	default:
		d.text, d.etag = nil, ""
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(text) > maxDocument {
		err = fmt.Errorf("%s of %s is larger than %d bytes", path, b.host, maxDocument)
	}
	if err != nil {
		return err
	}
	d.text, d.etag = text, resp.Header.Get("Etag")
	return nil
}
