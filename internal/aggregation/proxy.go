package aggregation

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// ServeHTTP forwards a request of the user u to the API server of s. The context of r limits the duration of the
// request. stream selects small copy buffers for a long-running request. ServeHTTP responds with 503 and returns false
// if the API server is not available.
func (a *Aggregator) ServeHTTP(
	w http.ResponseWriter,
	r *http.Request,
	s *catalog.APIService,
	u user.Info,
	stream bool,
) (available bool) {
	b := a.backend(s)
	if !b.condition.Load().Available {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return false
	}
	p := proxy.Reverse(w.Header(), b, stream, func(p *httputil.ProxyRequest) {
		p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", b.host, b.host
		p.Out.URL.RawPath = "" // so that the backend receives the decoded path, which was authorized
		p.SetXForwarded()
		if !proxy.IsUpgrade(p.In) {
			p.Out.Header.Set("X-Forwarded-Uri", forwardedURI(p.Out.URL))
		}
		a.config.Headers.Clear(p.Out.Header)
		a.config.Headers.Set(p.Out.Header, u)
		if id := w.Header()["Audit-Id"]; id != nil {
			p.Out.Header["Audit-Id"] = id
		}
	})
	p.ServeHTTP(w, r)
	return true
}

// forwardedURI returns the cleaned path of the request, as k8s.io/apimachinery/pkg/util/proxy does.
func forwardedURI(u *url.URL) string {
	uri := path.Join("", u.EscapedPath())
	if strings.HasSuffix(u.Path, "/") {
		uri += "/"
	}
	return uri
}
