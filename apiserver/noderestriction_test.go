package apiserver_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
)

// kubelets is a server with default flags and two nodes. Each node has a client certificate from a
// CertificateSigningRequest.
type kubelets struct {
	*testing.T
	admin, node, other kubernetes.Interface
}

func newKubelets(t *testing.T) *kubelets {
	t.Helper()
	s := start(t, apiserver.Config{})
	k := &kubelets{T: t, admin: kubernetes.NewForConfigOrDie(s.ClientConfig())}
	k.node, k.other = k.join(s, "node-1"), k.join(s, "node-2")
	return k
}

// join requests a client certificate for a kubelet, creates its Node with the certificate and returns the client. The
// server approves the request automatically, because the administrator creates it.
func (k *kubelets) join(s *apiserver.Server, name string) kubernetes.Interface {
	k.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	k.must(err)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	k.must(err)
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	request, uid, err := csr.RequestCertificateWithContext(k.Context(), k.admin, signingRequest(k.T, name, key), name,
		certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key)
	k.must(err)
	certificate, err := csr.WaitForCertificate(k.Context(), k.admin, request, uid)
	k.must(err)
	config := rest.AnonymousClientConfig(s.ClientConfig())
	config.CertData, config.KeyData = certificate, keyPEM
	client := kubernetes.NewForConfigOrDie(config)
	_, err = client.CoreV1().Nodes().Create(k.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	k.must(err)
	return client
}

// signingRequest returns a PEM request for the client certificate of a node.
func signingRequest(t *testing.T, node string, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node,
			Organization: []string{"system:nodes"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func (k *kubelets) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// refused checks that an error is a 403 whose message contains text.
func (k *kubelets) refused(what string, err error, text string) {
	k.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		k.Errorf("%s: got %v, want forbidden with %q", what, err, text)
	}
}

// mirror returns a mirror Pod of a node, as its kubelet creates it for a static Pod.
func (k *kubelets) mirror(node string, change func(*corev1.PodSpec)) *corev1.Pod {
	k.Helper()
	n, err := k.admin.CoreV1().Nodes().Get(k.Context(), node, metav1.GetOptions{})
	k.must(err)
	yes := true
	pod := podOn(node, "mirror")
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "a"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: n.UID,
		Controller: &yes}}
	change(&pod.Spec)
	return pod
}

func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// TestKubeletCreatesOnlyMirrorPods checks that with default flags a kubelet cannot create a Pod that uses a Secret or a
// ServiceAccount. The Node authorizer would otherwise permit it to read the Secret or to get a token of the account.
func TestKubeletCreatesOnlyMirrorPods(t *testing.T) {
	k := newKubelets(t)
	pods := k.node.CoreV1().Pods("default")
	secret := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "s"},
	}}
	plain := podOn("node-1", "plain")
	plain.Spec.Volumes = []corev1.Volume{secret}
	_, err := pods.Create(t.Context(), plain, metav1.CreateOptions{})
	k.refused("a Pod", err, `node "node-1" can only create mirror pods`)
	_, err = pods.Create(t.Context(), k.mirror("node-2", func(*corev1.PodSpec) {}), metav1.CreateOptions{})
	k.refused("a mirror Pod of another node", err, "can only create pods with spec.nodeName set to itself")
	for what, change := range map[string]func(*corev1.PodSpec){
		"secrets (via secret volumes)": func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{secret} },
		"secrets": func(s *corev1.PodSpec) {
			s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}}
		},
		"serviceaccounts": func(s *corev1.PodSpec) { s.ServiceAccountName = "default" },
	} {
		_, err := pods.Create(t.Context(), k.mirror("node-1", change), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("a mirror Pod with %s: %v", what, err)
		}
	}
	if _, err := pods.Create(t.Context(), k.mirror("node-1", func(*corev1.PodSpec) {}),
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	_, err = k.node.CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	k.refused("the Secret", err, "no relationship found")
}

