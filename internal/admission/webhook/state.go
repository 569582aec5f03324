package webhook

import (
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

// writeState is the state that a plugin stores for a write, across attempts.
type writeState struct {
	reinvocation
	responses map[responseKey]cachedResponse
}

// responseKey identifies a call of a webhook. In one attempt at a write, each call is made at most once.
type responseKey struct {
	webhook   string // UID of the webhook
	client    *pooledClient
	reinvoked bool // the call is a reinvocation
}

// cachedResponse is the response to a call, with the objects in the call. If the write starts over with the same
// objects, the webhook is not called again. So, as in upstream, a webhook is called once for a create that succeeds.
type cachedResponse struct {
	obj, old object.Tree
	*request.AdmissionResponse
}

// stateOf returns the plugin's state for a write.
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

func (s *reviewRequest) responseKey(h *hook) responseKey {
	return responseKey{h.GetUID(), h.client, s.Request.Reinvoked}
}

// cached returns the response of a webhook in an earlier attempt, or nil if the webhook must be called.
func (s *reviewRequest) cached(h *hook, a *upstream.VersionedAttributes) *request.AdmissionResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.responses[s.responseKey(h)]
	if known.AdmissionResponse == nil || !object.Equal(known.obj, treeOf(a.VersionedObject.Object())) ||
		!object.Equal(known.old, treeOf(a.VersionedOldObject.Object())) {
		return nil
	}
	return known.AdmissionResponse
}
