package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trellis-k8s/trellis/extension"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// env is an environment with an API server. The tests perform the steps of the documentation on it with API requests.
type env struct {
	*testing.T
	admin  *rest.Config
	core   kubernetes.Interface
	any    dynamic.Interface
	certs  string // directory of the CA and the serving certificate
	config extension.Config
	server *extension.Server
}

var (
	group       = schema.GroupVersion{Group: "wardle.example.com", Version: "v1alpha1"}
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	resources   = map[string]schema.GroupVersionResource{
		"Namespace":          {Version: "v1", Resource: "namespaces"},
		"ServiceAccount":     {Version: "v1", Resource: "serviceaccounts"},
		"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		"RoleBinding":        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	}
)

// prepare performs the steps EXT-005 to EXT-008 and EXT-011 to EXT-015. It does not create the objects whose names
// are in without.
func prepare(t *testing.T, admin *rest.Config, without ...string) *env {
	t.Helper()
	e := &env{T: t, admin: admin, core: kubernetes.NewForConfigOrDie(admin), any: dynamic.NewForConfigOrDie(admin),
		certs: t.TempDir()}
	for _, o := range manifest(t, "manifests/cluster.yaml") {
		if !slices.Contains(without, o.GetName()) {
			_, err := e.any.Resource(resources[o.GetKind()]).Namespace(o.GetNamespace()).Create(t.Context(), o,
				metav1.CreateOptions{})
			e.must(err)
		}
	}
	keys, err := pki.Ensure(e.certs, []string{"wardle-server.wardle.svc"}, time.Now())
	e.must(err)
	if got := keys.Serving.Leaf.DNSNames; !slices.Contains(got, "wardle-server.wardle.svc") {
		t.Fatalf("the certificate is for %v", got)
	}
	e.config = config()
	e.config.CertFile = filepath.Join(e.certs, "apiserver.crt")
	e.config.KeyFile = filepath.Join(e.certs, "apiserver.key")
	e.config.DataDir, e.config.Address = t.TempDir(), "127.0.0.1:0"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "wardle-server-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"tls.crt": e.file("apiserver.crt"), "tls.key": e.file("apiserver.key"),
		}}
	_, err = e.core.CoreV1().Secrets("wardle").Create(t.Context(), secret, metav1.CreateOptions{})
	e.must(err)
	e.config.Kubeconfig = e.kubeconfig("apiserver")
	return e
}

func manifest(t *testing.T, path string) (all []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		switch err := documents.Decode(&o.Object); {
		case err == io.EOF:
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) file(name string) []byte {
	e.Helper()
	data, err := os.ReadFile(filepath.Join(e.certs, name))
	e.must(err)
	return data
}

// token returns a token of a service account in the namespace wardle.
func (e *env) token(account string) string {
	e.Helper()
	got, err := e.core.CoreV1().ServiceAccounts("wardle").CreateToken(e.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	e.must(err)
	return got.Status.Token
}

// kubeconfig writes a kubeconfig of a service account for the main server and returns its path.
func (e *env) kubeconfig(account string) string {
	e.Helper()
	as := rest.AnonymousClientConfig(e.admin)
	c := clientcmdapi.NewConfig()
	c.Clusters["main"] = &clientcmdapi.Cluster{
		Server: as.Host, CertificateAuthorityData: as.CAData, InsecureSkipTLSVerify: as.Insecure,
		TLSServerName: as.ServerName,
	}
	c.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: e.token(account)}
	c.Contexts["it"], c.CurrentContext = &clientcmdapi.Context{Cluster: "main", AuthInfo: "me"}, "it"
	path := filepath.Join(e.TempDir(), "kubeconfig")
	e.must(clientcmd.WriteToFile(*c, path))
	return path
}

// start starts the extension server. Later calls start it again at the same address.
func (e *env) start() {
	e.Helper()
	s, err := extension.Start(e.Context(), e.config)
	e.must(err)
	e.server = s
	e.config.Address = strings.TrimPrefix(s.URL(), "https://")
	e.Cleanup(func() { _ = s.Shutdown() })
}

// register creates the Service and the APIService, and waits until the APIService is available.
func (e *env) register() {
	e.Helper()
	e.registerBy(func(port int64) {
		_, err := e.any.Resource(apiServices).Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": "v1alpha1.wardle.example.com"},
			"spec": map[string]any{
				"group": group.Group, "version": group.Version, "groupPriorityMinimum": int64(1000),
				"versionPriority": int64(15),
				"service":         map[string]any{"namespace": "wardle", "name": "wardle-server", "port": port},
				"caBundle":        base64.StdEncoding.EncodeToString(e.file("ca.crt")),
			},
		}}, metav1.CreateOptions{})
		e.must(err)
	})
}

// registerBy creates the Service, calls create to create the APIService, and waits until the APIService is available.
func (e *env) registerBy(create func(port int64)) {
	e.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "wardle-server"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	_, err := e.core.CoreV1().Services("wardle").Create(e.Context(), service, metav1.CreateOptions{})
	e.must(err)
	at, err := netip.ParseAddrPort(e.config.Address)
	e.must(err)
	create(int64(at.Port()))
	e.available("True")
}

// available waits until the condition Available of the APIService has the given status.
func (e *env) available(status string) {
	e.Helper()
	var conditions []any
	e.until(func(ctx context.Context) bool {
		o, err := e.any.Resource(apiServices).Get(ctx, "v1alpha1.wardle.example.com", metav1.GetOptions{})
		e.must(err)
		conditions, _, _ = unstructured.NestedSlice(o.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			is, _ := c.(map[string]any)
			return is["type"] == "Available" && is["status"] == status
		})
	}, func() any { return conditions })
}

// until polls a condition until it is true.
func (e *env) until(condition func(context.Context) bool, last func() any) {
	e.Helper()
	err := wait.PollUntilContextTimeout(e.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) { return condition(ctx), nil })
	if err != nil {
		e.Fatalf("%v: %v", err, last())
	}
}

// flunders returns a client for Flunders that uses the configuration of a user.
func (e *env) flunders(user *rest.Config) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(user).Resource(group.WithResource("flunders")).Namespace("default")
}

// get reads a path with a user's configuration and returns the status code and the body of the response.
func (e *env) get(user *rest.Config, path, accept string) (int, string) {
	e.Helper()
	client, err := rest.HTTPClientFor(user)
	e.must(err)
	r, err := http.NewRequestWithContext(e.Context(), http.MethodGet, user.Host+path, nil)
	e.must(err)
	r.Header.Set("Accept", accept)
	resp, err := client.Do(r)
	e.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	e.must(err)
	return resp.StatusCode, string(text)
}

func flunder(name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group.String(), "kind": "Flunder",
		"metadata": map[string]any{"name": name}}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	return o
}
