package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/testserver"
)

// newAccount creates a ServiceAccount with the rights of rules, and returns a token for it.
func (f *fixture) newAccount(name string, rules ...rbacv1.PolicyRule) string {
	f.t.Helper()
	accounts, ctx := f.kube.CoreV1().ServiceAccounts("default"), f.t.Context()
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.server.User("system:serviceaccount:default:"+name, rules...)
	token, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return token.Status.Token
}

// kubeletCaller returns a function that sends a request with a WebSocket handshake to a kubelet.
func (f *fixture) kubeletCaller(node *corev1.Node) func(token, method, path string) (status int, body string) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.server.Config.CAData)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	return func(token, method, path string) (int, string) {
		request, err := http.NewRequestWithContext(f.t.Context(), method, "https://"+kubeletAddress(node)+path, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		for name, value := range map[string]string{
			"Authorization": "Bearer " + token, "Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key":     "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
		} {
			request.Header.Set(name, value)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusSwitchingProtocols {
			return response.StatusCode, ""
		}
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
}

// TestStreamsNeedCreate checks that commands in a container and connections to a container require the verb create on
// nodes/proxy, for every HTTP method. The verb get must permit the other paths, except paths that have their own
// subresource.
func TestStreamsNeedCreate(t *testing.T) {
	f := newFixture(t)
	f.start(f.options("streams"))
	node := f.readyNode("streams")
	f.createPod("streams", "main")
	f.runningPod("main")
	reader, creator := f.newAccount("reader", testserver.May("get", "nodes/proxy")), f.newAccount("creator",
		testserver.May("create", "nodes/proxy"))
	pods := f.newAccount("pods", testserver.May("get", "nodes/pods"), testserver.May("get", "nodes/healthz"))
	call := f.kubeletCaller(node)
	f.eventually("the kubelet has a serving certificate", func(context.Context) bool {
		code, _ := call(reader, "GET", "/pods")
		return code != 0
	})

	for _, path := range []string{
		"/exec/default/main/main?command=true&output=1", "/run/default/main/main?cmd=true",
		"/attach/default/main/main?output=1",
		"/portForward/default/main", "/%65xec/default/main/main?command=true&output=1",
		"/exec/default/main/uid/main?command=true&output=1",
	} {
		for _, method := range []string{"GET", "POST", "HEAD", "OPTIONS"} {
			if code, body := call(reader, method, path); code != http.StatusForbidden {
				t.Errorf("%s %s with get: %d %s", method, path, code, body)
			}
		}
		for _, method := range []string{"GET", "POST"} {
			if code, body := call(creator, method, path); code == http.StatusForbidden ||
				code == http.StatusUnauthorized {
				t.Errorf("%s %s with create: %d %s", method, path, code, body)
			}
		}
	}
	if code, body := call(reader, "GET",
		"//exec/default/main/main?command=true&output=1"); code != http.StatusForbidden {
		t.Errorf("a path with //, with get: %d %s", code, body) // the client follows the redirect
	}
	for path, allowedTokens := range map[string][]string{
		"/pods": {reader, pods}, "/runningpods/": {reader, pods}, "/healthz": {reader, pods}, "/configz": {reader},
		"/containerLogs/default/main/main": {reader}, "/metrics": nil, "/stats/summary": nil, "/logs/": nil,
	} {
		for name, token := range map[string]string{"reader": reader, "pods": pods, "creator": creator} {
			code, body := call(token, "GET", path)
			if allowed := code != http.StatusForbidden; allowed != slices.Contains(allowedTokens, token) {
				t.Errorf("GET %s by %s: %d %.100s", path, name, code, body)
			}
		}
	}
}

// TestStreamsByMethod checks that with StreamsByMethod the verb depends on the HTTP method, as in upstream's kubelet.
func TestStreamsByMethod(t *testing.T) {
	f := newFixture(t)
	o := f.options("method")
	o.StreamsByMethod = true
	f.start(o)
	node := f.readyNode("method")
	reader, call := f.newAccount("reader", testserver.May("get", "nodes/proxy")), f.kubeletCaller(node)
	f.eventually("the kubelet has a serving certificate", func(context.Context) bool {
		code, _ := call(reader, "GET", "/pods")
		return code != 0
	})
	const path = "/exec/default/main/main?command=true&output=1"
	if code, body := call(reader, "GET", path); code == http.StatusForbidden {
		t.Errorf("a GET: %d %s", code, body)
	}
	if code, body := call(reader, "POST", path); code != http.StatusForbidden {
		t.Errorf("a POST: %d %s", code, body)
	}
}
