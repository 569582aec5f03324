package request

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// MethodNotAllowed returns the 405 for paths that every API server has.
func MethodNotAllowed() error {
	return apierrors.NewGenericServerResponse(
		http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
}

// PageNotFound returns the 404 of an unknown path in a known group.
func PageNotFound() error {
	return apierrors.NewGenericServerResponse(
		http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

// ErrNoHandler is the error of a path without a handler. The response has a text media type, and clients build the
// same Status from it.
var ErrNoHandler = PageNotFound()

// NotFound returns kube-apiserver's error for a path without a handler. In the built-in groups of the catalog c the
// response is a Status.
func (q *Request) NotFound(c *catalog.Catalog) error {
	local, _ := c.LocalGroup(q.Group, "")
	if local && (q.Group != "" || strings.HasPrefix(q.R.URL.Path, "/api/")) {
		return PageNotFound()
	}
	return ErrNoHandler
}

// writeNoHandler writes ErrNoHandler. The media type prevents clients from decoding the Status. Clients add the
// requested path to the Status that they build from a plain 404, and kubectl shows that message.
func (q *Request) writeNoHandler() {
	h := q.W.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	q.Status = http.StatusNotFound
	q.W.WriteHeader(q.Status)
	m := encoding.Media{Pretty: q.Pretty()}
	if body, err := m.EncodeStatus(encoding.StatusOf(ErrNoHandler)); err == nil {
		_, _ = q.W.Write(body) // an error means that the client has disconnected
	}
}

// NoSeatMessage is upstream's response to a request that its priority level rejects.
const NoSeatMessage = "Too many requests, please try again later."
