package api

import (
	"bytes"
	"mime"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxHeavy is how much memory is given to what bodies grow to, but for light ones.
	maxHeavy = 1 << 30
	// lightBody is what a body may grow to and wait for no other; one of up to tinyBody never grows to more.
	lightBody = maxTrusted
	tinyBody  = lightBody / yamlWeight
	// mapWeight and itemWeight are what a map and an item of a map or a list may take in memory as they are decoded, and before they are garbage.
	mapWeight, itemWeight = 400, 100
	// blindWeight is how many times its size a body that cannot be looked into may grow to, and yamlWeight one in YAML: 3 MiB to 1 GiB.
	blindWeight, yamlWeight = 100, 400
)

// content is the body of the request, once there is room to work on it.
func (q *request) content() ([]byte, error) {
	data, err := q.body()
	if err == nil {
		err = q.acquireBody(data)
	}
	return data, err
}

// acquireBody waits until there is room for what a body grows to, and takes it. As a tree, a body may be a hundred times as large:
// a few dozen at once would take all memory, and one after the other they are done as soon. Upstream bounds the
// requests in flight instead. The room is given back before the answer is sent, so that who reads slowly keeps nobody.
func (q *request) acquireBody(data []byte) error {
	if len(data) <= tinyBody {
		return nil
	}
	n := q.grown(data)
	if n <= lightBody {
		return nil
	}
	if !q.room().TryAcquire(n) {
		ctx, cancel := q.limited()
		defer cancel()
		if err := q.room().Acquire(ctx, n); err != nil {
			return timedOut()
		}
	}
	q.weight = n
	return nil
}

// grown is about what a body takes in memory at most, as it is worked on.
func (q *request) grown(data []byte) int64 {
	n, text := len(data), bytes.TrimLeft(data, " \t\r\n")
	switch {
	case q.isYAML(data):
		n *= yamlWeight
	case !bytes.HasPrefix(text, []byte("{")) && !bytes.HasPrefix(text, []byte("[")):
		n *= blindWeight // protobuf, CBOR, or nothing that can be read
	default:
		n += mapWeight*bytes.Count(data, []byte("{")) + itemWeight*(bytes.Count(data, []byte(","))+bytes.Count(data, []byte("[")))
	}
	return int64(min(n, maxHeavy))
}

// releaseBody gives back what acquireBody took, once.
func (q *request) releaseBody() {
	if n := q.weight; n > 0 {
		q.weight = 0
		q.room().Release(n)
	}
}

// room is where large bodies of a kind take their turns. Those that may have to wait for a webhook have one of their own.
func (q *request) room() *semaphore.Weighted {
	if q.v != nil && q.v.Definition.Custom != nil && q.v.Definition.Custom.Conversion.Webhook != "" {
		return q.server.webhookRoom
	}
	return q.server.bodyRoom
}

// isYAML says that a body goes to the YAML parser, as far as can be seen.
func (q *request) isYAML(data []byte) bool {
	t, _, _ := mime.ParseMediaType(q.r.Header.Get("Content-Type"))
	if t == string(types.ApplyYAMLPatchType) {
		return !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{"))
	}
	return t == mediaYAML
}
