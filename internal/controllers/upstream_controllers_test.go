package controllers_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/testserver"
)

// startLog is a log handler that records the names of started controllers.
type startLog struct {
	slog.Handler
	mu      sync.Mutex
	started []string
	added   chan struct{} // receives a value when a controller has started
}

func newStartLog() *startLog {
	return &startLog{Handler: slog.DiscardHandler, added: make(chan struct{}, 100)}
}

func (*startLog) Enabled(context.Context, slog.Level) bool { return true }

func (j *startLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "controller started" {
		j.mu.Lock()
		defer j.mu.Unlock()
		r.Attrs(func(a slog.Attr) bool { j.started = append(j.started, a.Value.String()); return true })
		j.added <- struct{}{}
	}
	return nil
}

// await blocks until at least n controllers have started, and returns their sorted names.
func (j *startLog) await(n int) []string {
	for ; ; <-j.added {
		j.mu.Lock()
		started := slices.Sorted(slices.Values(j.started))
		j.mu.Unlock()
		if len(started) >= n {
			return started
		}
	}
}

// cluster is a server with the given controllers, and a client.
type cluster struct {
	*testing.T
	*kubernetes.Clientset
	server *testserver.Server
	log    *startLog
}

func newCluster(t *testing.T, controllers ...string) *cluster {
	t.Helper()
	j := newStartLog()
	s := testserver.Start(
		t, withControllers(controllers...), testserver.With(func(c *apiserver.Config) { c.Logger = slog.New(j) }),
	)
	return &cluster{t, kubernetes.NewForConfigOrDie(s.Config), s, j}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// service creates a Service. If selects is set, the Service selects the Pods with the label app=name. Otherwise the
// Service has no selector.
func (c *cluster) service(name string, selects bool) {
	c.Helper()
	s := &corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if selects {
		s.Spec.Selector = map[string]string{"app": name}
	}
	must[*corev1.Service](c)(c.CoreV1().Services("default").Create(c.Context(), s, metav1.CreateOptions{}))
}

// pod creates a Pod that runs on a node and has an IP address. It first waits for the ServiceAccount of the namespace.
func (c *cluster) pod(name, ip string) *corev1.Pod {
	c.Helper()
	must[*corev1.Node](c)(
		c.CoreV1().Nodes().Create(c.Context(), &corev1.Node{ObjectMeta: named("node")}, metav1.CreateOptions{}),
	)
	w, err := c.CoreV1().ServiceAccounts("default").Watch(c.Context(), metav1.ListOptions{})
	awaitEvent(c.T, w, err, func(event watch.EventType, o runtime.Object) bool { return event == watch.Added })
	pods := c.CoreV1().Pods("default")
	p := must[*corev1.Pod](c)(pods.Create(c.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: "node",
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("250m"),
				}, Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		},
	}, metav1.CreateOptions{}))
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	return c.ready(p, corev1.ConditionTrue)
}

func (c *cluster) ready(p *corev1.Pod, is corev1.ConditionStatus) *corev1.Pod {
	c.Helper()
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}
	return must[*corev1.Pod](c)(c.CoreV1().Pods("default").UpdateStatus(c.Context(), p, metav1.UpdateOptions{}))
}

// awaitSlices waits until an EndpointSlice of a Service has the given endpoints. by is the controller that manages the
// EndpointSlice. An endpoint has the form "address true" or "address false", depending on whether it is ready.
func (c *cluster) awaitSlices(service, by string, want ...string) {
	c.Helper()
	w, err := c.DiscoveryV1().EndpointSlices("default").Watch(c.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service + "," + discoveryv1.LabelManagedBy + "=" + by,
	})
	awaitEvent(c.T, w, err, func(_ watch.EventType, o runtime.Object) bool {
		var have []string
		for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
			have = append(have, fmt.Sprint(e.Addresses[0], " ", *e.Conditions.Ready))
		}
		return slices.Equal(slices.Sorted(slices.Values(have)), want)
	})
}

