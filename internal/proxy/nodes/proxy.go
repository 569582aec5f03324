// Package nodes connects requests to nodes, to Pods and to the Pods of Services. It must not depend on authorization or
// on storage.
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

// Config configures a Proxy.
type Config struct {
	Dialer  *egress.Dialer
	Kubelet Kubelet
	// Get returns an object of the core group in its internal version.
	Get func(ctx context.Context, plural, namespace, name string) (runtime.Object, error)
	// Slices yields the JSON of every EndpointSlice of a Service.
	Slices func(namespace, service string) iter.Seq[[]byte]
	Family corev1.IPFamily // preferred IP family for endpoints of Services
	// Headers are the headers with a user's identity, which must not be forwarded.
	Headers proxy.Headers
}

// Proxy connects requests to nodes, Pods and Services.
type Proxy struct {
	config          Config
	kubelet         transports
	insecureKubelet transports // accepts any certificate
	pod             transports
}

// New returns a Proxy with the given configuration. The caller must close it.
func New(c Config) *Proxy {
	p := &Proxy{config: c}
	p.kubelet = newTransports(c.Kubelet.dial(c.Dialer.DialNode), c.Kubelet.tls(false))
	p.insecureKubelet = newTransports(c.Kubelet.dial(c.Dialer.DialNode), c.Kubelet.tls(true))
	p.pod = newTransports(c.Dialer.DialNode, insecureTLS())
	return p
}

// Close closes idle connections. Requests in flight continue.
func (p *Proxy) Close() {
	for _, t := range []transports{p.kubelet, p.insecureKubelet, p.pod} {
		t.requests.CloseIdleConnections()
	}
}

// Fail writes the response for an error.
type Fail func(http.ResponseWriter, *http.Request, error)

// Error implements upstream's proxy.ErrorResponder.
func (f Fail) Error(w http.ResponseWriter, r *http.Request, err error) { f(w, r, err) }

// Handler returns a handler that connects a request to the target of options, such as core.PodExecOptions. name is the
// name of the object, or "scheme:name:port" for a proxy.
func (p *Proxy) Handler(
	ctx context.Context,
	namespace, name string,
	options runtime.Object,
	fail Fail,
) (http.Handler, error) {
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

func (p *Proxy) handler(
	ctx context.Context,
	namespace, name string,
	options runtime.Object,
	fail Fail,
) (http.Handler, error) {
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
		return p.forward(location, p.pod, o.Path, fail), err
	case *core.NodeProxyOptions:
		location, to, err := node.ResourceLocation(nil, p.kubelets(p.kubelet.requests), p.pod.requests, ctx, name)
		if to == p.pod.requests {
			return p.forward(location, p.pod, o.Path, fail), err
		}
		return p.forward(location, p.kubelet, o.Path, fail), err
	case *core.ServiceProxyOptions:
		location, err := p.service(ctx, namespace, name)
		return p.forward(location, p.pod, o.Path, fail), err
	}
	return nil, fmt.Errorf("proxy: unsupported options %T", options)
}

// getter reads objects of a kind in a namespace for upstream's code.
type getter struct {
	*Proxy
	plural, namespace string
}

// Get implements upstream's pod.ResourceGetter.
func (g getter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return g.config.Get(ctx, g.plural, g.namespace, name)
}
