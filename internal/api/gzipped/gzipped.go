// Package gzipped compresses responses as kube-apiserver does.
package gzipped

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// Threshold is the size in bytes above which kube-apiserver compresses objects, lists and discovery documents.
const Threshold = 128 << 10

// Accepted reports whether the client accepts gzip. Like kube-apiserver, it ignores a gzip token in
// Accept-Encoding that has a parameter.
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

// Writer is a gzip writer for one response.
type Writer struct{ *gzip.Writer }

// NewWriter returns a Writer that writes to w. The Writer must not be used after Close.
func NewWriter(w io.Writer) Writer {
	z := writers.Get().(*gzip.Writer)
	z.Reset(w)
	return Writer{z}
}

// Close writes the end of the response and returns the compressor to a pool.
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
