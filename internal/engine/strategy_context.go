package engine

import (
	"context"

	"github.com/go-logr/logr"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// strategyContext is the write's context with what strategies look for there: whose request it is, for what, and who hears
// warnings. Declarative validation fails without.
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
		Name:              w.target.Name, // of the path: a POST names nothing
	}
	if gv.Group == "" {
		info.APIPrefix = "api"
	}
	// What validation logs of differences between its two ways is for those who develop it.
	ctx := klog.NewContext(w.ctx, logr.Discard())
	ctx = apirequest.WithNamespace(apirequest.WithRequestInfo(ctx, info), w.target.Namespace)
	if w.caller.User != nil {
		ctx = apirequest.WithUser(ctx, w.caller.User)
	}
	return warning.WithWarningRecorder(ctx, recorder{w})
}

// verb is the request's.
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

// recorder hears the warnings that strategies give on the way.
type recorder struct{ w *write }

// AddWarning implements warning.Recorder.
func (r recorder) AddWarning(_, text string) { r.w.warn(text) }
