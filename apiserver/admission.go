package apiserver

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/admission/webhook"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Admission are the flags of kube-apiserver that say which admission plugins there are.
type Admission struct {
	Enable, Disable []string // their names: --enable-admission-plugins, --disable-admission-plugins
	ConfigFile      string   // --admission-control-config-file; "": none
}

// admission makes the plugins. They ask nothing before the server serves.
func (s *Server) admission(out *egress.Dialer) (admission.Plugins, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL(), Transport: later{s}, QPS: -1, UserAgent: "kube-apiserver"})
	if err != nil {
		return nil, fmt.Errorf("client of admission: %w", err)
	}
	informers := plugins.Informers{Catalog: func() *resource.Catalog { return s.engine.Live.Load() }, Head: s.store.Head}
	s.quotas = &plugins.Quotas{From: informers}
	c := plugins.Config{
		Enable: s.config.Admission.Enable, Disable: s.config.Admission.Disable, File: s.config.Admission.ConfigFile,
		Informers:  informers,
		Quotas:     s.quotas,
		Client:     client,
		Stop:       s.failed,
		Authorizer: authorizer.AuthorizerFunc(s.authorizer.Authorize),
		Mapper:     restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}
	if c.Own, err = webhook.New(webhook.Config{Head: c.Informers.Head, Egress: out, Informers: c.Informers, Client: client, Authorizer: c.Authorizer}); err != nil {
		return nil, fmt.Errorf("admission webhooks: %w", err)
	}
	return plugins.Open(c)
}

// later is the way to a server that is not put together yet.
type later struct{ s *Server }

func (l later) RoundTrip(r *http.Request) (*http.Response, error) {
	return l.s.Loopback().Transport.RoundTrip(r)
}
