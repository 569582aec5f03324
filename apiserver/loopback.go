package apiserver

import (
	"context"
	"fmt"
	"net/http"
)

// maxDepth is the maximum number of nested webhook calls to this server for one request. A webhook can trigger itself
// if its URL is that of a Service proxy of this server, and its rules match requests to this proxy.
const maxDepth = 3

// nestedContext is the context of a request that this server sends to itself. It is cancelled together with the
// context of the original request. It contains only the depth and none of the other values of that context, such as
// the user and the audit event.
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

// callLoopback sends a request to a webhook that this server itself serves. It must not be called before the server
// serves.
func (s *Server) callLoopback(r *http.Request) (*http.Response, error) {
	depth, _ := r.Context().Value(depthKey{}).(int)
	if depth == maxDepth {
		if r.Body != nil {
			_ = r.Body.Close() // an http.RoundTripper must close the body
		}
		return nil, fmt.Errorf("webhooks behind the Service kubernetes call each other, %d levels deep: change the "+
			"rules of these webhooks so that they do not match requests that the webhooks send", depth)
	}
	return s.Loopback().Transport.RoundTrip(r.WithContext(nestedContext{r.Context(), depth + 1}))
}
