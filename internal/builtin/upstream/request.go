package upstream

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"
)

// Request is what strategies want to know of the request in whose course they are called.
type Request struct {
	Endpoint    *Endpoint
	Verb        string // "create", "update", "patch", "delete"
	Namespace   string
	Name        string
	Subresource string
	User        user.Info    // nil: unknown
	Warn        func(string) // nil: nobody listens
}

// Context is ctx with what r says, as strategies look for it there. Without it declarative validation fails.
func (r Request) Context(ctx context.Context) context.Context {
	gv := r.Endpoint.GroupVersion
	info := &apirequest.RequestInfo{
		IsResourceRequest: true,
		Verb:              r.Verb,
		APIPrefix:         "apis",
		APIGroup:          gv.Group,
		APIVersion:        gv.Version,
		Namespace:         r.Namespace,
		Resource:          r.Endpoint.Kind.Names.Plural,
		Subresource:       r.Subresource,
		Name:              r.Name,
	}
	if gv.Group == "" {
		info.APIPrefix = "api"
	}
	// What validation logs of differences between its two ways is for those who develop it.
	ctx = klog.NewContext(ctx, logr.Discard())
	ctx = apirequest.WithNamespace(apirequest.WithRequestInfo(ctx, info), r.Namespace)
	if r.User != nil {
		ctx = apirequest.WithUser(ctx, r.User)
	}
	if r.Warn != nil {
		ctx = warning.WithWarningRecorder(ctx, recorder(r.Warn))
	}
	return ctx
}

// recorder hears the warnings that strategies give on the way.
type recorder func(string)

func (r recorder) AddWarning(_, text string) { r(text) }
