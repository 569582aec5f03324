// Package nodes is the way to nodes and what runs on them: to kubelets, and to Pods, by themselves or behind a Service. It knows neither
// who may ask nor how objects are stored.
package nodes

import (
	"context"
	"fmt"
	"iter"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/proxy"
)

// Config is what a Proxy works with.
type Config struct {
	Dialer  *egress.Dialer
	Kubelet Kubelet
	// Get reads an object of the core group in its internal form, and Slices the JSON of every EndpointSlice of a Service.
	Get    func(ctx context.Context, plural, namespace, name string) (runtime.Object, error)
	Slices func(namespace, service string) iter.Seq[[]byte]
	Family corev1.IPFamily // of the addresses of Services that are taken first
	// Headers say who a user is to this server, and are none of anybody else's business.
	Headers proxy.Headers
}

// Proxy is the way to nodes, Pods and what runs in them.
type Proxy struct {
	config  Config
	kubelet way // of the certificate that it has to have
	anybody way // whatever certificate a kubelet has
	pod     way
}

// New returns a Proxy that the caller closes.
func New(c Config) *Proxy {
	p := &Proxy{config: c}
	p.kubelet = newWay(c.Kubelet.dial(c.Dialer.DialNode), c.Kubelet.tls(false))
	p.anybody = newWay(c.Kubelet.dial(c.Dialer.DialNode), c.Kubelet.tls(true))
	p.pod = newWay(c.Dialer.DialNode, strangers())
	return p
}

// Close closes the connections that are idle. Requests under way go on.
func (p *Proxy) Close() {
	for _, w := range []way{p.kubelet, p.anybody, p.pod} {
		w.requests.CloseIdleConnections()
	}
}

// Fail answers where whoever is asked for does not.
type Fail func(http.ResponseWriter, *http.Request, error)

// Error implements upstream's proxy.ErrorResponder.
func (f Fail) Error(w http.ResponseWriter, r *http.Request, err error) { f(w, r, err) }

// Handler returns what connects a request to whom options (core.PodExecOptions and the like) of an object lead to; name may be the
// "scheme:name:port" of a proxy.
func (p *Proxy) Handler(ctx context.Context, namespace, name string, options runtime.Object, fail Fail) (http.Handler, error) {
	h, err := p.handler(ctx, namespace, name, options, fail)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.WithContext(r.Context())
		out.Header = r.Header.Clone()
		p.config.Headers.Clear(out.Header)
		h.ServeHTTP(w, out)
	}), nil
}

func (p *Proxy) handler(ctx context.Context, namespace, name string, options runtime.Object, fail Fail) (http.Handler, error) {
	pods := getter{p, "pods", namespace}
	switch o := options.(type) {
	case *core.PodLogOptions:
		return p.log(ctx, pods, name, o, fail)
	case *core.PodExecOptions:
		location, kubelet, err := pod.ExecLocation(ctx, pods, p.kubelets(p.kubelet.upgrades), name, o)
		streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
		return p.command(location, kubelet, streams, fail), err
	case *core.PodAttachOptions:
		location, kubelet, err := pod.AttachLocation(ctx, pods, p.kubelets(p.kubelet.upgrades), name, o)
		streams := translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}
		return p.command(location, kubelet, streams, fail), err
	case *core.PodPortForwardOptions:
		location, kubelet, err := pod.PortForwardLocation(ctx, pods, p.kubelets(p.kubelet.upgrades), name, o)
		return p.ports(location, kubelet, fail), err
	case *core.PodProxyOptions:
		location, _, err := pod.ResourceLocation(ctx, pods, nil, name)
		return p.pass(location, p.pod, o.Path, fail), err
	case *core.NodeProxyOptions:
		location, to, err := node.ResourceLocation(nil, p.kubelets(p.kubelet.requests), p.pod.requests, ctx, name)
		if to == p.pod.requests {
			return p.pass(location, p.pod, o.Path, fail), err
		}
		return p.pass(location, p.kubelet, o.Path, fail), err
	case *core.ServiceProxyOptions:
		location, err := p.service(ctx, namespace, name)
		return p.pass(location, p.pod, o.Path, fail), err
	}
	return nil, fmt.Errorf("proxy: nothing is known of %T", options)
}

// getter reads objects of a kind and namespace for upstream's code.
type getter struct {
	*Proxy
	plural, namespace string
}

// Get implements upstream's pod.ResourceGetter.
func (g getter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return g.config.Get(ctx, g.plural, g.namespace, name)
}
