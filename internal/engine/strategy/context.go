package strategy

import (
	"context"

	"github.com/go-logr/logr"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// StrategyContext returns the write's context with the values that strategies need: the request info, the
// namespace, the user and a warning recorder. Declarative validation fails if they are missing.
func (w *Write) StrategyContext() context.Context {
	gv := w.Version.GroupVersion
	info := &apirequest.RequestInfo{
		IsResourceRequest: true,
		Verb:              w.requestVerb(),
		APIPrefix:         "apis",
		APIGroup:          gv.Group,
		APIVersion:        gv.Version,
		Namespace:         w.Target.Namespace,
		Resource:          w.Def.Names.Plural,
		Subresource:       w.Target.Subresource,
		Name:              w.Target.Name, // the name in the URL path, or "" for a create
	}
	if gv.Group == "" {
		info.APIPrefix = "api"
	}
	// Discard the logs about differences between declarative and hand-written validation. They are for upstream's
	// developers.
	ctx := klog.NewContext(w.Ctx, logr.Discard())
	ctx = apirequest.WithNamespace(apirequest.WithRequestInfo(ctx, info), w.Target.Namespace)
	if w.Caller.User != nil {
		ctx = apirequest.WithUser(ctx, w.Caller.User)
	}
	return warning.WithWarningRecorder(ctx, recorder{w})
}

// requestVerb returns the verb of the request.
func (w *Write) requestVerb() string {
	switch {
	case w.Op == admission.Delete:
		return "delete"
	case w.IsPatch:
		return "patch"
	case w.CreateOnly:
		return "create"
	}
	return "update"
}

// recorder collects the warnings of strategies.
type recorder struct{ w *Write }

// AddWarning implements warning.Recorder.
func (r recorder) AddWarning(_, text string) { r.w.Warn(text) }
