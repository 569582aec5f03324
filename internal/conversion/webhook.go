package conversion

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The limits of one call to a webhook. A list is as many calls as it takes.
const (
	callTimeout     = 30 * time.Second // upstream's, as the whole request has
	allTimeout      = 60 * time.Second
	maxCallObjects  = 500
	maxCallBytes    = 4 << 20  // of objects, unless one alone is larger
	maxAnswerBytes  = 64 << 20 // of a response
	maxFailureBytes = 32 << 10 // of what is told of one
	maxCallsAtATime = 4        // for one request
)

// forgetAfter is how long a configuration that nobody uses is kept, with its connections.
const forgetAfter = 2 * time.Minute

// WebhookConfig is what Webhooks needs of the world.
type WebhookConfig struct {
	// Egress is how webhooks are reached; nil is one that finds no Services.
	Egress *egress.Dialer
	// Credentials are those of calls; nil: calls have none.
	Credentials *credentials.Source
	// Disconnected, unless nil, is told the JSON of spec.conversion.webhook to whose webhook a connection has broken
	// (egress.Options). It must not block.
	Disconnected func(webhook string)
	// Timeout bounds what one request may wait for, all its calls together, and so each of them; 0 means a minute.
	Timeout time.Duration
	// Observe, unless nil, gets every call that was made or refused; it must not block.
	Observe func(Call)
	// Report, unless nil, is told that a webhook that a CRD names cannot be reached, and that it answers (err is nil): the
	// first time that it does, and after each time that it could not be reached. One that could not is looked for until it
	// accepts a connection. err is nil too for a CRD that names no webhook any longer. It must not block.
	Report func(crd string, err error)
	// WebhookOf, unless nil, returns the JSON of spec.conversion.webhook that a CRD has now; "" if it has none. It must not block.
	WebhookOf func(crd string) string
}

// Call is one call to a webhook, as metrics count it.
type Call struct {
	CRD      string // its name
	From, To string // versions; From is the first object's
	Duration time.Duration
	Failure  string // upstream's failure_type; "" for a success
}

// Webhooks calls the conversion webhooks of a server. Connections, trust roots and the memory of failures are kept for
// each configuration, that is for each text of spec.conversion.webhook: a CRD that is changed is called as it now says
// from the next request on, and CRDs that say the same share connections.
type Webhooks struct {
	config WebhookConfig
	ended  context.Context // nothing is looked for when it is done
	end    context.CancelFunc
	reach  reachability

	mu      sync.Mutex
	callers map[string]*caller
}

// NewWebhooks returns Webhooks that call nobody yet.
func NewWebhooks(c WebhookConfig) *Webhooks {
	if c.Egress == nil {
		c.Egress = &egress.Dialer{}
	}
	if c.Timeout == 0 {
		c.Timeout = allTimeout
	}
	if c.Observe == nil {
		c.Observe = func(Call) {}
	}
	if c.Report == nil {
		c.Report = func(string, error) {}
	}
	if c.Disconnected == nil {
		c.Disconnected = func(string) {}
	}
	ended, end := context.WithCancel(context.Background())
	return &Webhooks{
		config: c, ended: ended, end: end, callers: map[string]*caller{},
		reach: reachability{report: c.Report, crds: map[string]verdict{}, probing: map[*caller]bool{}},
	}
}

// Close closes the connections that are idle. Calls under way go on.
func (w *Webhooks) Close() {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.callers {
		c.transport.Close()
	}
}

// Convert is a Webhook. The batches of one call are on their way at the same time, a few of them.
func (w *Webhooks) Convert(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	c, err := w.caller(to.Definition.Custom.Conversion.Webhook)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	bounded, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	var out []object.Tree
	if len(objects) == 1 {
		out, err = c.convert(bounded, to, batch{objects: objects, json: object.AppendJSON(nil, objects[0])})
	} else {
		out, err = c.convertAll(bounded, to, objects)
	}
	return out, asStatus(ctx, err)
}

// Generation is that of the endpoints of the webhook of a configuration, which is the JSON of spec.conversion.webhook: it
// grows when its Service may lead elsewhere.
func (w *Webhooks) Generation(config string) uint64 {
	c, err := w.caller(config)
	if err != nil {
		return 0 // nobody is called
	}
	return c.transport.Generation()
}

// UnreachableError says that a webhook could not be asked, or has not answered; any other error is one in its answer.
type UnreachableError struct{ *apierrors.StatusError }

// Unwrap is for errors.As.
func (e *UnreachableError) Unwrap() error { return e.StatusError }

// unreachable is the error of a call that got no answer.
type unreachable struct{ error }

// Unwrap is for errors.Is.
func (e unreachable) Unwrap() error { return e.error }

// asStatus is the error as clients see it; that of a request which has ended stays what it is.
func asStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	status := apierrors.NewInternalError(err)
	if errors.As(err, &unreachable{}) {
		return &UnreachableError{status}
	}
	return status
}

// convertAll converts objects in batches, a few at a time. Of several that fail, the first one's error is told.
func (c *caller) convertAll(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make([]object.Tree, len(objects))
	var mu sync.Mutex
	var first int
	var failure error
	batches := make(chan batch)
	var running sync.WaitGroup
	for range min(maxCallsAtATime, (len(objects)+maxCallObjects-1)/maxCallObjects+1) {
		running.Go(func() {
			for b := range batches {
				converted, err := c.convert(ctx, to, b)
				if err == nil {
					copy(out[b.first:], converted)
					continue
				}
				mu.Lock()
				if failure == nil || errors.Is(failure, context.Canceled) || b.first < first && !errors.Is(err, context.Canceled) {
					first, failure = b.first, err
				}
				mu.Unlock()
				cancel()
			}
		})
	}
	for b := range divide(objects) {
		if ctx.Err() != nil {
			break
		}
		batches <- b
	}
	close(batches)
	running.Wait()
	if failure == nil {
		failure = ctx.Err()
	}
	return out, failure
}

// batch is the objects of one call, and their JSON with commas between them.
type batch struct {
	first   int // its place among all objects
	objects []object.Tree
	json    []byte
}

// divide encodes objects and yields as many together as may go into one call.
func divide(objects []object.Tree) iter.Seq[batch] {
	return func(yield func(batch) bool) {
		first, json := 0, []byte(nil)
		for i, o := range objects {
			end := len(json)
			if i > first {
				json = append(json, ',')
			}
			json = object.AppendJSON(json, o)
			if i == first || i-first < maxCallObjects && len(json) <= maxCallBytes {
				continue
			}
			if !yield(batch{first, objects[first:i], json[:end:end]}) {
				return
			}
			first, json = i, append(make([]byte, 0, end+end/8), json[end+1:]...)
		}
		yield(batch{first, objects[first:], json})
	}
}

// caller finds who calls the webhook of a configuration.
func (w *Webhooks) caller(config string) (*caller, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	c := w.callers[config]
	if c == nil {
		var err error
		if c, err = newCaller(config, w); err != nil {
			return nil, err
		}
		w.sweep(now)
		w.callers[config] = c
	}
	c.used = now
	return c, nil
}

// sweep forgets what has not been used for a while: CRDs that are gone or say something else now.
func (w *Webhooks) sweep(now time.Time) {
	for config, c := range w.callers {
		if now.Sub(c.used) > forgetAfter && w.reach.drop(c) {
			c.transport.Close()
			delete(w.callers, config)
		}
	}
}
