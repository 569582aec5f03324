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

// command connects to a command in a container. SPDY is passed on as it is, WebSockets are translated to it unless the kubelet
// understands them.
func (p *Proxy) command(location *url.URL, kubelet *client.ConnectionInfo, streams translator.Options, fail Fail) http.Handler {
	if location == nil {
		return nil
	}
	direct := proxy.NewUpgradeAwareHandler(location, kubelet.Transport, false, true, fail)
	if understandsWebSockets(kubelet) {
		return direct
	}
	translated := translator.NewStreamTranslatorHandler(location, kubelet.Transport, 0, streams)
	return translator.NewTranslatingHandler(direct, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

// ports connects to ports of a Pod. WebSockets are taken for tunnels of SPDY unless the kubelet understands them.
func (p *Proxy) ports(location *url.URL, kubelet *client.ConnectionInfo, fail Fail) http.Handler {
	if location == nil {
		return nil
	}
	direct := proxy.NewUpgradeAwareHandler(location, kubelet.Transport, false, true, fail)
	if understandsWebSockets(kubelet) {
		return direct
	}
	return translator.NewTranslatingHandler(direct, translator.NewTunnelingHandler(direct), wsstream.IsWebSocketRequestWithTunnelingProtocol)
}

func understandsWebSockets(kubelet *client.ConnectionInfo) bool {
	return slices.Contains(kubelet.NodeFeatures, string(features.ExtendWebSocketsToKubelet))
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
