// Package gzipped compresses responses as kube-apiserver does.
package gzipped

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Threshold is the size in bytes beyond which kube-apiserver compresses objects, lists and discovery documents.
const Threshold = 128 << 10

// Accepted reports whether the client accepts gzip, as kube-apiserver reads Accept-Encoding for these: a token "gzip" has no parameter.
func Accepted(r *http.Request) bool {
	for token := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(token) == "gzip" {
			return true
		}
	}
	return false
}

var writers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// Writer compresses one response.
type Writer struct{ *gzip.Writer }

// NewWriter returns a Writer to w. Its Close makes it available to another response.
func NewWriter(w io.Writer) Writer {
	z := writers.Get().(*gzip.Writer)
	z.Reset(w)
	return Writer{z}
}

// Close writes the end of the response.
func (w Writer) Close() error {
	err := w.Writer.Close()
	w.Reset(nil)
	writers.Put(w.Writer)
	return err
}

// Header adds the headers of a compressed response to h.
func Header(h http.Header) {
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
}