// TestCVE20254563 checks that with default flags a kubelet cannot create a mirror Pod that refers to a ResourceClaim in
// any field (CVE-2025-4563).
func TestCVE20254563(t *testing.T) {
	k := newKubelets(t)
	name := "claim"
	for field, claim := range map[string]corev1.PodResourceClaim{
		"resourceClaimName":         {Name: "c", ResourceClaimName: &name},
		"resourceClaimTemplateName": {Name: "c", ResourceClaimTemplateName: &name},
	} {
		pod := k.mirror("node-1", func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{claim} })
		_, err := k.node.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		k.refused(field, err, "can not create pods that reference resourceclaims")
	}
	created, err := k.node.CoreV1().Pods("default").Create(t.Context(), k.mirror("node-1", func(*corev1.PodSpec) {}),
		metav1.CreateOptions{})
	k.must(err)
	created.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &name}}
	_, err = k.node.CoreV1().Pods("default").UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	k.refused("status", err, "cannot update resource claim statues")
}

// TestCVE20255187 checks that with default flags a kubelet cannot set an owner reference on its Node, neither at its
// creation nor later. The deletion of the owner would delete the Node, and the kubelet could create it again with other
// labels and taints (CVE-2025-5187).
func TestCVE20255187(t *testing.T) {
	k := newKubelets(t)
	nodes := k.node.CoreV1().Nodes()
	owned := []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"u"}]}}`)
	for _, subresource := range []string{"", "status"} {
		_, err := nodes.Patch(t.Context(), "node-1", types.MergePatchType, owned, metav1.PatchOptions{}, subresource)
		k.refused("an owner by a patch of "+subresource, err, "is not allowed to modify ownerReferences")
	}
	k.must(k.admin.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "storage.k8s.io/v1", Kind: "CSINode", Name: "node-1",
			UID: "u"}}}}
	_, err := nodes.Create(t.Context(), node, metav1.CreateOptions{})
	k.refused("an owner from the start", err,
		`nodes "node-1" is forbidden: node "node-1" is not allowed to set ownerReferences`)
	applied := []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1","ownerReferences":[{"apiVersion":"storage.k8s.io/v1","kind":"CSINode","name":"node-1","uid":"u"}]}}`)
	_, err = nodes.Patch(t.Context(), "node-1", types.ApplyPatchType, applied, metav1.PatchOptions{FieldManager: "m"})
	k.refused("an owner by an apply that creates", err, "is not allowed to set ownerReferences")
	node.OwnerReferences = nil
	_, err = nodes.Create(t.Context(), node, metav1.CreateOptions{})
	k.must(err)
}

// TestKubeletChangesItsNodeOnly checks that with default flags a kubelet can change only its own Node. It cannot
// change labels and taints that would attract Pods to the Node.
func TestKubeletChangesItsNodeOnly(t *testing.T) {
	k := newKubelets(t)
	nodes := k.node.CoreV1().Nodes()
	for label, text := range map[string]string{
		`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`: "is not allowed to modify labels: " +
			"node-role.kubernetes.io/control-plane",
		`{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"b"}}}`: "is not allowed to modify labels: " +
			"node-restriction.kubernetes.io/a",
		`{"spec":{"taints":null}}`: "is not allowed to modify taints",
	} {
		_, err := nodes.Patch(t.Context(), "node-1", types.MergePatchType, []byte(label), metav1.PatchOptions{})
		k.refused(label, err, text)
	}
	_, err := nodes.Patch(t.Context(), "node-2", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{})
	k.refused("another Node", err, "")
	_, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}},
		metav1.CreateOptions{})
	k.refused("a Node by another name", err, `is not allowed to modify node "node-3"`)
	_, err = nodes.Patch(t.Context(), "node-1", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{})
	k.must(err)
	k.must(k.admin.CoreV1().Nodes().Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
		Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}}
	_, err = nodes.Create(t.Context(), node, metav1.CreateOptions{})
	k.refused("a label from the start", err,
		"is not allowed to set the following labels: node-role.kubernetes.io/control-plane")
}

