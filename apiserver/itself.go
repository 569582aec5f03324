package apiserver

import (
	"context"
	"fmt"
	"net/http"
)

// maxDepth is how many webhooks that are at this server may be under way for one request, each for what the one before has led to.
// One leads to itself where it is asked about proxies to a Service, and its path is such a proxy.
const maxDepth = 3

// inside is the context of a request that this server sends itself. It ends with that of the request it is for, and knows nothing
// of that (who sent it, its audit) but how deep it is.
type inside struct {
	context.Context
	depth int
}

// depthKey is what inside has a value for.
type depthKey struct{}

// Value implements context.Context.
func (i inside) Value(key any) any {
	if key == (depthKey{}) {
		return i.depth
	}
	return nil
}

// askItself answers what a webhook is asked that is at this server. It is first called when that serves.
func (s *Server) askItself(r *http.Request) (*http.Response, error) {
	depth, _ := r.Context().Value(depthKey{}).(int)
	if depth == maxDepth {
		if r.Body != nil {
			_ = r.Body.Close() // as an http.RoundTripper does
		}
		return nil, fmt.Errorf("webhooks of the Service kubernetes lead to each other, %d deep: have their rules leave out what their own calls do", depth)
	}
	return s.Loopback().Transport.RoundTrip(r.WithContext(inside{r.Context(), depth + 1}))
}
