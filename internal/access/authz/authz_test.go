package authz

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trellis-k8s/trellis/internal/access"
)

// header begins each configuration file.
const header = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"

// roles allows jane to list, and has no opinion on other requests.
type roles struct{ authorizer.RuleResolver }

func (roles) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "jane" && a.GetVerb() == "list" {
		return authorizer.DecisionAllow, "jane lists", nil
	}
	return authorizer.DecisionNoOpinion, "no role", nil
}

func newAuthorizers(t testing.TB, c Config) (*Authorizers, error) {
	t.Helper()
	return New(c, roles{}, func() informers.SharedInformerFactory {
		return informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	})
}

func attributes(name, verb string, groups ...string) *access.Attributes {
	return &access.Attributes{
		User: &user.DefaultInfo{Name: name, Groups: groups},
		Verb: verb, Resource: true, Plural: "pods", Namespace: "default", LabelSelector: "a=b",
	}
}

func authorize(t *testing.T, a access.Authorizer, attributes *access.Attributes) (authorizer.Decision, string) {
	t.Helper()
	d, reason, err := a.Authorize(t.Context(), attributes)
	if err != nil {
		t.Fatal(err)
	}
	return d, reason
}

// TestModes checks that the modes are evaluated in their order, and that system:masters may do everything in each
// mode. EXT-002
func TestModes(t *testing.T) {
	for _, c := range []struct {
		modes     string
		jane, joe authorizer.Decision
		reason    string // in joe's refusal
	}{
		{"RBAC", authorizer.DecisionAllow, authorizer.DecisionNoOpinion, "rbac: no role"},
		{"AlwaysAllow", authorizer.DecisionAllow, authorizer.DecisionAllow, ""},
		{"RBAC,AlwaysDeny", authorizer.DecisionAllow, authorizer.DecisionNoOpinion,
			"rbac: no role\nalwaysdeny: Everything is forbidden."},
		{"Node,RBAC", authorizer.DecisionAllow, authorizer.DecisionNoOpinion, "rbac: no role"},
		{"Node", authorizer.DecisionNoOpinion, authorizer.DecisionNoOpinion, ""},
		{"", authorizer.DecisionAllow, authorizer.DecisionNoOpinion, "rbac: no role"},
	} {
		a, err := newAuthorizers(t, Config{Modes: strings.FieldsFunc(c.modes, func(r rune) bool { return r == ',' })})
		if err != nil {
			t.Fatal(err)
		}
		if d, _ := authorize(t, a, attributes("jane", "list")); d != c.jane {
			t.Errorf("%s: jane: %v", c.modes, d)
		}
		if d, reason := authorize(t, a, attributes("joe", "list")); d != c.joe || reason != c.reason {
			t.Errorf("%s: joe: %v %q", c.modes, d, reason)
		}
		if d, _ := authorize(t, a, attributes("root", "delete",
			user.SystemPrivilegedGroup)); d != authorizer.DecisionAllow {
			t.Errorf("%s: system:masters: %v", c.modes, d)
		}
	}
}

// TestNode checks that the mode Node lets a kubelet read the objects that the Pods on its node need, and the objects
// that all kubelets may read. It also checks that the informers start with the first request of a node, and not
// earlier.
func TestNode(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"},
		Spec: corev1.PodSpec{NodeName: "node-0", Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}}}
	a, err := New(Config{Modes: []string{"Node", "RBAC"}}, roles{}, func() informers.SharedInformerFactory {
		return informers.NewSharedInformerFactory(fake.NewClientset(pod), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	running, ctx := sync.WaitGroup{}, t.Context()
	ctx, cancel := context.WithCancel(ctx)
	running.Go(func() { a.Run(ctx, func(err error) { t.Error(err) }) })
	defer running.Wait()
	defer cancel()
	secret := func(node string) *access.Attributes {
		a := attributes("system:node:"+node, "get", user.NodesGroup)
		a.Plural, a.Name, a.LabelSelector = "secrets", "s", ""
		return a
	}
	authorize(t, a, attributes("jane", "list"))
	select {
	case <-a.node.used:
		t.Error("the informers start without a request of a node")
	default:
	}
	for d := authorizer.DecisionNoOpinion; d != authorizer.DecisionAllow; d, _ = authorize(t, a, secret("node-0")) {
		runtime.Gosched() // wait until the informer has received the Pod
	}
	if d, reason := authorize(t, a, secret("node-1")); d != authorizer.DecisionNoOpinion ||
		!strings.Contains(reason, "no relationship found between node 'node-1' and this object") {
		t.Errorf("another node: %v %q", d, reason)
	}
	services := attributes("system:node:node-1", "list", user.NodesGroup)
	services.Plural = "services"
	if d, _ := authorize(t, a, services); d != authorizer.DecisionAllow {
		t.Errorf("node-1 lists Services: got %v, want allow", d)
	}
}

// TestFileIsReloaded checks that the file is reloaded when it changes. An unusable file is reported and has no effect.
// A file is also unusable if it removes a mode that was enabled at the start, or adds the mode Node.
func TestFileIsReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "authz.yaml")
	replaceFile := func(authorizers string) {
		t.Helper()
		text := header + "authorizers:\n- {type: RBAC, name: rbac}\n" + authorizers
		if err := os.Rename(write(t, path+".new", text), path); err != nil {
			t.Fatal(err)
		}
	}
	replaceFile("")
	a, err := newAuthorizers(t, Config{ConfigFile: path})
	if err != nil {
		t.Fatal(err)
	}
	reports, running := make(chan error, 10), sync.WaitGroup{}
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { a.Run(ctx, func(err error) { reports <- err }) })
	defer running.Wait()
	defer cancel()
	joe := func() authorizer.Decision {
		d, _ := authorize(t, a, attributes("joe", "list"))
		return d
	}
	if d := joe(); d != authorizer.DecisionNoOpinion {
		t.Fatal(d)
	}
	for _, c := range []struct{ text, want string }{
		{"- {type: Node, name: node}\n",
			"authorizer type Node is not allowed if it was not enabled at initial server startup"},
		{"- {type: ABAC, name: abac}\n", "authorizer type ABAC is not allowed"},
		{"oops: 1\n", "unknown field"},
	} {
		replaceFile(c.text)
		if err := <-reports; !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	replaceFile("- {type: AlwaysAllow, name: alwaysallow}\n")
	for joe() != authorizer.DecisionAllow {
		runtime.Gosched()
	}
	if err := os.Rename(write(t, path+".new", header+"authorizers: [{type: AlwaysDeny, name: alwaysdeny}]\n"),
		path); err != nil {
		t.Fatal(err)
	}
	if err := <-reports; !strings.Contains(err.Error(), "missing required types: [RBAC]") {
		t.Error(err)
	}
	if d := joe(); d != authorizer.DecisionAllow {
		t.Errorf("after an unusable file: got %v, want allow", d)
	}
}

