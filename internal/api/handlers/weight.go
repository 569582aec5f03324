package handlers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/weight"
)

// traceFactor multiplies the weight of a traced write. The trace holds the object after each step, and the response.
const traceFactor = 2

// readBudgetedBody reads the body of the request. It blocks until the budget has enough memory for the request.
func (q call) readBudgetedBody() ([]byte, error) {
	data, err := q.readBody()
	if err == nil {
		err = q.acquireBody(data)
	}
	return data, err
}

// acquireBody blocks until the budget has enough memory for the request, and acquires it. The decoded form of a
// body can be a thousand times larger than the body. Upstream limits the number of requests in flight instead.
//
// An expensive request acquires a slot before the memory, because slots are shared equally among users. releaseMemory
// is called before the response is written, so that a client that reads slowly blocks no other request.
func (q call) acquireBody(data []byte) error {
	if len(data) > request.ExpensiveBody {
		if err := q.TakeSlot(len(data)); err != nil {
			return err
		}
	}
	parse, n := q.bodyWeight(data)
	n += q.storedWeight()
	if q.Trace != nil {
		parse, n = parse*traceFactor, n*traceFactor
	}
	if n <= request.MaxFreeWeight {
		return nil
	}
	if parse > q.Limits.Memory {
		return q.BodyTooHeavy(parse)
	}
	if err := q.TakeSlot(len(data)); err != nil {
		return err
	}
	return q.AcquireMemory(n, conversion.UsesWebhook(q.Kind.Definition))
}

// reserveDecoded computes the weight of a decoded object. It acquires the missing memory or returns an error.
func (q call) reserveDecoded(t object.Tree) error {
	return q.GrowMemory(weightTable(q.bodyVersion()).Tree(t))
}

// bodyWeight returns n, the memory in bytes that the body takes while the server processes it. For some formats
// only bounds are known: parse is the lower bound and n the upper bound. reserveDecoded then weighs the decoded
// object.
func (q call) bodyWeight(data []byte) (parse, n int64) {
	if len(data) == 0 {
		return 0, 0
	}
	table := weightTable(q.bodyVersion())
	if q.R.Method == http.MethodDelete {
		table = deleteWeights
	}
	mediaType, _, _ := strings.Cut(q.R.Header.Get("Content-Type"), ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		n = table.Protobuf(data)
		return n, n
	case runtime.ContentTypeCBOR, string(types.ApplyCBORPatchType):
		q.WeightEstimated = true
		return table.CBOR(data)
	case runtime.ContentTypeYAML:
		return q.yamlWeight(table, data)
	case string(types.JSONPatchType):
		q.WeightEstimated = true
		if parse, n = table.Opaque(data); bytes.Contains(data, []byte("copy")) || bytes.Contains(data, []byte(`\u`)) {
			n = q.Limits.Memory // the copied value may have any size
		}
		return parse, n
	}
	if _, n = table.Opaque(data); n <= request.MaxFreeWeight && mediaType != string(types.ApplyYAMLPatchType) {
		return n, n
	}
	if mediaType == string(types.ApplyYAMLPatchType) && !json.Valid(data) {
		return q.yamlWeight(table, data)
	}
	n = table.JSON(data)
	return n, n
}

func (q call) yamlWeight(table *weight.Table, data []byte) (parse, n int64) {
	q.WeightEstimated = true
	parse, n, aliases := table.YAML(data)
	if aliases {
		n = q.Limits.Memory // the repeated values may have any size
	}
	return parse, n
}

// storedWeight returns the weight of the stored object, because updates, patches and deletions decode it too.
func (q call) storedWeight() int64 {
	if q.Name == "" || q.Verb == request.VerbCreate {
		return 0
	}
	stored := q.Engine.Stored(q.Target())
	table := weightTable(q.Kind)
	if _, n := table.Opaque(stored); n <= request.MaxFreeWeight {
		return n
	}
	return table.JSON(stored)
}

// customWeights is the weight table of custom objects. deleteWeights is the weight table of DeleteOptions.
var (
	customWeights = weight.NewTable(reflect.TypeFor[metav1.PartialObjectMetadata]())
	deleteWeights = weight.NewTable(reflect.TypeFor[metav1.DeleteOptions]())
)

func weightTable(v *resource.Version) *weight.Table {
	if v.Type == nil {
		return customWeights
	}
	return v.Type.Weights()
}

// withMemoryCheck returns c. If only bounds of the body's weight are known, it sets c.CheckMemory, so that the
// engine weighs the decoded object.
func (q call) withMemoryCheck(c verb.Caller) verb.Caller {
	if q.WeightEstimated {
		c.CheckMemory = q.reserveDecoded
	}
	return c
}
