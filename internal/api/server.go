package api

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// request is one request on its way.
type request struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	path
	user  user.Info
	v     *resource.Version // what the path addresses, once it is known
	media media             // of the response, once it is negotiated
	*audited
	warnings

	began     time.Time
	cancel    context.CancelFunc // of the deadline that the client set, nil if it did not
	status    int                // written, 0 before
	size      int                // bytes of the body written
	weight    int64              // of a large body, until the answer is sent
	dryRun    bool
	apply     bool
	uncounted bool // the path has a part that anybody can make up
}

// Header values are shared by all responses; nobody appends to them.
var (
	noCache  = []string{"no-cache, private"}
	jsonType = []string{mediaJSON}
)

// buffers holds what responses are built in.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// ServeHTTP answers one request. Reading one object as JSON by an administrator, which
// most requests are, is answered right here if all that it takes is known: it enters 8 functions of
// this module in 6 files, and a test counts them. Everything else is for serve.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{server: s, w: w, r: r, began: time.Now()}
	s.inflight.Add(1)
	defer q.finish()
	h := w.Header()
	h["Cache-Control"] = noCache
	if id := r.Header["Audit-Id"]; len(id) > 0 && id[0] != "" {
		h["Audit-Id"] = id[:1]
	} else {
		h["Audit-Id"] = []string{uuid.NewString()}
	}
	if q.plain() && !s.draining.Load() {
		q.user = s.authenticator.Privileged(r)
		q.v = s.live.Load().Find(q.group, q.version, q.plural)
	}
	if q.user == nil || q.v == nil || !q.v.Definition.Namespaced || q.v.Deprecated {
		q.serve()
		return
	}
	b := buffers.Get().(*[]byte)
	body, ok := s.engine.Peek((*b)[:0], engine.Target{Version: q.v, Namespace: q.namespace, Name: q.name})
	if !ok || len(body) >= gzipThreshold {
		q.serve()
		return
	}
	body = append(body, '\n')
	h["Content-Type"] = jsonType
	q.status, q.size = http.StatusOK, len(body)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client has gone; there is nobody to tell
	if *b = body; cap(body) <= maxPooled {
		buffers.Put(b)
	}
}

// plain recognizes a request that wants nothing but one namespaced object as JSON: no
// options, no view, no compression, no other identity, a name that cannot be wrong. It reads the path
// as parse does.
func (q *request) plain() bool {
	r := q.r
	rest, ok := strings.CutPrefix(r.URL.Path, "/api")
	if r.Method != http.MethodGet || !ok || r.URL.RawQuery != "" || r.ContentLength != 0 {
		return false
	}
	var p path
	if below, grouped := strings.CutPrefix(rest, "s/"); grouped {
		p.group, rest, ok = strings.Cut(below, "/")
		ok = ok && p.group != ""
	} else {
		rest, ok = strings.CutPrefix(rest, "/")
	}
	if !ok {
		return false
	}
	var fixed string
	p.version, rest, _ = strings.Cut(rest, "/")
	fixed, rest, _ = strings.Cut(rest, "/")
	p.namespace, rest, _ = strings.Cut(rest, "/")
	p.plural, p.name, _ = strings.Cut(rest, "/")
	if fixed != "namespaces" || p.namespace == "" || p.plural == "" || p.name == "" || p.plural == "status" || p.plural == "finalize" ||
		p.name == "." || p.name == ".." || p.namespace == "." || p.namespace == ".." || strings.ContainsAny(p.name, "/%") {
		return false
	}
	for name, values := range r.Header {
		switch {
		case len(values) != 1,
			name == "Accept" && (values[0] != mediaJSON && values[0] != "*/*" && values[0] != "application/json, */*"),
			name == "User-Agent" && (strings.HasPrefix(values[0], "curl") || strings.HasPrefix(values[0], "Wget") || strings.HasPrefix(values[0], "Mozilla/5.0")),
			strings.HasPrefix(name, "Impersonate-"):
			return false
		}
	}
	p.verb, p.resource = verbGet, true
	q.path = p
	return true
}

// finish is what every request ends with: a panic becomes a 500, and what was done is
// counted. Paths that lead nowhere are not counted: anybody can make up any number of them.
func (q *request) finish() {
	s, m := q.server, q.server.metrics
	stage := access.StageComplete
	if p := recover(); p != nil {
		stage = access.StagePanic
		defer q.panicked(p)
	}
	if q.cancel != nil {
		q.cancel()
	}
	if q.weight > 0 {
		q.lighten()
	}
	if q.v != nil && q.status != 0 && !q.uncounted {
		k := seriesKey{q.group, q.version, q.plural, q.subresource, q.verb, q.status, q.name != "", q.namespace != "", q.dryRun, q.apply}
		m.mu.RLock()
		alike := m.series[k]
		m.mu.RUnlock()
		if alike == nil {
			alike = m.find(k, q.v)
		}
		alike.requests.Inc()
		alike.latency.Observe(time.Since(q.began).Seconds())
		if alike.sizes != nil {
			alike.sizes.Observe(float64(q.size))
		}
	}
	if s.config.Audit != nil {
		q.record(stage)
	}
	if s.inflight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}
