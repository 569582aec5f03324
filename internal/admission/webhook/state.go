package webhook

import (
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

// writeState is what a plugin keeps of a write.
type writeState struct {
	reinvocation
	responses map[responseKey]cachedResponse
}

// responseKey is one to a webhook, which it is asked once in an attempt at a write. answer is what it has said, and of which objects: where
// the write starts over, and they are the same, it is not asked again. As upstream has it, a create that nobody refuses is
// told to each webhook once.
type responseKey struct {
	webhook string // the uid
	client  *pooledClient
	reinvoked   bool // in the second round
}

type cachedResponse struct {
	obj, old object.Tree
	*request.AdmissionResponse
}

// stateOf is what the plugin has kept of a write.
func (p *plugin) stateOf(r *admission.Request) *writeState {
	if k, ok := r.PluginState[p.name].(*writeState); ok {
		return k
	}
	if r.PluginState == nil {
		r.PluginState = map[string]any{}
	}
	k := &writeState{responses: map[responseKey]cachedResponse{}}
	r.PluginState[p.name] = k
	return k
}

func (s *reviewRequest) responseKey(h *hook) responseKey { return responseKey{h.GetUID(), h.client, s.Request.Reinvoked} }

// cached is what a webhook has answered in an earlier attempt; nil: it is to be asked.
func (s *reviewRequest) cached(h *hook, a *upstream.VersionedAttributes) *request.AdmissionResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.responses[s.responseKey(h)]
	if known.AdmissionResponse == nil || !object.Equal(known.obj, treeOf(a.VersionedObject.Object())) || !object.Equal(known.old, treeOf(a.VersionedOldObject.Object())) {
		return nil
	}
	return known.AdmissionResponse
}
