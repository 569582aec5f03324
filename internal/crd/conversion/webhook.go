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

// Limits of one call to a webhook. The conversion of a list can need several calls.
const (
	callTimeout      = 30 * time.Second // upstream's limit
	allTimeout       = 60 * time.Second
	maxCallObjects   = 500
	maxCallBytes     = 4 << 20  // size of the objects; a single object may be larger
	maxResponseBytes = 64 << 20 // size of a response
	maxFailureBytes  = 32 << 10 // size of an error message
	maxParallelCalls = 4        // concurrent calls for one request
)

// idleTimeout is the time after which an unused configuration is evicted with its connections.
const idleTimeout = 2 * time.Minute

// WebhookConfig holds the dependencies of Webhooks.
type WebhookConfig struct {
	// Egress dials webhooks. nil means that Services cannot be resolved.
	Egress *egress.Dialer
	// Credentials authenticate the server to webhooks. nil means that calls have no credentials.
	Credentials *credentials.Source
	// Disconnected is called with the JSON of spec.conversion.webhook when a connection to the webhook breaks
	// (egress.Options). It must not block. nil means no notification.
	Disconnected func(webhook string)
	// Timeout is the maximum total time of the calls for one request. 0 means one minute.
	Timeout time.Duration
	// Observe is called for every call, including rejected ones. It must not block. nil means no notification.
	Observe func(Call)
	// Report is called when the state of the webhook of a CRD changes. err is the reason if the webhook became
	// unreachable. err is nil if the webhook has become reachable, has responded for the first time, or was removed
	// from the CRD. An unreachable webhook is probed until it accepts a connection. Report must not block. nil means
	// no notification.
	Report func(crd string, err error)
	// Unavailable reports whether a server has written that the webhook of a CRD is unreachable. Report is then called
	// after each successful call, because that server may have stopped. nil means that no server has.
	Unavailable func(crd string) bool
	// WebhookOf returns the current JSON of spec.conversion.webhook of a CRD, or "" if the CRD has no webhook. It
	// must not block. nil means that changes of CRDs are not detected.
	WebhookOf func(crd string) string
}

// Call describes one call to a webhook for metrics.
type Call struct {
	CRD      string // name of the CRD
	From, To string // versions; a call can have objects of several versions, and From is that of the first
	Duration time.Duration
	Failure  string // upstream's failure_type; "" means success
}

// Webhooks calls the conversion webhooks of a server. It keeps connections, trust roots and failures for each
// configuration, which is the JSON of spec.conversion.webhook. After a change of a CRD, the next request uses the new
// configuration. CRDs with equal configurations share connections.
type Webhooks struct {
	config WebhookConfig
	done   context.Context // probing ends when this context is done
	cancel context.CancelFunc
	reach  reachability

	mu      sync.Mutex
	clients map[string]*webhookClient
}

// NewWebhooks returns Webhooks without connections.
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
	if c.Unavailable == nil {
		c.Unavailable = func(string) bool { return false }
	}
	if c.Disconnected == nil {
		c.Disconnected = func(string) {}
	}
	done, cancel := context.WithCancel(context.Background())
	return &Webhooks{
		config: c, done: done, cancel: cancel, clients: map[string]*webhookClient{},
		reach: reachability{report: c.Report, unavailable: c.Unavailable, crds: map[string]webhookState{},
			probing: map[*webhookClient]bool{}},
	}
}

// Close closes idle connections and ends probing. Calls in flight continue.
func (w *Webhooks) Close() {
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.clients {
		c.transport.Close()
	}
}

// Convert implements Webhook. It splits many objects into batches and sends several batches concurrently.
func (w *Webhooks) Convert(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
	if len(objects) == 0 {
		return nil, nil
	}
	c, err := w.clientFor(to.Definition.Custom.Conversion.Webhook)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	timed, cancel := context.WithTimeout(ctx, w.config.Timeout)
	defer cancel()
	var out []object.Tree
	if len(objects) == 1 {
		out, err = c.convert(timed, to, batch{objects: objects, json: object.AppendJSON(nil, objects[0])})
	} else {
		out, err = c.convertAll(timed, to, objects)
	}
	return out, asStatus(ctx, err)
}

// Generation returns a number that grows when the endpoints of the Service of a webhook may have changed. The
// parameter config is the JSON of spec.conversion.webhook.
func (w *Webhooks) Generation(config string) uint64 {
	c, err := w.clientFor(config)
	if err != nil {
		return 0 // the configuration is invalid, so no webhook is called
	}
	return c.transport.Generation()
}

// UnreachableError is the error for a webhook that could not be called or did not respond. Every other error of a
// call is about a response.
type UnreachableError struct{ *apierrors.StatusError }

// Unwrap returns the wrapped error for errors.As.
func (e *UnreachableError) Unwrap() error { return e.StatusError }

// unreachable is the error of a call without a response.
type unreachable struct{ error }

// Unwrap returns the wrapped error for errors.Is.
func (e unreachable) Unwrap() error { return e.error }

// asStatus converts err to the error for clients. If the request has ended, it returns the error of ctx.
func asStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	status := apierrors.NewInternalError(err)
	if errors.As(err, &unreachable{}) {
		return &UnreachableError{status}
	}
	return status
}

// convertAll converts objects in batches, and a few batches concurrently. If several batches fail, it returns the
// error of the first of them.
func (c *webhookClient) convertAll(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree,
	error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make([]object.Tree, len(objects))
	var mu sync.Mutex
	var first int
	var failure error
	batches := make(chan batch)
	var running sync.WaitGroup
	for range min(maxParallelCalls, (len(objects)+maxCallObjects-1)/maxCallObjects+1) {
		running.Go(func() {
			for b := range batches {
				converted, err := c.convert(ctx, to, b)
				if err == nil {
					copy(out[b.first:], converted)
					continue
				}
				mu.Lock()
				if failure == nil || errors.Is(failure, context.Canceled) || b.first < first &&
					!errors.Is(err, context.Canceled) {
					first, failure = b.first, err
				}
				mu.Unlock()
				cancel()
			}
		})
	}
	for b := range splitBatches(objects) {
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

// batch holds the objects of one call, and the JSON of these objects, separated by commas.
type batch struct {
	first   int // index of the first object
	objects []object.Tree
	json    []byte
}

// splitBatches encodes objects and yields batches within the limits of one call.
func splitBatches(objects []object.Tree) iter.Seq[batch] {
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

// clientFor returns the client for a configuration.
func (w *Webhooks) clientFor(config string) (*webhookClient, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	c := w.clients[config]
	if c == nil {
		var err error
		if c, err = newWebhookClient(config, w); err != nil {
			return nil, err
		}
		w.evictUnused(now)
		w.clients[config] = c
	}
	c.used = now
	return c, nil
}

// evictUnused evicts the configurations that have not been used for idleTimeout. They can belong to CRDs that were
// deleted or changed.
func (w *Webhooks) evictUnused(now time.Time) {
	for config, c := range w.clients {
		if now.Sub(c.used) > idleTimeout && w.reach.dropUnused(c) {
			c.transport.Close()
			delete(w.clients, config)
		}
	}
}
