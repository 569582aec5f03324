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

// world is a cluster in which the steps of the documentation are taken, by API calls.
type world struct {
	*testing.T
	admin  *rest.Config
	core   kubernetes.Interface
	any    dynamic.Interface
	certs  string // folder of the CA and the serving certificate
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

// prepare takes the steps EXT-005 to EXT-008 and EXT-011 to EXT-015, but for objects that are named in without.
func prepare(t *testing.T, admin *rest.Config, without ...string) *world {
	t.Helper()
	w := &world{T: t, admin: admin, core: kubernetes.NewForConfigOrDie(admin), any: dynamic.NewForConfigOrDie(admin), certs: t.TempDir()}
	for _, o := range manifest(t, "manifests/cluster.yaml") {
		if !slices.Contains(without, o.GetName()) {
			_, err := w.any.Resource(resources[o.GetKind()]).Namespace(o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{})
			w.must(err)
		}
	}
	keys, err := pki.Ensure(w.certs, []string{"wardle-server.wardle.svc"}, time.Now())
	w.must(err)
	if got := keys.Serving.Leaf.DNSNames; !slices.Contains(got, "wardle-server.wardle.svc") {
		t.Fatalf("the certificate is for %v", got)
	}
	w.config = config()
	w.config.CertFile, w.config.KeyFile = filepath.Join(w.certs, "apiserver.crt"), filepath.Join(w.certs, "apiserver.key")
	w.config.DataDir, w.config.Address = t.TempDir(), "127.0.0.1:0"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "wardle-server-tls"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		"tls.crt": w.file("apiserver.crt"), "tls.key": w.file("apiserver.key"),
	}}
	_, err = w.core.CoreV1().Secrets("wardle").Create(t.Context(), secret, metav1.CreateOptions{})
	w.must(err)
	w.config.Kubeconfig = w.kubeconfig("apiserver")
	return w
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

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) file(name string) []byte {
	w.Helper()
	data, err := os.ReadFile(filepath.Join(w.certs, name))
	w.must(err)
	return data
}

// token is one of a service account in namespace wardle.
func (w *world) token(account string) string {
	w.Helper()
	got, err := w.core.CoreV1().ServiceAccounts("wardle").CreateToken(w.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	return got.Status.Token
}

// kubeconfig is that of a service account for the main server.
func (w *world) kubeconfig(account string) string {
	w.Helper()
	as := rest.AnonymousClientConfig(w.admin)
	c := clientcmdapi.NewConfig()
	c.Clusters["main"] = &clientcmdapi.Cluster{
		Server: as.Host, CertificateAuthorityData: as.CAData, InsecureSkipTLSVerify: as.Insecure, TLSServerName: as.ServerName,
	}
	c.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: w.token(account)}
	c.Contexts["it"], c.CurrentContext = &clientcmdapi.Context{Cluster: "main", AuthInfo: "me"}, "it"
	path := filepath.Join(w.TempDir(), "kubeconfig")
	w.must(clientcmd.WriteToFile(*c, path))
	return path
}

// start starts the extension server, and starts it again at the same address.
func (w *world) start() {
	w.Helper()
	s, err := extension.Start(w.Context(), w.config)
	w.must(err)
	w.server = s
	w.config.Address = strings.TrimPrefix(s.URL(), "https://")
	w.Cleanup(func() { _ = s.Shutdown() })
}

// register makes the Service and the APIService.
func (w *world) register() {
	w.Helper()
	w.registerBy(func(port int64) {
		_, err := w.any.Resource(apiServices).Create(w.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1alpha1.wardle.example.com"},
			"spec": map[string]any{
				"group": group.Group, "version": group.Version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
				"service":  map[string]any{"namespace": "wardle", "name": "wardle-server", "port": port},
				"caBundle": base64.StdEncoding.EncodeToString(w.file("ca.crt")),
			},
		}}, metav1.CreateOptions{})
		w.must(err)
	})
}

// registerBy makes the Service, has create make the APIService, and waits until that is available.
func (w *world) registerBy(create func(port int64)) {
	w.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "wardle-server"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}}
	_, err := w.core.CoreV1().Services("wardle").Create(w.Context(), service, metav1.CreateOptions{})
	w.must(err)
	at, err := netip.ParseAddrPort(w.config.Address)
	w.must(err)
	create(int64(at.Port()))
	w.available("True")
}

// available waits until the main server says so of the extension server.
func (w *world) available(status string) {
	w.Helper()
	var conditions []any
	w.until(func(ctx context.Context) bool {
		o, err := w.any.Resource(apiServices).Get(ctx, "v1alpha1.wardle.example.com", metav1.GetOptions{})
		w.must(err)
		conditions, _, _ = unstructured.NestedSlice(o.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			is, _ := c.(map[string]any)
			return is["type"] == "Available" && is["status"] == status
		})
	}, func() any { return conditions })
}

// until waits for something that comes by itself.
func (w *world) until(is func(context.Context) bool, seen func() any) {
	w.Helper()
	err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return is(ctx), nil })
	if err != nil {
		w.Fatalf("%v: %v", err, seen())
	}
}

// flunders is the client of somebody.
func (w *world) flunders(who *rest.Config) dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(who).Resource(group.WithResource("flunders")).Namespace("default")
}

// get reads a path as somebody.
func (w *world) get(who *rest.Config, path, accept string) (int, string) {
	w.Helper()
	client, err := rest.HTTPClientFor(who)
	w.must(err)
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, who.Host+path, nil)
	w.must(err)
	r.Header.Set("Accept", accept)
	resp, err := client.Do(r)
	w.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	w.must(err)
	return resp.StatusCode, string(text)
}

func flunder(name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group.String(), "kind": "Flunder", "metadata": map[string]any{"name": name}}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	return o
}
