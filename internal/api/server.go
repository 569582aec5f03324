package api

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apiserver/pkg/authentication/user"

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
	warnings

	began     time.Time
	cancel    context.CancelFunc // of the deadline that the client set, nil if it did not
	status    int                // written, 0 before
	size      int                // bytes of the body written
	dryRun    bool
	uncounted bool // the path has a part that anybody can make up
}

// Header values are shared by all responses; nobody appends to them.
var (
	noCache  = []string{"no-cache, private"}
	jsonType = []string{mediaJSON}
)

// buffers holds what responses are built in.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

// ServeHTTP answers one request. It reads from top to bottom: what is asked, who
// asks, may they, then the verb. Reading one object as JSON, which most requests do, is
// answered right here: at most 8 functions of this module are entered for it, and a test counts them.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{server: s, w: w, r: r, began: time.Now()}
	s.inflight.Add(1)
	defer q.finish()
	q.parse(r.Method, r.URL.Path)
	h := w.Header()
	h["Cache-Control"] = noCache
	if id := r.Header["Audit-Id"]; len(id) > 0 && id[0] != "" {
		h["Audit-Id"] = id[:1]
	} else {
		h["Audit-Id"] = []string{uuid.NewString()}
	}
	if q.detour || r.URL.RawQuery != "" || s.draining.Load() {
		if !q.prepare() {
			return
		}
	}
	if !q.admitted() {
		return
	}
	if !q.resource {
		q.serveOther()
		return
	}
	if q.v = s.live.Load().Find(q.group, q.version, q.plural); q.v == nil || q.verb != verbGet || !q.plain() {
		q.serveResource()
		return
	}
	o, err := s.engine.Get(r.Context(), engine.Target{Version: q.v, Namespace: q.namespace, Name: q.name}, "")
	if err != nil {
		q.fail(err)
		return
	}
	b := buffers.Get().(*[]byte)
	body := append(o.AppendJSON((*b)[:0]), '\n')
	h["Content-Type"] = jsonType
	q.status, q.size = http.StatusOK, len(body)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client has gone; there is nobody to tell
	*b = body
	buffers.Put(b)
}

// plain says that the request needs nothing but the object as JSON: no options,
// no view, no compression, no warning, and a name that cannot be wrong.
func (q *request) plain() bool {
	accept := q.r.Header["Accept"]
	return q.r.URL.RawQuery == "" && q.subresource == "" && q.fits() && !q.v.Deprecated &&
		(len(accept) == 0 || len(accept) == 1 && (accept[0] == "*/*" || accept[0] == mediaJSON || accept[0] == "application/json, */*")) &&
		!prettyAgent(q.r) && !strings.Contains(q.name, "%") && q.name != "." && q.name != ".."
}

// finish is what every request ends with: a panic becomes a 500, and what was
// done is counted.
func (q *request) finish() {
	s := q.server
	if p := recover(); p != nil {
		defer q.panicked(p)
	}
	if q.cancel != nil {
		q.cancel()
	}
	s.metrics.observe(q)
	if s.inflight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}