// TestControllersStartOnFirstObject checks that a controller starts with the first object of its kinds. On a server
// without such objects only the controllers of roles and namespaces run.
func TestControllersStartOnFirstObject(t *testing.T) {
	c := newCluster(t, "*")
	want := []string{
		"clusterrole-aggregation-controller",
		"root-ca-certificate-publisher-controller",
		"serviceaccount-controller",
	}
	for _, step := range []struct {
		start []string
		make  func() error
	}{
		{nil, func() error { return nil }},
		{[]string{"serviceaccount-token-controller"}, func() error {
			secret := &corev1.Secret{ObjectMeta: named("a")}
			_, err := c.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{})
			return err
		}},
		{[]string{"ttl-after-finished-controller"}, func() error {
			_, err := c.BatchV1().Jobs("default").Create(t.Context(), job(), metav1.CreateOptions{})
			return err
		}},
		{[]string{"resourcequota-controller"}, func() error {
			quota := &corev1.ResourceQuota{ObjectMeta: named("a")}
			_, err := c.CoreV1().ResourceQuotas("default").Create(t.Context(), quota, metav1.CreateOptions{})
			return err
		}},
		{[]string{"validatingadmissionpolicy-status-controller"}, func() error {
			policies := c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
			_, err := policies.Create(t.Context(), policy("true"), metav1.CreateOptions{})
			return err
		}},
		{[]string{
			"certificatesigningrequest-approving-controller", "certificatesigningrequest-cleaner-controller",
			"certificatesigningrequest-signing-controller",
		}, func() error {
			requests := c.CertificatesV1().CertificateSigningRequests()
			_, err := requests.Create(t.Context(), request(t, "a"), metav1.CreateOptions{})
			return err
		}},
		{[]string{"endpoints-controller", "endpointslice-controller"}, func() error {
			c.service("outside", false)
			return nil
		}},
		{[]string{"endpointslice-mirroring-controller"}, func() error {
			endpoints := &corev1.Endpoints{ObjectMeta: named("outside")}
			_, err := c.CoreV1().Endpoints("default").Create(t.Context(), endpoints, metav1.CreateOptions{})
			return err
		}},
	} {
		if err := step.make(); err != nil {
			t.Fatal(err)
		}
		want = slices.Sorted(slices.Values(append(want, step.start...)))
		if got := c.log.await(len(want)); !slices.Equal(got, want) {
			t.Fatalf("got running controllers %v, want %v", got, want)
		}
	}
	if !slices.Equal(want, upstream.Names()) {
		t.Errorf("the test does not cover all controllers, only %v", want)
	}
}

// TestServiceEndpoints checks that the EndpointSlices and Endpoints of a Service contain the addresses of its Pods
// and their readiness. (EXT-024)
func TestServiceEndpoints(t *testing.T) {
	c := newCluster(t, "*")
	c.service("web", true)
	p := c.pod("a", "10.1.0.1")
	c.awaitSlices("web", "endpointslice-controller.k8s.io", "10.1.0.1 true")
	w, err := c.CoreV1().Endpoints("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web"})
	awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
		subsets := o.(*corev1.Endpoints).Subsets
		return len(subsets) == 1 && subsets[0].Addresses[0].IP == "10.1.0.1"
	})
	c.ready(p, corev1.ConditionFalse)
	c.awaitSlices("web", "endpointslice-controller.k8s.io", "10.1.0.1 false")
}

// TestEndpointsAreMirrored checks that Endpoints created by a user are copied to an EndpointSlice.
func TestEndpointsAreMirrored(t *testing.T) {
	c := newCluster(t, "*")
	c.service("outside", false)
	e := &corev1.Endpoints{
		ObjectMeta: named("outside"),
		Subsets: []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Port: 80}}},
		},
	}
	must[*corev1.Endpoints](t)(c.CoreV1().Endpoints("default").Create(t.Context(), e, metav1.CreateOptions{}))
	c.awaitSlices("outside", "endpointslicemirroring-controller.k8s.io", "192.0.2.1 true")
}

