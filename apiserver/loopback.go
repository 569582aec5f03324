package apiserver

import (
	"context"
	"fmt"
	"net/http"
)

// maxDepth is the maximum number of nested webhook calls to this server for one request. A webhook can trigger itself:
// its path is a proxy to a Service, and its rules match such proxy requests.
const maxDepth = 3

// nestedContext is the context of a request that this server sends to itself. It is cancelled together with the context
// of the original request. It hides all values of that context, such as the user and the audit event, except for the
// depth.
type nestedContext struct {
	context.Context
	depth int
}

// depthKey is the context key of the depth.
type depthKey struct{}

// Value implements context.Context.
func (i nestedContext) Value(key any) any {
	if key == (depthKey{}) {
		return i.depth
	}
	return nil
}

// callLoopback sends the request of a webhook that this server itself serves. It must not be called before the server
// serves.
func (s *Server) callLoopback(r *http.Request) (*http.Response, error) {
	depth, _ := r.Context().Value(depthKey{}).(int)
	if depth == maxDepth {
		if r.Body != nil {
			_ = r.Body.Close() // an http.RoundTripper must close the body
		}
		return nil, fmt.Errorf("webhooks behind the Service kubernetes call each other, %d levels deep: exclude the "+
			"webhooks' own requests from their rules", depth)
	}
	return s.Loopback().Transport.RoundTrip(r.WithContext(nestedContext{r.Context(), depth + 1}))
}
