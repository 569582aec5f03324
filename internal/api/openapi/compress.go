package openapi

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// compressed holds the compressed forms of the v2 document with the given hash.
type compressed struct {
	hash string
	texts
}

// compress returns the compressed v2 document. It is cached like the document itself.
func (s *server) compress(hash string, protobuf bool, body []byte) ([]byte, error) {
	s.mu.Lock()
	if s.compressed == nil || s.compressed.hash != hash {
		if previous := s.compressed; previous != nil {
			previous.remove(s.cache)
		}
		s.compressed = &compressed{hash: hash}
	}
	p := s.compressed
	s.mu.Unlock()
	text := &p.json
	if protobuf {
		text = &p.protobuf
	}
	return s.cache.get(text, func() ([]byte, error) {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(body); err != nil {
			return nil, fmt.Errorf("compress the OpenAPI v2 document: %w", err)
		}
		if err := z.Close(); err != nil {
			return nil, fmt.Errorf("compress the OpenAPI v2 document: %w", err)
		}
		return out.Bytes(), nil
	})
}

// acceptsGzip reports whether the client accepts gzip with a quality above 0. Responses to range requests are not
// compressed.
func acceptsGzip(r *http.Request) bool {
	if r.Header.Get("Range") != "" {
		return false
	}
	for clause := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, parameters, _ := strings.Cut(clause, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, found := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
		quality, err := strconv.ParseFloat(q, 64)
		return !found || err == nil && quality > 0
	}
	return false
}