// TestQuotasAreCounted checks that the status of a ResourceQuota counts Pods, their requests, and custom objects, as
// they are created and deleted.
func TestQuotasAreCounted(t *testing.T) {
	c := newCluster(t, "*")
	w := connect(t, c.server)
	gvr := w.crd(t, "example.com", "Widget", "Namespaced")
	w.create(t, gvr, "default", object("Widget", "example.com/v1", "a"))
	w.create(t, gvr, "default", object("Widget", "example.com/v1", "b"))
	c.pod("a", "10.1.0.1")
	limit := resource.MustParse("10")
	q := &corev1.ResourceQuota{ObjectMeta: named("all"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for _, name := range []corev1.ResourceName{
		"pods", "services", "requests.cpu", "count/widgets.example.com", "count/secrets",
	} {
		q.Spec.Hard[name] = limit
	}
	must[*corev1.ResourceQuota](t)(c.CoreV1().ResourceQuotas("default").Create(t.Context(), q, metav1.CreateOptions{}))
	used := func(want string) {
		t.Helper()
		w, err := c.CoreV1().ResourceQuotas("default").Watch(t.Context(), metav1.ListOptions{})
		awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
			var have []string
			for name, n := range o.(*corev1.ResourceQuota).Status.Used {
				have = append(have, fmt.Sprintf("%s=%s", name, n.String()))
			}
			return strings.Join(slices.Sorted(slices.Values(have)), " ") == want
		})
	}
	used("count/secrets=0 count/widgets.example.com=2 pods=1 requests.cpu=250m services=1")
	w.delete(t, gvr, "default", "a", "")
	used("count/secrets=0 count/widgets.example.com=1 pods=1 requests.cpu=250m services=1")
	now := int64(0)
	if err := c.CoreV1().Pods("default").Delete(
		t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: &now},
	); err != nil {
		t.Fatal(err)
	}
	used("count/secrets=0 count/widgets.example.com=1 pods=0 requests.cpu=0 services=1")
}

// TestQuotaOlderThanItsKind checks a quota that is created before the CRD whose objects it limits. The objects must be
// counted soon after the CRD is created, and not minutes later at the next resync (kubernetes#67239).
func TestQuotaOlderThanItsKind(t *testing.T) {
	c := newCluster(t, "*")
	w := connect(t, c.server)
	q := &corev1.ResourceQuota{
		ObjectMeta: named("early"),
		Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{
				"count/widgets.example.com": resource.MustParse("1"),
				"count/secrets":             resource.MustParse("9"),
			},
		},
	}
	quotas := c.CoreV1().ResourceQuotas("default")
	must[*corev1.ResourceQuota](t)(quotas.Create(t.Context(), q, metav1.CreateOptions{}))
	used := func(want int) {
		t.Helper()
		w, err := quotas.Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: ptr.To(int64(20))})
		awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
			return len(o.(*corev1.ResourceQuota).Status.Used) == want
		})
	}
	used(1)
	gvr := w.crd(t, "example.com", "Widget", "Namespaced")
	used(2)
	w.create(t, gvr, "default", object("Widget", "example.com/v1", "a"))
	if _, err := w.at(gvr, "default").Create(
		t.Context(), object("Widget", "example.com/v1", "b"), metav1.CreateOptions{},
	); !apierrors.IsForbidden(err) {
		t.Errorf("create an object beyond the quota: got %v, want Forbidden", err)
	}
}

// request returns a CertificateSigningRequest for a kubelet's client certificate.
func request(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}},
	}
	der := must[[]byte](t)(x509.CreateCertificateRequest(rand.Reader, template, key))
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: named(name),
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der},
			), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{
				certificatesv1.UsageDigitalSignature,
				certificatesv1.UsageKeyEncipherment,
				certificatesv1.UsageClientAuth,
			},
		},
	}
}

