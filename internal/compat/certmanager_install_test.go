package compat_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

const (
	certManagerNamespace = "cert-manager"
	certManagerWebhook   = "cert-manager-webhook" // name of the webhook's Deployment and of both webhook configurations
)

// certManager is an installation of cert-manager's chart on a server that runs no Pods. The test runs the program
// of each Deployment as a process, with the arguments and the service account of the Deployment.
type certManager struct {
	*testing.T
	admin    *rest.Config
	core     kubernetes.Interface
	dynamic  dynamic.Interface
	repeats  bool                          // clients repeat requests, so an object to create may exist
	port     int                           // of the webhook
	programs map[string]*operatorProgram   // by the Deployment's name
	deployed map[string]*appsv1.Deployment // by name
}

// operatorProgram is a running program and the errors in its log.
type operatorProgram struct {
	cmd            *exec.Cmd
	ended          chan struct{}
	mu             sync.Mutex
	errors         []string
	hasCertificate chan struct{} // closed when the webhook has its certificate
}

// installCertManager creates all objects of the chart and then starts the programs. repeats is true if clients with the
// configuration admin repeat requests.
func installCertManager(t *testing.T, admin *rest.Config, repeats bool) *certManager {
	t.Helper()
	manifest := certManagerChart(t)
	c := &certManager{
		T: t, admin: admin, core: kubernetes.NewForConfigOrDie(admin), dynamic: dynamic.NewForConfigOrDie(admin),
		repeats: repeats, port: freePort(t), programs: map[string]*operatorProgram{}, deployed: map[string]*appsv1.Deployment{},
	}
	text, err := os.ReadFile(manifest)
	c.must(err)
	groups, err := restmapper.GetAPIGroupResources(c.core.Discovery())
	c.must(err)
	kinds := restmapper.NewDiscoveryRESTMapper(groups)
	_, err = c.core.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: certManagerNamespace}}, metav1.CreateOptions{})
	if !repeats || !apierrors.IsAlreadyExists(err) {
		c.must(err)
	}
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := documents.Decode(&o.Object); err == io.EOF {
			break
		} else if c.must(err); len(o.Object) > 0 {
			c.install(kinds, o)
		}
	}
	for name := range c.deployed {
		c.start(name)
	}
	return c
}

// certManagerChart returns the path of the objects of the chart. It skips the test if they are missing.
func certManagerChart(t *testing.T) string {
	t.Helper()
	manifest, found := storagetest.Program(t, "cert-manager.yaml")
	if !found {
		t.Skip("cert-manager is missing: run \"make cert-manager\" to build it (see peers/README.md)")
	}
	return manifest
}

// install applies an object of the chart. It changes some fields, because the programs do not run in Pods.
func (c *certManager) install(kinds meta.RESTMapper, o *unstructured.Unstructured) {
	c.Helper()
	switch o.GetKind() {
	case "Service": // must resolve to this machine, because no Pod runs
		c.must(unstructured.SetNestedField(o.Object, "ExternalName", "spec", "type"))
		c.must(unstructured.SetNestedField(o.Object, "localhost", "spec", "externalName"))
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration": // must call a free port of this machine
		for _, w := range o.Object["webhooks"].([]any) {
			c.must(unstructured.SetNestedField(w.(map[string]any), int64(c.port), "clientConfig", "service", "port"))
		}
	case "Deployment":
		d := &appsv1.Deployment{}
		c.must(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d))
		c.deployed[d.Name] = d
	}
	kind := o.GroupVersionKind()
	mapping, err := kinds.RESTMapping(kind.GroupKind(), kind.Version)
	c.must(err)
	resource := dynamic.ResourceInterface(c.dynamic.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = c.dynamic.Resource(mapping.Resource).Namespace(o.GetNamespace())
	}
	_, err = resource.Apply(c.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "helm"})
	c.must(err)
}

// start starts the program of a Deployment's Pod and kills it at the end of the test.
func (c *certManager) start(deployment string) {
	c.Helper()
	pod := c.deployed[deployment].Spec.Template.Spec
	image, _, _ := strings.Cut(path.Base(pod.Containers[0].Image), ":")
	file, found := storagetest.Program(c, image)
	if !found {
		c.Fatalf("program %s is missing: run \"make cert-manager\" to build it", image)
	}
	args := append([]string{"--kubeconfig=" + c.kubeconfig(pod.ServiceAccountName)}, pod.Containers[0].Args...)
	switch image { // use free ports of this machine
	case "cert-manager-webhook":
		args = append(args, fmt.Sprintf("--secure-port=%d", c.port), "--healthz-port=0")
	case "cert-manager-controller":
		args = append(args, "--metrics-listen-address=127.0.0.1:0")
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_NAMESPACE)", certManagerNamespace)
	}
	p := &operatorProgram{
		cmd: exec.Command(file, args...), ended: make(chan struct{}), hasCertificate: make(chan struct{}),
	}
	output, err := p.cmd.StderrPipe()
	c.must(err)
	log, err := os.OpenFile(filepath.Join(c.ArtifactDir(), deployment+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY,
		0o600)
	c.must(err)
	c.must(p.cmd.Start())
	go p.readLog(io.TeeReader(output, log))
	c.programs[deployment] = p
	c.Cleanup(func() {
		c.kill(deployment)
		_ = log.Close()
	})
}

