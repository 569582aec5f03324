package replicas_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	namespacePath = "/api/v1/namespaces/model"
	collection    = namespacePath + "/configmaps"
	writers       = 6
	keys          = 5
	keyPrefix     = "key-"
	// attemptTimeout is the time after which clients give up a request.
	attemptTimeout = 6 * time.Second
)

// writer is a client that reads and writes random keys, which all clients share.
type writer struct {
	id      int
	round   int
	apis    []*api // of all replicas
	history *history
	tally   *tally
	random  *rand.Rand
	known   map[string]configMap // the newest objects that this client has received
	written int
}

// wait waits for a time. It returns false if ctx is done.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// run sends requests until ctx is done. It completes the request that it has sent.
func (w *writer) run(ctx context.Context) {
	for wait(ctx, time.Duration(5+w.random.IntN(15))*time.Millisecond) {
		a := w.apis[w.id%len(w.apis)]
		if w.random.IntN(4) == 0 {
			a = w.apis[w.random.IntN(len(w.apis))]
		}
		if n := w.random.IntN(100); n < 10 {
			w.list(a)
		} else {
			w.request(a, n)
		}
	}
}

// request sends a read or a write of one key. n is a random number that selects the verb.
func (w *writer) request(a *api, n int) {
	o := operation{client: w.id, replica: a.replica, key: fmt.Sprint(keyPrefix, w.random.IntN(keys))}
	known, exists := w.known[o.key]
	method, path, contentType, body := "GET", collection+"/"+o.key, "", ""
	w.written++
	value := fmt.Sprintf("%d-%d-%d", w.round, w.id, w.written)
	switch {
	case n < 30:
		o.verb = "get"
	case !exists:
		o.verb, o.to, method, path = "create", value, "POST", collection
		body = fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"value":%q}}`,
			o.key, value)
	case n < 55:
		o.verb, o.from, o.to, method = "update", known.value(), value, "PUT"
		body = fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"resourceVersion":%q},`+
			`"data":{"value":%q}}`, o.key, known.Metadata.ResourceVersion, value)
	case n < 80:
		o.verb, o.to, method, contentType = "patch", value, "PATCH", mergePatch
		body = fmt.Sprintf(`{"data":{"value":%q}}`, value)
	default:
		o.verb, o.from, method = "delete", known.value(), "DELETE"
		body = fmt.Sprintf(`{"preconditions":{"resourceVersion":%q}}`, known.Metadata.ResourceVersion)
	}
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	o.call = w.history.now()
	answer := a.do(ctx, method, path, contentType, []byte(body))
	o.end, o.code = w.history.now(), answer.code
	w.tally.operation(o.verb, answer)
	var object configMap
	if answer.applied() {
		if err := answer.into(&object); err != nil {
			w.tally.violation("%s %s: %v: %v", method, path, err, answer)
			return
		}
	}
	w.record(o, object)
}

// record adds an operation to the history, and remembers the object in the answer.
func (w *writer) record(o operation, object configMap) {
	switch {
	case o.applied() && o.verb != "delete":
		w.known[o.key], o.revision = object, object.revision()
		if !o.write() {
			o.from = object.value()
		} else if object.value() != o.to {
			w.tally.violation("%+v: the answer has the value %q", o, object.value())
		}
	case o.applied(), o.code == 404, o.code == 0, o.code >= 500:
		delete(w.known, o.key)
	case o.code == 409 && o.verb == "create":
		// The next request is a read, or another creation.
	case o.code == 409:
		delete(w.known, o.key)
	case o.code != 429:
		w.tally.violation("%+v: unexpected answer", o)
	}
	if o.write() || o.applied() || o.code == 404 {
		w.history.add(o)
	}
}

// list reads all keys at one revision.
func (w *writer) list(a *api) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
	defer cancel()
	call := w.history.now()
	answer := a.do(ctx, "GET", collection, "", nil)
	end := w.history.now()
	w.tally.operation("list", answer)
	var all list
	if !answer.applied() {
		return
	}
	if err := answer.into(&all); err != nil {
		w.tally.violation("list: %v: %v", err, answer)
		return
	}
	byName := map[string]configMap{}
	for _, m := range all.Items {
		byName[m.Metadata.Name] = m
	}
	for i := range keys {
		o := operation{client: w.id, replica: a.replica, verb: "get", key: fmt.Sprint(keyPrefix, i), code: 404,
			call: call, end: end}
		if m, ok := byName[o.key]; ok {
			o.code, o.from, o.revision = 200, m.value(), m.revision()
			w.known[o.key] = m
		}
		w.history.add(o)
	}
}

// patient is a client that retries each write through the replicas in turn, until it has succeeded.
type patient struct {
	apis  []*api
	tally *tally
	round int
	n     int
}

// run creates and deletes objects until ctx is done.
func (p *patient) run(ctx context.Context) {
	for wait(ctx, 20*time.Millisecond) {
		p.n++
		name := fmt.Sprintf("patient-%d-%d", p.round, p.n)
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
		p.retry("create", "POST", collection, body, 409)
		p.retry("delete", "DELETE", collection+"/"+name, nil, 404)
	}
}

// retry sends a write until it has succeeded. If an earlier attempt is in doubt, the code done shows that it has
// succeeded.
func (p *patient) retry(verb, method, path string, body []byte, done int) {
	began, inDoubt := time.Now(), false
	for attempt := 0; ; attempt++ {
		a := p.apis[(p.n+attempt)%len(p.apis)]
		ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout/2)
		answer := a.do(ctx, method, path, "", body)
		cancel()
		switch {
		case answer.applied(), answer.code == done && inDoubt:
			p.tally.success()
			return
		case !answer.transient(), time.Since(began) > startTimeout:
			p.tally.violation("a client that retries gives up %s %s after %d attempts in %v: %v", verb, path,
				attempt+1, time.Since(began), answer)
			return
		}
		inDoubt = true
		wait(context.Background(), 100*time.Millisecond)
	}
}
