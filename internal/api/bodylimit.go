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

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/weight"
)

const (
	// defaultBudget is the memory for request bodies in work, where Config does not set it.
	defaultBudget = 1 << 30
	// lightBody is the largest weight of a request that waits for no other. Seats bound how many there are at once.
	lightBody = 256 << 10
	// webhookShare is the part of the budget that objects of webhook-converted kinds may take: their requests wait for webhooks.
	webhookShare = 2
	// traceFactor is how many times its weight a traced write takes: the trace holds the object as steps left it, and its answer.
	traceFactor = 2
	// retryAfter is the time in seconds after which a client may repeat a request that did not fit.
	retryAfter = 1
)

// budget is the memory for request bodies in work, in bytes.
type budget struct {
	size  int64
	all   *semaphore.Weighted
	hooks *semaphore.Weighted // the part for webhook-converted kinds, each of which counts in all as well
	// untyped and deletes are the weights of custom objects and of DeleteOptions.
	untyped, deletes *weight.Table
}

func newBudget(size int64) budget {
	if size <= 0 {
		size = defaultBudget
	}
	return budget{
		size: size, all: semaphore.NewWeighted(size), hooks: semaphore.NewWeighted(size / webhookShare),
		untyped: weight.Of(reflect.TypeFor[metav1.PartialObjectMetadata]()), deletes: weight.Of(reflect.TypeFor[metav1.DeleteOptions]()),
	}
}

// content reads the body of the request, and blocks until the budget has memory for it.
func (q *request) content() ([]byte, error) {
	data, err := q.body()
	if err == nil {
		err = q.acquireBody(data)
	}
	return data, err
}

// acquireBody blocks until the budget has memory for the request, and takes it. In memory a body may grow a thousand times. Upstream
// bounds the number of requests in flight instead. An expensive request also takes a slot: first the slot, so that users take turns.
// releaseBody is called before the response is written, so a slow reader blocks no other request.
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
	if n <= lightBody {
		return nil
	}
	b := &q.server.budget
	if parse > b.size {
		return tooHeavy(parse, b.size)
	}
	if err := q.takeSlot(len(data)); err != nil {
		return err
	}
	q.hooked = q.v != nil && q.v.Definition.Custom != nil && q.v.Definition.Custom.Conversion.Webhook != ""
	return q.acquireMemory(min(n, b.size))
}

// acquireMemory takes n bytes of the budget. The request has no slot while it waits for them: those that have memory may need one.
func (q *request) acquireMemory(n int64) error {
	b := &q.server.budget
	hooks := min(n, b.size/webhookShare)
	if !q.hooked && b.all.TryAcquire(n) {
		q.weight = n
		return nil
	}
	ctx, cancel := q.limited()
	defer cancel()
	defer q.slot.Pause(ctx)()
	if q.hooked && b.hooks.Acquire(ctx, hooks) != nil {
		q.hooked = false
		return crowded()
	}
	if b.all.Acquire(ctx, n) != nil {
		if q.hooked {
			b.hooks.Release(hooks)
			q.hooked = false
		}
		return crowded()
	}
	q.weight = n
	return nil
}

// releaseBody releases what acquireBody took, once.
func (q *request) releaseBody() {
	if n := q.weight; n > 0 {
		q.server.budget.all.Release(n)
		q.releaseHooks()
		q.weight = 0
	}
}

func (q *request) releaseHooks() {
	if b := &q.server.budget; q.hooked {
		b.hooks.Release(min(q.weight, b.size/webhookShare))
		q.hooked = false
	}
}

// affords weighs a decoded object of whose body only a bound was known. It takes the missing memory or refuses the object. It does not
// block, because requests that hold memory must not wait for each other.
func (q *request) affords(t object.Tree) error {
	n, b := tableOf(q.sends(), &q.server.budget).Tree(t), &q.server.budget
	switch {
	case n > b.size:
		return tooHeavy(n, b.size)
	case n <= max(q.weight, lightBody):
		return nil
	case !b.all.TryAcquire(n - q.weight):
		return crowded()
	}
	q.releaseHooks() // a part of what was taken there is not all that is held now
	q.weight = n
	return nil
}

// bodyWeight returns the memory that a body takes while the server works on the request, in bytes. For some formats n is an upper bound
// only: parse is then the lower one, and affords weighs the decoded object.
func (q *request) bodyWeight(data []byte) (parse, n int64) {
	if len(data) == 0 {
		return 0, 0
	}
	table := tableOf(q.sends(), &q.server.budget)
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
		q.unseen = true
		return table.CBOR(data)
	case mediaYAML:
		return q.yamlWeight(table, data)
	case string(types.JSONPatchType):
		q.unseen = true
		if parse, n = table.Opaque(data); bytes.Contains(data, []byte("copy")) || bytes.Contains(data, []byte(`\u`)) {
			n = q.server.budget.size // what it copies may be anything
		}
		return parse, n
	}
	if _, n = table.Opaque(data); n <= lightBody && mediaType != string(types.ApplyYAMLPatchType) {
		return n, n
	}
	if mediaType == string(types.ApplyYAMLPatchType) && !json.Valid(data) {
		return q.yamlWeight(table, data)
	}
	n = table.JSON(data)
	return n, n
}

func (q *request) yamlWeight(table *weight.Table, data []byte) (parse, n int64) {
	q.unseen = true
	parse, n, aliases := table.YAML(data)
	if aliases {
		n = q.server.budget.size // what they repeat may be anything
	}
	return parse, n
}

// storedWeight returns the memory of the stored object in bytes, which an update, a patch or a deletion decodes as well.
func (q *request) storedWeight() int64 {
	if q.v == nil || q.name == "" || q.verb == verbCreate {
		return 0
	}
	stored := q.server.engine.Stored(q.target())
	table := tableOf(q.v, &q.server.budget)
	if _, n := table.Opaque(stored); n <= lightBody {
		return n
	}
	return table.JSON(stored)
}

func tableOf(v *resource.Version, b *budget) *weight.Table {
	if v == nil || v.Type == nil {
		return b.untyped
	}
	return v.Type.Weights()
}

// checked has the engine weigh the decoded object where only a bound of its weight is known.
func (q *request) checked(c engine.Caller) engine.Caller {
	if q.unseen {
		c.CheckMemory = q.affords
	}
	return c
}

// tooHeavy returns the 413 for a body that weighs more than the budget.
func tooHeavy(n, limit int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body takes up to %d bytes of memory, the limit is %d", n, limit))
}

// crowded returns the 503 for a request that did not get memory before its deadline.
func crowded() error {
	return unavailable("the server has no memory for the body of this request now, please try again")
}

// unavailable returns a 503 after which clients try again.
func unavailable(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
