package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/weight"
)

const (
	// defaultBudget is the default of Config.MemoryBudget in bytes.
	defaultBudget = 1 << 30
	// maxFreeWeight is the maximum weight of a request that needs no memory from the budget. The seats of API
	// Priority and Fairness limit the number of these requests.
	maxFreeWeight = 256 << 10
	// webhookShare limits requests of kinds with a conversion webhook to 1/webhookShare of the budget. These
	// requests wait for webhooks and must not use up the whole budget.
	webhookShare = 2
	// traceFactor multiplies the weight of a traced write. The trace holds the object after each step, and the
	// response.
	traceFactor = 2
	// retryAfter is the Retry-After value, in seconds, of a response that reports a lack of memory or slots.
	retryAfter = 1
)

// budget limits the memory for the bodies of all requests in progress. The weight of a request is the memory in
// bytes that its body takes.
type budget struct {
	size     int64
	all      *semaphore.Weighted
	webhooks *semaphore.Weighted // additional limit for kinds with a conversion webhook
	// untyped is the weight table of custom objects. deletes is the weight table of DeleteOptions.
	untyped, deletes *weight.Table
}

func newBudget(size int64) budget {
	if size <= 0 {
		size = defaultBudget
	}
	return budget{
		size: size, all: semaphore.NewWeighted(size), webhooks: semaphore.NewWeighted(size / webhookShare),
		untyped: weight.NewTable(reflect.TypeFor[metav1.PartialObjectMetadata]()),
		deletes: weight.NewTable(reflect.TypeFor[metav1.DeleteOptions]()),
	}
}

// readBudgetedBody reads the body of the request. It blocks until the budget has enough memory for the request.
func (q *request) readBudgetedBody() ([]byte, error) {
	data, err := q.readBody()
	if err == nil {
		err = q.acquireBody(data)
	}
	return data, err
}

// acquireBody blocks until the budget has enough memory for the request, and acquires it. The decoded form of a
// body can be a thousand times larger than the body. Upstream limits the number of requests in flight instead.
//
// An expensive request acquires a slot before the memory, because slots are shared equally among users. releaseBody
// is called before the response is written, so that a client that reads slowly blocks no other request.
func (q *request) acquireBody(data []byte) error {
	if len(data) > expensiveBody {
		if err := q.takeSlot(len(data)); err != nil {
			return err
		}
	}
	parse, n := q.bodyWeight(data)
	n += q.storedWeight()
	if q.trace != nil {
		parse, n = parse*traceFactor, n*traceFactor
	}
	if n <= maxFreeWeight {
		return nil
	}
	b := &q.server.budget
	if parse > b.size {
		return bodyTooHeavy(parse, b.size)
	}
	if err := q.takeSlot(len(data)); err != nil {
		return err
	}
	q.inWebhookShare = q.v != nil && conversion.UsesWebhook(q.v.Definition)
	return q.acquireMemory(min(n, b.size))
}

// acquireMemory acquires n bytes of the budget. While it blocks, the request releases its slot, because another
// request that holds memory may need the slot.
func (q *request) acquireMemory(n int64) error {
	b := &q.server.budget
	hooks := min(n, b.size/webhookShare)
	if !q.inWebhookShare && b.all.TryAcquire(n) {
		q.weight = n
		return nil
	}
	ctx, cancel := q.writeContext()
	defer cancel()
	defer q.slot.Pause(ctx)()
	if q.inWebhookShare && b.webhooks.Acquire(ctx, hooks) != nil {
		q.inWebhookShare = false
		return memoryUnavailable()
	}
	if b.all.Acquire(ctx, n) != nil {
		if q.inWebhookShare {
			b.webhooks.Release(hooks)
			q.inWebhookShare = false
		}
		return memoryUnavailable()
	}
	q.weight = n
	return nil
}

// releaseBody releases the memory that acquireBody acquired. Later calls do nothing.
func (q *request) releaseBody() {
	if n := q.weight; n > 0 {
		q.server.budget.all.Release(n)
		q.releaseWebhookShare()
		q.weight = 0
	}
}