// serveWebhook starts a webhook that calls f with each review and sends the review back. It returns the path of a
// kubeconfig for the webhook.
func serveWebhook(t *testing.T, f func(*authorizationv1.SubjectAccessReview)) string {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		f(&review)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	return write(t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: a}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`, s.URL, ca))
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWebhook checks that a webhook receives the selectors of the request. A denial of the webhook is final. If the
// webhook has no opinion, RBAC decides.
func TestWebhook(t *testing.T) {
	var reviews []string
	file := serveWebhook(t, func(r *authorizationv1.SubjectAccessReview) {
		a := r.Spec.ResourceAttributes
		reviews = append(reviews, fmt.Sprint(r.Spec.User, " ", a.Verb, " ", a.LabelSelector.Requirements))
		switch r.Spec.User {
		case "ann":
			r.Status.Allowed = true
		case "jane":
			r.Status.Denied, r.Status.Reason = true, "not today"
		}
	})
	config := write(t, filepath.Join(t.TempDir(), "authz.yaml"), `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: external
  webhook:
    timeout: 3s
    authorizedTTL: 0s
    unauthorizedTTL: 0s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: `+file+`}
    matchConditions: [{expression: "request.user != 'zoe'"}]
- {type: RBAC, name: rbac}
`)
	a, err := newAuthorizers(t, Config{ConfigFile: config})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, verb string
		want       authorizer.Decision
		reason     string
	}{
		{"ann", "delete", authorizer.DecisionAllow, ""},
		{"jane", "list", authorizer.DecisionDeny, "not today"},
		{"joe", "list", authorizer.DecisionNoOpinion, "rbac: no role"},
		{"zoe", "list", authorizer.DecisionNoOpinion, "rbac: no role"},
	} {
		if d, reason := authorize(t, a, attributes(c.name, c.verb)); d != c.want || reason != c.reason {
			t.Errorf("%s: %v %q, want %v %q", c.name, d, reason, c.want, c.reason)
		}
	}
	const want = "ann delete [{a In [b]}]\njane list [{a In [b]}]\njoe list [{a In [b]}]"
	if got := strings.Join(reviews, "\n"); got != want {
		t.Errorf("got reviews:\n%s\nwant:\n%s", got, want)
	}
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("dial refused") }
	c := Config{Modes: []string{"Webhook"}, Webhook: Webhook{ConfigFile: file, Version: "v1"}, Dial: refuse}
	if a, err = newAuthorizers(t, c); err != nil {
		t.Fatal(err)
	}
	_, _, err = a.Authorize(t.Context(), attributes("ann", "list"))
	if err == nil || !strings.Contains(err.Error(), "dial refused") {
		t.Errorf("got %v, want the error of the configured dialer", err)
	}
}

// TestBadConfigurations checks that New returns an error that names the flag of an invalid configuration.
func TestBadConfigurations(t *testing.T) {
	file := func(text string) string {
		return write(t, filepath.Join(t.TempDir(), "authz.yaml"),
			header+text)
	}
	for want, c := range map[string]Config{
		`--authorization-mode: unknown mode "Chance"`:          {Modes: []string{"Chance"}},
		"--authorization-mode: duplicate mode RBAC":            {Modes: []string{"RBAC", "RBAC"}},
		"Webhook requires --authorization-webhook-config-file": {Modes: []string{"Webhook"}},
		"at least one authorization mode must be defined":      {ConfigFile: file("authorizers: []\n")},
		"expected name rbac for authorizer RBAC instead of other": {ConfigFile: file("authorizers: [{type: RBAC, " +
			"name: other}]\n")},
		"unknown field": {ConfigFile: file("authorizerz: []\n")},
		"no such file":  {ConfigFile: filepath.Join(t.TempDir(), "missing")},
		"authorizer default: ": {Modes: []string{"Webhook"},
			Webhook: Webhook{ConfigFile: filepath.Join(t.TempDir(), "missing"), Version: "v1"}},
	} {
		if _, err := newAuthorizers(t, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// FuzzConfiguration checks that no content of a configuration file makes New panic.
func FuzzConfiguration(f *testing.F) {
	f.Add(header + "authorizers: [{type: RBAC, name: rbac}]\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = newAuthorizers(t, Config{ConfigFile: write(t, filepath.Join(t.TempDir(), "authz.yaml"), text)})
	})
}