// readLog reads the program's log until the program ends. It collects errors and notices when the webhook has its
// certificate.
func (p *operatorProgram) readLog(output io.Reader) {
	defer close(p.ended)
	markCertificate := sync.OnceFunc(func() { close(p.hasCertificate) })
	for lines := bufio.NewScanner(output); lines.Scan(); {
		line := lines.Text()
		if strings.Contains(line, "Updated cert-manager webhook TLS certificate") {
			markCertificate()
		}
		if strings.HasPrefix(line, "E") {
			p.mu.Lock()
			p.errors = append(p.errors, line)
			p.mu.Unlock()
		}
	}
}

// waitForWebhook blocks until the webhook has its certificate.
func (c *certManager) waitForWebhook() {
	c.Helper()
	p := c.programs[certManagerWebhook]
	select {
	case <-p.hasCertificate:
	case <-p.ended:
		c.Fatalf("webhook ended early: %v", c.unexpectedErrors())
	case <-time.After(time.Minute):
		c.Fatalf("webhook has no certificate after a minute: %v", c.unexpectedErrors())
	}
}

// kill kills the program of a Deployment and blocks until it has ended.
func (c *certManager) kill(deployment string) {
	p := c.programs[deployment]
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.cmd.Wait()
}

// kubeconfig writes a kubeconfig for a service account and returns its path.
func (c *certManager) kubeconfig(account string) string {
	c.Helper()
	got, err := c.core.CoreV1().ServiceAccounts(certManagerNamespace).CreateToken(c.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	c.must(err)
	server := rest.AnonymousClientConfig(c.admin)
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{
		Server: server.Host, CertificateAuthorityData: server.CAData,
		InsecureSkipTLSVerify: server.Insecure, TLSServerName: server.ServerName,
	}
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: got.Status.Token}
	config.Contexts["it"], config.CurrentContext = &clientcmdapi.Context{Cluster: "it", AuthInfo: "me"}, "it"
	file := filepath.Join(c.TempDir(), "kubeconfig")
	c.must(clientcmd.WriteToFile(*config, file))
	return file
}

// waitFor watches an object and returns it when done reports true. It fails the test after a minute.
func (c *certManager) waitFor(resource dynamic.ResourceInterface, name string,
	done func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	var last *unstructured.Unstructured
	for ctx.Err() == nil { // the server may close a watch early
		events, err := resource.Watch(ctx, one)
		if err != nil {
			c.Error(err)
			break
		}
		for e := range events.ResultChan() {
			last, _ = e.Object.(*unstructured.Unstructured)
			if last != nil && done(last) {
				events.Stop()
				return last
			}
		}
	}
	c.Fatalf("timed out waiting for %s: last got %v\n%s", name, last, strings.Join(c.unexpectedErrors(), "\n"))
	return nil
}

// usualErrors matches errors that the programs also log with kube-apiserver: a write conflicts, or a program's
// cache does not contain an object yet. The programs retry.
var usualErrors = regexp.MustCompile(`the object has been modified; ` +
	`please apply your changes to the latest version and try again` +
	`|secrets \\"[a-z]+-[a-z0-9]{5}\\" already exists` +
	`|Referenced secret default/[a-z]+-[a-z0-9]{5} not found` +
	`|unable to fetch associated secret" "error"="Secret \\"cert-manager-webhook-ca\\" not found` +
	`|Failed to generate initial serving certificate, retrying`)

// unexpectedErrors returns the errors that the programs have logged and that usualErrors does not match.
func (c *certManager) unexpectedErrors() (all []string) {
	for name, p := range c.programs {
		p.mu.Lock()
		for _, e := range p.errors {
			if !usualErrors.MatchString(e) {
				all = append(all, name+": "+e)
			}
		}
		p.mu.Unlock()
	}
	return all
}

func (c *certManager) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// freePort returns a TCP port that was free when it was called.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