func (q *request) releaseWebhookShare() {
	if b := &q.server.budget; q.inWebhookShare {
		b.webhooks.Release(min(q.weight, b.size/webhookShare))
		q.inWebhookShare = false
	}
}

// reserveDecoded computes the weight of a decoded object. It acquires the missing memory or returns an error. It
// does not block, because two requests that hold memory could wait for each other.
func (q *request) reserveDecoded(t object.Tree) error {
	n, b := weightTable(q.bodyVersion(), &q.server.budget).Tree(t), &q.server.budget
	switch {
	case n > b.size:
		return bodyTooHeavy(n, b.size)
	case n <= max(q.weight, maxFreeWeight):
		return nil
	case !b.all.TryAcquire(n - q.weight):
		return memoryUnavailable()
	}
	q.releaseWebhookShare() // the weight changes, so the acquired share no longer matches it
	q.weight = n
	return nil
}

// bodyWeight returns n, the memory in bytes that the body takes while the server processes it. For some formats
// only bounds are known: parse is the lower bound and n the upper bound. reserveDecoded then weighs the decoded
// object.
func (q *request) bodyWeight(data []byte) (parse, n int64) {
	if len(data) == 0 {
		return 0, 0
	}
	table := weightTable(q.bodyVersion(), &q.server.budget)
	if q.r.Method == http.MethodDelete {
		table = q.server.budget.deletes
	}
	mediaType, _, _ := strings.Cut(q.r.Header.Get("Content-Type"), ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	switch mediaType {
	case mediaProtobuf:
		n = table.Protobuf(data)
		return n, n
	case mediaCBOR, string(types.ApplyCBORPatchType):
		q.weightEstimated = true
		return table.CBOR(data)
	case mediaYAML:
		return q.yamlWeight(table, data)
	case string(types.JSONPatchType):
		q.weightEstimated = true
		if parse, n = table.Opaque(data); bytes.Contains(data, []byte("copy")) || bytes.Contains(data, []byte(`\u`)) {
			n = q.server.budget.size // the copied value may have any size
		}
		return parse, n
	}
	if _, n = table.Opaque(data); n <= maxFreeWeight && mediaType != string(types.ApplyYAMLPatchType) {
		return n, n
	}
	if mediaType == string(types.ApplyYAMLPatchType) && !json.Valid(data) {
		return q.yamlWeight(table, data)
	}
	n = table.JSON(data)
	return n, n
}

func (q *request) yamlWeight(table *weight.Table, data []byte) (parse, n int64) {
	q.weightEstimated = true
	parse, n, aliases := table.YAML(data)
	if aliases {
		n = q.server.budget.size // the repeated values may have any size
	}
	return parse, n
}

// storedWeight returns the weight of the stored object, because updates, patches and deletions decode it too.
func (q *request) storedWeight() int64 {
	if q.v == nil || q.name == "" || q.verb == verbCreate {
		return 0
	}
	stored := q.server.engine.Stored(q.target())
	table := weightTable(q.v, &q.server.budget)
	if _, n := table.Opaque(stored); n <= maxFreeWeight {
		return n
	}
	return table.JSON(stored)
}

func weightTable(v *resource.Version, b *budget) *weight.Table {
	if v == nil || v.Type == nil {
		return b.untyped
	}
	return v.Type.Weights()
}

// withMemoryCheck returns c. If only bounds of the body's weight are known, it sets c.CheckMemory, so that the
// engine weighs the decoded object.
func (q *request) withMemoryCheck(c verb.Caller) verb.Caller {
	if q.weightEstimated {
		c.CheckMemory = q.reserveDecoded
	}
	return c
}

// bodyTooHeavy returns the 413 for a body that needs more memory than the whole budget.
func bodyTooHeavy(n, limit int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"the body takes up to %d bytes of memory, the limit is %d", n, limit))
}

// memoryUnavailable returns the 503 for a request that got no memory before its deadline.
func memoryUnavailable() error {
	return unavailable("the server has no memory for the body of this request now, please try again")
}

// unavailable returns a 503 with Retry-After, so that clients retry.
func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
