package webhook

import (
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/request"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

// kept is what a plugin keeps of a write.
type kept struct {
	rounds
	answers map[question]answer
}

// question is one to a webhook, which it is asked once in an attempt at a write. answer is what it has said, and of which objects: where
// the write starts over, and they are the same, it is not asked again. As upstream has it, a create that nobody refuses is
// told to each webhook once.
type question struct {
	webhook string // the uid
	caller  *caller
	again   bool // in the second round
}

type answer struct {
	obj, old object.Tree
	*request.AdmissionResponse
}

// keptOf is what the plugin has kept of a write.
func (p *plugin) keptOf(r *admission.Request) *kept {
	if k, ok := r.PluginState[p.name].(*kept); ok {
		return k
	}
	if r.PluginState == nil {
		r.PluginState = map[string]any{}
	}
	k := &kept{answers: map[question]answer{}}
	r.PluginState[p.name] = k
	return k
}

func (s *seen) question(h *hook) question { return question{h.GetUID(), h.caller, s.Request.Reinvoked} }

// earlier is what a webhook has answered in an earlier attempt; nil: it is to be asked.
func (s *seen) earlier(h *hook, a *upstream.VersionedAttributes) *request.AdmissionResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.kept.answers[s.question(h)]
	if known.AdmissionResponse == nil || !object.Equal(known.obj, treeOf(a.VersionedObject.Object())) || !object.Equal(known.old, treeOf(a.VersionedOldObject.Object())) {
		return nil
	}
	return known.AdmissionResponse
}