// TestKubeletCertificates checks that an authorized request for a kubelet's certificate is signed by the server's CA,
// with a validity of a year.
func TestKubeletCertificates(t *testing.T) {
	c := newCluster(t, "*")
	must[*certificatesv1.CertificateSigningRequest](t)(
		c.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request(t, "a"), metav1.CreateOptions{}),
	)
	var text []byte
	w, err := c.CertificatesV1().CertificateSigningRequests().Watch(t.Context(), metav1.ListOptions{})
	awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
		text = o.(*certificatesv1.CertificateSigningRequest).Status.Certificate
		return len(text) > 0
	})
	block, _ := pem.Decode(text)
	cert := must[*x509.Certificate](t)(x509.ParseCertificate(block.Bytes))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.server.Config.CAData)
	if _, err := cert.Verify(
		x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	); err != nil || cert.Subject.CommonName != "system:node:n" {
		t.Errorf("got certificate for %s, verification error %v", cert.Subject, err)
	}
	if days := time.Until(cert.NotAfter).Hours() / 24; days < 364 || days > 365 {
		t.Errorf("got a validity of %f days, want a year", days)
	}
}

// runStandalone runs controllers as in a separate process until the test ends or stop is called. With elected set,
// they run only while the process holds the Lease.
func runStandalone(t *testing.T, config *rest.Config, c upstream.Config, elected bool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	manager := upstream.New(c)
	quick := rest.CopyConfig(config)
	quick.QPS, quick.WarningHandler = -1, rest.NoWarnings{}
	kinds := informer.New(kubernetes.NewForConfigOrDie(quick).Discovery(), metadata.NewForConfigOrDie(quick), nil,
		manager.Observe)
	var running sync.WaitGroup
	run := func(ctx context.Context) {
		if err := manager.Run(ctx, config); err != nil {
			t.Error(err)
		}
	}
	running.Go(func() {
		if !elected {
			run(ctx)
		} else if err := upstream.RunElected(ctx, config, func(context.Context) {}, run); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { kinds.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// TestOldCertificateSigningRequestsAreDeleted checks that a CertificateSigningRequest approved long ago is deleted.
func TestOldCertificateSigningRequestsAreDeleted(t *testing.T) {
	c := newCluster(t, "-*")
	requests := c.CertificatesV1().CertificateSigningRequests()
	r := request(t, "old")
	r.Spec.SignerName = "example.com/nobody" // a signer without a controller
	r = must[*certificatesv1.CertificateSigningRequest](t)(requests.Create(t.Context(), r, metav1.CreateOptions{}))
	long := metav1.NewTime(time.Now().Add(-25 * time.Hour))
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: long, Reason: "Test"},
	}
	must[*certificatesv1.CertificateSigningRequest](t)(
		requests.UpdateApproval(t.Context(), "old", r, metav1.UpdateOptions{}),
	)
	runStandalone(
		t,
		c.server.Config,
		upstream.Config{
			Controllers: []string{"certificatesigningrequest-cleaner-controller"},
			Logger:      slog.New(c.log),
		},
		false,
	)
	w, err := requests.Watch(t.Context(), metav1.ListOptions{})
	awaitEvent(t, w, err, func(event watch.EventType, _ runtime.Object) bool { return event == watch.Deleted })
}

func job() *batchv1.Job {
	at, no := int32(0), corev1.RestartPolicyNever
	return &batchv1.Job{
		ObjectMeta: named("done"),
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &at, Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: no, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}},
	}
}

// TestFinishedJobsAreDeleted checks that a finished Job is deleted after its TTL.
func TestFinishedJobsAreDeleted(t *testing.T) {
	c := newCluster(t, "*")
	jobs := c.BatchV1().Jobs("default")
	j := must[*batchv1.Job](t)(jobs.Create(t.Context(), job(), metav1.CreateOptions{}))
	now := metav1.Now()
	j.Status.StartTime = &now
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
		j.Status.Conditions = append(
			j.Status.Conditions,
			batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now, LastProbeTime: now},
		)
	}
	must[*batchv1.Job](t)(jobs.UpdateStatus(t.Context(), j, metav1.UpdateOptions{}))
	w, err := jobs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: j.ResourceVersion})
	awaitEvent(t, w, err, func(event watch.EventType, _ runtime.Object) bool { return event == watch.Deleted })
}

