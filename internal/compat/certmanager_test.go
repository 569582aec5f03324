package compat_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// VAL-023 VAL-027: an operator with webhooks that people use does its work, as its chart installs it. With TEST_KUBECONFIG it
// does so on another server, which is new.
func TestCertManager(t *testing.T) {
	c := installCertManager(t, certManagerServer(t))
	hooks := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	for _, of := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		c.until(c.any.Resource(hooks.WithResource(of)), certManagerWebhook, func(o *unstructured.Unstructured) bool { // cainjector has seen to it
			webhooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
			ca, _, _ := unstructured.NestedString(webhooks[0].(map[string]any), "clientConfig", "caBundle")
			return ca != ""
		})
	}
	c.serves()

	c.create("issuers", "self-signed", map[string]any{"selfSigned": map[string]any{}})
	c.ready("issuers", "self-signed")
	root := c.certificate("root", map[string]any{"isCA": true, "commonName": "root", "issuerRef": map[string]any{"name": "self-signed"}})
	roots := x509.NewCertPool()
	roots.AddCert(root)
	if err := root.CheckSignatureFrom(root); err != nil || root.Subject.CommonName != "root" {
		t.Errorf("%v: %v", root.Subject, err)
	}
	c.create("issuers", "root", map[string]any{"ca": map[string]any{"secretName": "root"}})
	c.ready("issuers", "root")
	leaf := c.certificate("leaf", map[string]any{"dnsNames": []any{"leaf.example.com"}, "issuerRef": map[string]any{"name": "root"}})
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "leaf.example.com"}); err != nil {
		t.Error(err)
	}
	c.knowsWhoAsked()
	c.refuses()
	if all := c.errors(); len(all) > 0 {
		t.Error(strings.Join(all, "\n"))
	}
	c.goesWithoutWebhook()
}

func certManagerServer(t *testing.T) *rest.Config {
	if file := os.Getenv("TEST_KUBECONFIG"); file != "" {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	asShipped := func(c *apiserver.Config) { c.Controllers, c.Admission.Disable = nil, nil }
	return testserver.Start(t, testserver.With(asShipped), testserver.LocalServices(certManagerNamespace+"/cert-manager-webhook")).Config
}

// certManagerGroup has its kinds.
var certManagerGroup = schema.GroupVersion{Group: "cert-manager.io", Version: "v1"}

func (c *certManager) of(resource string) dynamic.ResourceInterface {
	return c.any.Resource(certManagerGroup.WithResource(resource)).Namespace("default")
}

func (c *certManager) create(resource, name string, spec map[string]any) {
	c.Helper()
	c.must(c.try(resource, name, spec))
}

func (c *certManager) try(resource, name string, spec map[string]any) error {
	kind := map[string]string{"issuers": "Issuer", "certificates": "Certificate"}[resource]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(certManagerGroup.WithKind(kind))
	o.SetName(name)
	_, err := c.of(resource).Create(c.Context(), o, metav1.CreateOptions{})
	return err
}

// ready waits until the controller has done its work.
func (c *certManager) ready(resource, name string) {
	c.Helper()
	c.until(c.of(resource), name, func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, one := range conditions {
			if is := one.(map[string]any); is["type"] == "Ready" {
				return is["status"] == "True"
			}
		}
		return false
	})
}

// certificate is one that it has issued, into a Secret with its key.
func (c *certManager) certificate(name string, spec map[string]any) *x509.Certificate {
	c.Helper()
	spec["secretName"] = name
	c.create("certificates", name, spec)
	c.ready("certificates", name)
	secret, err := c.core.CoreV1().Secrets("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	c.must(err)
	return pair.Leaf
}

// knowsWhoAsked looks at what its mutating webhook writes into a request: the user that the server has told it of.
func (c *certManager) knowsWhoAsked() {
	c.Helper()
	requests, err := c.of("certificaterequests").List(c.Context(), metav1.ListOptions{})
	c.must(err)
	account, err := c.core.CoreV1().ServiceAccounts(certManagerNamespace).Get(c.Context(), "cert-manager", metav1.GetOptions{})
	c.must(err)
	for _, r := range requests.Items {
		name, _, _ := unstructured.NestedString(r.Object, "spec", "username")
		uid, _, _ := unstructured.NestedString(r.Object, "spec", "uid")
		if name != "system:serviceaccount:cert-manager:cert-manager" || uid != string(account.UID) {
			c.Errorf("%s asked for by %s, %s", r.GetName(), name, uid)
		}
	}
	if len(requests.Items) != 2 {
		c.Errorf("%d requests", len(requests.Items))
	}
}

// refuses tries what its validating webhook refuses.
func (c *certManager) refuses() {
	c.Helper()
	err := c.try("certificates", "nameless", map[string]any{"secretName": "nameless", "issuerRef": map[string]any{"name": "root"}})
	want := `admission webhook "webhook.cert-manager.io" denied the request: spec: Invalid value: "": at least one of commonName, dnsNames, uris ipAddresses, or emailAddresses must be set`
	if err == nil || err.Error() != want {
		c.Errorf("%v, want %s", err, want)
	}
}

// goesWithoutWebhook ends the webhook, whose failurePolicy is Fail, and starts it again.
func (c *certManager) goesWithoutWebhook() {
	c.Helper()
	c.kill(certManagerWebhook)
	late := map[string]any{"secretName": "late", "commonName": "late", "issuerRef": map[string]any{"name": "root"}}
	want := fmt.Sprintf(`Internal error occurred: failed calling webhook "webhook.cert-manager.io": failed to call webhook: `+
		`Post "https://cert-manager-webhook.cert-manager.svc:%d/mutate?timeout=10s": `, c.port)
	for range 6 {
		err := c.try("certificates", "late", late)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			c.Fatalf("%v, want %s", err, want)
		}
	}
	if os.Getenv("TEST_KUBECONFIG") == "" {
		metrics, err := c.core.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.Context())
		c.must(err)
		// each path of it has one of its own
		closed := fmt.Sprintf(`trellis_egress_circuit_breakers{host="cert-manager-webhook.cert-manager.svc:%d",name="admission",state="closed"} 1`, c.port)
		if !strings.Contains(string(metrics), closed+"\n") {
			c.Errorf("not one of two circuit breakers is closed: no %s", closed)
		}
	}
	c.start(certManagerWebhook)
	c.serves()
	// a breaker that is open lets one request through in a second
	c.must(wait.PollUntilContextTimeout(c.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		err := c.try("certificates", "late", late)
		if err != nil && strings.HasPrefix(err.Error(), want) {
			return false, nil
		}
		return err == nil, err
	}))
	c.ready("certificates", "late")
}
