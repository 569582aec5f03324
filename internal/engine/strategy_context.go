package engine

import (
	"context"

	"github.com/go-logr/logr"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// strategyContext returns the write's context with the values that strategies need: the request info, the
// namespace, the user and a warning recorder. Declarative validation fails if they are missing.
func (w *write) strategyContext() context.Context {
	gv := w.v.GroupVersion
	info := &apirequest.RequestInfo{
		IsResourceRequest: true,
		Verb:              w.verb(),
		APIPrefix:         "apis",
		APIGroup:          gv.Group,
		APIVersion:        gv.Version,
		Namespace:         w.target.Namespace,
		Resource:          w.def.Names.Plural,
		Subresource:       w.target.Subresource,
		Name:              w.target.Name, // the name in the URL path, or "" for a create
	}
	if gv.Group == "" {
		info.APIPrefix = "api"
	}
	// Discard the logs about differences between declarative and hand-written validation. They are for upstream's
	// developers.
	ctx := klog.NewContext(w.ctx, logr.Discard())
	ctx = apirequest.WithNamespace(apirequest.WithRequestInfo(ctx, info), w.target.Namespace)
	if w.caller.User != nil {
		ctx = apirequest.WithUser(ctx, w.caller.User)
	}
	return warning.WithWarningRecorder(ctx, recorder{w})
}

// verb returns the verb of the request.
func (w *write) verb() string {
	switch {
	case w.op == admission.Delete:
		return "delete"
	case w.isPatch:
		return "patch"
	case w.createOnly:
		return "create"
	}
	return "update"
}

// recorder collects the warnings of strategies.
type recorder struct{ w *write }

// AddWarning implements warning.Recorder.
func (r recorder) AddWarning(_, text string) { r.w.warn(text) }
