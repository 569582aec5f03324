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

// command connects to a command in a container; WebSockets are translated to SPDY.
func (p *Proxy) command(location *url.URL, kubelet *client.ConnectionInfo, streams translator.Options, fail Fail) http.Handler {
	return upgrading(location, kubelet, fail, wsstream.IsWebSocketRequestWithStreamCloseProtocol, func(http.Handler) http.Handler {
		return translator.NewStreamTranslatorHandler(location, kubelet.Transport, 0, streams)
	})
}

// ports connects to ports of a Pod; WebSockets are taken for tunnels of SPDY.
func (p *Proxy) ports(location *url.URL, kubelet *client.ConnectionInfo, fail Fail) http.Handler {
	return upgrading(location, kubelet, fail, wsstream.IsWebSocketRequestWithTunnelingProtocol, func(direct http.Handler) http.Handler {
		return translator.NewTunnelingHandler(direct)
	})
}

// upgrading passes upgrades on as they are, but for WebSockets of one kind, which by translates, unless the kubelet understands them itself.
func upgrading(location *url.URL, kubelet *client.ConnectionInfo, fail Fail, is func(*http.Request) bool, by func(direct http.Handler) http.Handler) http.Handler {
	if location == nil {
		return nil
	}
	direct := proxy.NewUpgradeAwareHandler(location, kubelet.Transport, false, true, fail)
	if slices.Contains(kubelet.NodeFeatures, string(features.ExtendWebSocketsToKubelet)) {
		return direct
	}
	return translator.NewTranslatingHandler(direct, by(direct), is)
}

// pass passes requests on, and upgrades them if they want that. What an answer in HTML refers to is found by way of this server, too.
func (p *Proxy) pass(location *url.URL, by way, path string, fail Fail) http.Handler {
	if location == nil {
		return nil
	}
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	h := proxy.NewUpgradeAwareHandler(location, by.requests, true, false, fail)
	h.UpgradeTransport = proxy.NewUpgradeRequestRoundTripper(by.upgrades, proxy.MirrorRequest)
	return h
}
