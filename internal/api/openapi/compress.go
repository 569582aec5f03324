package openapi

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// packed is the compressed document of v2 that has a hash.
type packed struct {
	hash string
	texts
}

// compress returns the compressed form of the document of v2, which is kept like the document itself.
func (s *server) compress(hash string, protobuf bool, body []byte) ([]byte, error) {
	s.mu.Lock()
	if s.packed == nil || s.packed.hash != hash {
		if old := s.packed; old != nil {
			old.forget(s.cache)
		}
		s.packed = &packed{hash: hash}
	}
	p := s.packed
	s.mu.Unlock()
	text := &p.json
	if protobuf {
		text = &p.protobuf
	}
	return s.cache.get(text, func() ([]byte, error) {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(body); err != nil {
			return nil, fmt.Errorf("compress the document of OpenAPI v2: %w", err)
		}
		if err := z.Close(); err != nil {
			return nil, fmt.Errorf("compress the document of OpenAPI v2: %w", err)
		}
		return out.Bytes(), nil
	})
}

// acceptsGzip reports whether the client accepts gzip, with a quality above 0. A part of a document is not compressed.
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