func policy(expression string) *admissionregistrationv1.ValidatingAdmissionPolicy {
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{"CREATE"},
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{"apps", "example.com"},
			APIVersions: []string{"v1"},
			Resources:   []string{"deployments", "widgets"},
		},
	}
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: named("p"),
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: expression}},
		},
	}
}

// TestPoliciesAreTypeChecked checks that the status of a ValidatingAdmissionPolicy reports expressions with type
// errors.
func TestPoliciesAreTypeChecked(t *testing.T) {
	c := newCluster(t, "*")
	must[*admissionregistrationv1.ValidatingAdmissionPolicy](t)(
		c.AdmissionregistrationV1().
			ValidatingAdmissionPolicies().
			Create(t.Context(), policy("object.spec.replica > 1"), metav1.CreateOptions{}),
	)
	var warnings string
	w, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Watch(t.Context(), metav1.ListOptions{})
	awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
		p := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if p.Status.ObservedGeneration == p.Generation && p.Status.TypeChecking != nil {
			for _, warning := range p.Status.TypeChecking.ExpressionWarnings {
				warnings += warning.FieldRef + ": " + warning.Warning
			}
		}
		return warnings != ""
	})
	if !strings.HasPrefix(
		warnings,
		"spec.validations[0].expression: apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replica'",
	) {
		t.Error(warnings)
	}
}

// TestControllerDisabled checks that a disabled controller does not run and the others do.
func TestControllerDisabled(t *testing.T) {
	c := newCluster(t, "*", "-endpoints-controller")
	c.service("web", true)
	c.pod("a", "10.1.0.1")
	c.awaitSlices("web", "endpointslice-controller.k8s.io", "10.1.0.1 true")
	if slices.Contains(c.log.await(4), "endpoints-controller") {
		t.Error("the disabled controller runs")
	}
	if _, err := c.CoreV1().Endpoints("default").Get(
		t.Context(), "web", metav1.GetOptions{},
	); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestOneProcessLeads checks that only one of two processes with the same objects runs the controllers: the holder of
// the Lease of kube-controller-manager. The other process takes over when the first has stopped.
func TestOneProcessLeads(t *testing.T) {
	c := newCluster(t, "-*")
	leader := func(transitions int32) string {
		t.Helper()
		var holder string
		w, err := c.CoordinationV1().
			Leases(metav1.NamespaceSystem).
			Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=kube-controller-manager"})
		awaitEvent(t, w, err, func(_ watch.EventType, o runtime.Object) bool {
			l := o.(*coordinationv1.Lease)
			if l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return holder != "" && *l.Spec.LeaseTransitions == transitions
		})
		return holder
	}
	config := func(j *startLog) upstream.Config {
		return upstream.Config{
			Controllers: []string{upstream.ClusterRoleAggregation},
			Logger:      slog.New(j),
		}
	}
	first, second := newStartLog(), newStartLog()
	stop := runStandalone(t, c.server.Config, config(first), true)
	first.await(1)
	was := leader(0)
	reads := make(chan struct{}, 1000)
	counted := rest.CopyConfig(c.server.Config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/leases/kube-controller-manager") {
				reads <- struct{}{}
			}
			return next.RoundTrip(r)
		})
	})
	runStandalone(t, counted, config(second), true)
	for range 2 { // wait until the second process has tried twice to acquire the Lease
		<-reads
	}
	if n := len(second.await(0)); n != 0 {
		t.Errorf("%d controllers run in both processes", n)
	}
	stop()
	second.await(1)
	if is := leader(1); is == was {
		t.Errorf("%s still holds the Lease", is)
	}
}
