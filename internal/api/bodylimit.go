package api

import (
	"bytes"
	"mime"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// lightBody is up to what size a body waits for no other.
	lightBody = maxTrusted
	// maxHeavy is how many bytes of larger bodies are worked on at a time: four of the largest in JSON, or one in YAML.
	maxHeavy = 4 * maxBody
	// yamlWeight is how much more the YAML parser makes of a body than that of JSON: up to 1 GiB of 3 MiB.
	yamlWeight = 4
)

// content is the body of the request, once there is room to work on it.
func (q *request) content() ([]byte, error) {
	data, err := q.body()
	if err == nil {
		err = q.acquireBody(data)
	}
	return data, err
}

// acquireBody waits until there is room for a large body, and takes it. As a tree, a body may be a hundred times as large:
// a few dozen at once would take all memory, and one after the other they are done as soon. Upstream bounds the
// requests in flight instead. The room is given back before the answer is sent, so that who reads slowly keeps nobody.
func (q *request) acquireBody(data []byte) error {
	if len(data) <= lightBody {
		return nil
	}
	n := int64(len(data))
	if q.isYAML(data) {
		n = min(n*yamlWeight, maxHeavy)
	}
	ctx, cancel := q.limited()
	defer cancel()
	if err := q.room().Acquire(ctx, n); err != nil {
		return timedOut()
	}
	q.weight = n
	return nil
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