// TestKubeletActsForItsPodsOnly checks which Pods a kubelet can access with default flags. It can delete Pods, evict
// Pods and update their status only if they are on its own node. It gets only tokens that are bound to these Pods.
func TestKubeletActsForItsPodsOnly(t *testing.T) {
	k := newKubelets(t)
	ctx, pods := t.Context(), k.node.CoreV1().Pods("default")
	made := map[string]*corev1.Pod{}
	for _, name := range []string{"node-1", "node-2"} {
		pod, err := k.admin.CoreV1().Pods("default").Create(ctx, podOn(name, name), metav1.CreateOptions{})
		k.must(err)
		pod.ResourceVersion = "" // controllers may have updated it
		made[name] = pod
	}
	k.refused("deletion", pods.Delete(ctx, "node-2", metav1.DeleteOptions{}),
		"can only delete pods with spec.nodeName set to itself")
	k.refused("eviction", pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}),
		"can only evict pods with spec.nodeName set to itself")
	_, err := pods.UpdateStatus(ctx, made["node-2"], metav1.UpdateOptions{})
	k.refused("status", err, "can only update pod status for pods with spec.nodeName set to itself")
	token := func(to *corev1.Pod) error {
		r := &authenticationv1.TokenRequest{}
		if to != nil {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: to.Name,
				UID: to.UID}
		}
		var err error
		eventually(t, "await that the Node authorizer has seen the Pod", func(ctx context.Context) bool {
			_, err = k.node.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", r, metav1.CreateOptions{})
			return err == nil || !strings.Contains(err.Error(), "no relationship found")
		})
		return err
	}
	k.refused("token bound to nothing", token(nil), "node requested token not bound to a pod")
	k.refused("token bound to a Pod of another node", token(made["node-2"]),
		"node requested token bound to a pod scheduled on a different node")
	k.must(token(made["node-1"]))
	lease := func(namespace, name string) error {
		_, err := k.node.CoordinationV1().Leases(namespace).Create(ctx,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	k.refused("Lease of a controller", lease("kube-system", "a"), "can only access leases in the")
	k.refused("Lease of another node", lease("kube-node-lease", "node-2"), "with the same name as the requesting node")
	k.must(lease("kube-node-lease", "node-1"))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	k.must(err)
	request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: signingRequest(t, "node-2", key), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}
	_, err = k.node.CertificatesV1().CertificateSigningRequests().Create(ctx, request, metav1.CreateOptions{})
	k.refused("certificate of another node", err, "can only create a node CSR with CN=system:node:node-1")
	_, err = pods.UpdateStatus(ctx, made["node-1"], metav1.UpdateOptions{})
	k.must(err)
	k.must(pods.Delete(ctx, "node-1", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// TestNodeRestrictionComesWithTheNodeAuthorizer checks that NodeRestriction is enabled by default if the Node
// authorizer is configured, by flags or by a file, and that disabling it logs a warning.
func TestNodeRestrictionComesWithTheNodeAuthorizer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authz.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Node, " +
		"name: node}, {type: AlwaysAllow, name: alwaysallow}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	disabled := plugins.Options{Disable: []string{"NodeRestriction"}}
	for name, c := range map[string]struct {
		apiserver.Config
		on, warned bool
	}{
		"default": {apiserver.Config{}, true, false},
		"modes": {apiserver.Config{Authorization: authz.Config{Modes: []string{"AlwaysAllow", "Node"}}},
			true, false},
		"file":     {apiserver.Config{Authorization: authz.Config{ConfigFile: file}}, true, false},
		"disabled": {apiserver.Config{Admission: disabled}, false, true},
		"no Node": {apiserver.Config{Authorization: authz.Config{Modes: []string{"AlwaysAllow"}}}, false,
			false},
		"no Node, and disabled": {apiserver.Config{Authorization: authz.Config{Modes: []string{"AlwaysAllow"}},
			Admission: disabled}, false, false},
		"no Node, but enabled": {apiserver.Config{Authorization: authz.Config{Modes: []string{"AlwaysAllow"}},
			Admission: plugins.Options{Enable: []string{"NodeRestriction"}}}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c.Controllers, c.Logger = []string{"clusterrole-aggregation-controller"},
				slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			s := start(t, c.Config)
			as := rest.CopyConfig(s.ClientConfig())
			as.Impersonate = rest.ImpersonationConfig{UserName: "system:node:n", Groups: []string{"system:nodes"}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
				Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}}
			_, err := kubernetes.NewForConfigOrDie(as).CoreV1().Nodes().Create(context.Background(), node,
				metav1.CreateOptions{})
			if apierrors.IsForbidden(err) != c.on || !c.on && err != nil {
				t.Errorf("a node with the control plane label: %v", err)
			}
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
			if warned := strings.Contains(log.String(), "NodeRestriction is disabled"); warned != c.warned {
				t.Errorf("warned: %t:\n%s", warned, &log)
			}
		})
	}
}
