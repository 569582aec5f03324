package nodes

import (
	"net/http"
	"net/url"
	"slices"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// command connects to a command in a container. It translates WebSockets to SPDY.
func (p *Proxy) command(
	location *url.URL,
	kubelet *client.ConnectionInfo,
	streams translator.Options,
	fail Fail,
) http.Handler {
	return translate(location, kubelet, fail, wsstream.IsWebSocketRequestWithStreamCloseProtocol,
		func(http.Handler) http.Handler {
			return translator.NewStreamTranslatorHandler(location, kubelet.Transport, 0, streams)
		})
}

// ports connects to ports of a Pod. A WebSocket of the client is a tunnel for SPDY.
func (p *Proxy) ports(location *url.URL, kubelet *client.ConnectionInfo, fail Fail) http.Handler {
	return translate(location, kubelet, fail, wsstream.IsWebSocketRequestWithTunnelingProtocol,
		func(direct http.Handler) http.Handler {
			return translator.NewTunnelingHandler(direct)
		})
}

// translate returns a handler that forwards upgrades unchanged. If the kubelet does not support WebSockets, the
// requests for which match returns true are served by the handler from newTranslator instead.
func translate(
	location *url.URL,
	kubelet *client.ConnectionInfo,
	fail Fail,
	match func(*http.Request) bool,
	newTranslator func(direct http.Handler) http.Handler,
) http.Handler {
	if location == nil {
		return nil
	}
	direct := proxy.NewUpgradeAwareHandler(location, kubelet.Transport, false, true, fail)
	if slices.Contains(kubelet.NodeFeatures, string(features.ExtendWebSocketsToKubelet)) {
		return direct
	}
	return translator.NewTranslatingHandler(direct, newTranslator(direct), match)
}

// forward forwards requests and upgrades. It rewrites links in HTML responses so that they lead through this server.
func (p *Proxy) forward(location *url.URL, via transports, path string, fail Fail) http.Handler {
	if location == nil {
		return nil
	}
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	h := proxy.NewUpgradeAwareHandler(location, via.requests, true, false, fail)
	h.UpgradeTransport = proxy.NewUpgradeRequestRoundTripper(via.upgrades, proxy.MirrorRequest)
	return h
}
