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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// TestCertManager checks that a widely used operator with webhooks works when its chart is installed. If
// TEST_KUBECONFIG is set, the test uses the server of that kubeconfig, which must be new (VAL-023 VAL-027).
func TestCertManager(t *testing.T) {
	c := installCertManager(t, certManagerServer(t), false)
	c.waitForInjector()
	c.waitForWebhook()
	c.issueCertificates()
	if n := c.checkRequesters(); n != 2 {
		t.Errorf("got %d CertificateRequests, want 2", n)
	}
	c.checkRejection()
	if all := c.unexpectedErrors(); len(all) > 0 {
		t.Error(strings.Join(all, "\n"))
	}
	c.checkOutage()
}

// waitForInjector blocks until cainjector has set the CA bundles of the webhooks.
func (c *certManager) waitForInjector() {
	c.Helper()
	hooks := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		c.waitFor(c.dynamic.Resource(hooks.WithResource(resource)), certManagerWebhook,
			func(o *unstructured.Unstructured) bool {
				webhooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
				ca, _, _ := unstructured.NestedString(webhooks[0].(map[string]any), "clientConfig", "caBundle")
				return ca != ""
			})
	}
}

// issueCertificates checks a self-signed certificate "root", and a certificate "leaf" of the CA root.
func (c *certManager) issueCertificates() {
	c.Helper()
	c.create("issuers", "self-signed", map[string]any{"selfSigned": map[string]any{}})
	c.waitReady("issuers", "self-signed")
	root := c.issueCertificate("root", map[string]any{"isCA": true, "commonName": "root",
		"issuerRef": map[string]any{"name": "self-signed"}})
	roots := x509.NewCertPool()
	roots.AddCert(root)
	if err := root.CheckSignatureFrom(root); err != nil || root.Subject.CommonName != "root" {
		c.Errorf("got root certificate of %v: %v, want a self-signed one of root", root.Subject, err)
	}
	c.create("issuers", "root", map[string]any{"ca": map[string]any{"secretName": "root"}})
	c.waitReady("issuers", "root")
	leaf := c.issueCertificate("leaf", map[string]any{"dnsNames": []any{"leaf.example.com"},
		"issuerRef": map[string]any{"name": "root"}})
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "leaf.example.com"}); err != nil {
		c.Error(err)
	}
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
	return testserver.Start(t, testserver.With(asShipped),
		testserver.LocalServices(certManagerNamespace+"/cert-manager-webhook")).Config
}

// certManagerGroup is the API group of cert-manager's kinds.
var certManagerGroup = schema.GroupVersion{Group: "cert-manager.io", Version: "v1"}

func (c *certManager) resource(resource string) dynamic.ResourceInterface {
	return c.dynamic.Resource(certManagerGroup.WithResource(resource)).Namespace("default")
}

func (c *certManager) create(resource, name string, spec map[string]any) {
	c.Helper()
	c.must(c.tryCreate(resource, name, spec))
}

// tryCreate creates an object and returns the error.
func (c *certManager) tryCreate(resource, name string, spec map[string]any) error {
	kind := map[string]string{"issuers": "Issuer", "certificates": "Certificate"}[resource]
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(certManagerGroup.WithKind(kind))
	o.SetName(name)
	_, err := c.resource(resource).Create(c.Context(), o, metav1.CreateOptions{})
	if c.repeats && apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// waitReady blocks until an object has the condition Ready.
func (c *certManager) waitReady(resource, name string) {
	c.Helper()
	c.waitFor(c.resource(resource), name, func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, one := range conditions {
			if condition := one.(map[string]any); condition["type"] == "Ready" {
				return condition["status"] == "True"
			}
		}
		return false
	})
}

// issueCertificate creates a Certificate and returns the issued certificate from its Secret.
func (c *certManager) issueCertificate(name string, spec map[string]any) *x509.Certificate {
	c.Helper()
	spec["secretName"] = name
	c.create("certificates", name, spec)
	c.waitReady("certificates", name)
	secret, err := c.core.CoreV1().Secrets("default").Get(c.Context(), name, metav1.GetOptions{})
	c.must(err)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	c.must(err)
	return pair.Leaf
}

// checkRequesters checks the user names in the CertificateRequests, and returns the number of these objects. The
// mutating webhook copies the names from the AdmissionReview.
func (c *certManager) checkRequesters() int {
	c.Helper()
	requests, err := c.resource("certificaterequests").List(c.Context(), metav1.ListOptions{})
	c.must(err)
	account, err := c.core.CoreV1().ServiceAccounts(certManagerNamespace).Get(c.Context(), "cert-manager",
		metav1.GetOptions{})
	c.must(err)
	for _, r := range requests.Items {
		name, _, _ := unstructured.NestedString(r.Object, "spec", "username")
		uid, _, _ := unstructured.NestedString(r.Object, "spec", "uid")
		if name != "system:serviceaccount:cert-manager:cert-manager" || uid != string(account.UID) {
			c.Errorf("CertificateRequest %s: got user %s with UID %s, want cert-manager's service account", r.GetName(),
				name, uid)
		}
	}
	return len(requests.Items)
}

// checkRejection checks that the validating webhook rejects an invalid Certificate.
func (c *certManager) checkRejection() {
	c.Helper()
	err := c.tryCreate("certificates", "nameless", map[string]any{"secretName": "nameless",
		"issuerRef": map[string]any{"name": "root"}})
	want := `admission webhook "webhook.cert-manager.io" denied the request: spec: Invalid value: "": ` +
		`at least one of commonName, dnsNames, uris ipAddresses, or emailAddresses must be set`
	if err == nil || err.Error() != want {
		c.Errorf("got error %v, want %s", err, want)
	}
}

// checkOutage checks that writes fail while the webhook does not run, because its failurePolicy is Fail. Writes
// succeed after the webhook has started again.
func (c *certManager) checkOutage() {
	c.Helper()
	c.kill(certManagerWebhook)
	late := map[string]any{"secretName": "late", "commonName": "late", "issuerRef": map[string]any{"name": "root"}}
	want := fmt.Sprintf(`Internal error occurred: failed calling webhook "webhook.cert-manager.io": `+
		`failed to call webhook: Post "https://cert-manager-webhook.cert-manager.svc:%d/mutate?timeout=10s": `, c.port)
	for range 6 {
		err := c.tryCreate("certificates", "late", late)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			c.Fatalf("got error %v, want %s", err, want)
		}
	}
	if os.Getenv("TEST_KUBECONFIG") == "" {
		metrics, err := c.core.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(c.Context())
		c.must(err)
		// The webhook has one circuit breaker for each path. Only the circuit breaker of /mutate is open.
		closed := fmt.Sprintf(`trellis_egress_circuit_breakers{host="cert-manager-webhook.cert-manager.svc:%d",`+
			`name="admission",state="closed"} 1`, c.port)
		if !strings.Contains(string(metrics), closed+"\n") {
			c.Errorf("got no metric %s, want one of two circuit breakers closed", closed)
		}
	}
	c.start(certManagerWebhook)
	c.waitForWebhook()
	// An open breaker allows one request per second.
	c.must(wait.PollUntilContextTimeout(c.Context(), 20*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			err := c.tryCreate("certificates", "late", late)
			if err != nil && strings.HasPrefix(err.Error(), want) {
				return false, nil
			}
			return err == nil, err
		}))
	c.waitReady("certificates", "late")
}
