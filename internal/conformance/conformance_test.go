// Package conformance_test sends the same requests to Trellis and to kube-apiserver, and compares the answers.
package conformance_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// pair are the two servers, and what the comparison has come to.
type pair struct {
	ours, theirs *server
	known        []*known
	sent, equal  int
	unordered    bool // the causes of a 422 come in no fixed order
	crds         []*crd
	pruned       pruning
	node         *node
}

// startTrellis has the plugin ServiceAccount too. No controllers run on either side.
func startTrellis(t *testing.T, more ...testserver.Option) *testserver.Server {
	return testserver.Start(t, append(more, testserver.With(func(c *apiserver.Config) { c.Admission.Disable = nil }))...)
}

// unfair disables priority and fairness, as on the other side: its loop would write to FlowSchemas between requests.
func unfair(c *apiserver.Config) { c.Fairness.Disabled = true }

// Every request of the parts gets the same answer from both, but for what docs/compatibility.md lists. CONFORMANCE=all takes
// the whole corpus of CRDs.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	upstream, node := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24"), startKubelet(t)
	p := &pair{newServer(t, "here", startTrellis(t, testserver.With(node.trusted), testserver.With(unfair)).Config), newServer(t, "upstream", upstream), knownDifferences(), 0, 0, false, nil, pruning{map[string]bool{}}, node}
	p.do(t, "POST /api/v1/namespaces", asYAML, `{apiVersion: v1, kind: Namespace, metadata: {name: conformance}}`)
	parts := []struct {
		name string
		run  func(*testing.T, *pair)
	}{
		{"errors", testErrors},
		{"access", testAccess},
		{"discovery", testDiscovery},
		{"builtin", testBuiltin},
		{"admission", testAdmission},
		{"crds", testCRDs},
		{"objects", testObjects},
		{"deletion", testDeletion},
		{"webhooks", testWebhooks},
		{"order", testOrder},
		{"connect", testConnect},
	}
	ran := 0
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			ran++
			before, sent, equal := time.Now(), p.sent, p.equal
			part.run(t, p)
			t.Logf("%d requests, %d answered alike, %v", p.sent-sent, p.equal-equal, time.Since(before).Round(time.Millisecond))
		})
	}
	for _, k := range p.known {
		if !k.used && ran == len(parts) && len(p.crds) > 1 { // with the corpus
			t.Errorf("nothing differs any longer as docs/compatibility.md says: %s", k.row)
		}
	}
}

// The list of known differences is that of the page.
func TestKnownDifferencesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range knownDifferences() {
		if !strings.Contains(string(page), "\n| "+k.row) {
			t.Errorf("no row of docs/compatibility.md begins with %q", k.row)
		}
	}
}

// do sends a request, "METHOD path", and compares the answers. It returns those.
func (p *pair) do(t *testing.T, line, contentType, body string) (ours, theirs answer) {
	t.Helper()
	method, path, _ := strings.Cut(line, " ")
	return p.send(t, request{method: method, path: path, contentType: contentType, body: body})
}

func (p *pair) get(t *testing.T, path string) (ours, theirs answer) {
	t.Helper()
	return p.do(t, "GET "+path, "", "")
}

func (p *pair) table(t *testing.T, path string) {
	t.Helper()
	p.send(t, request{method: "GET", path: path, accept: asTable})
}

func (p *pair) send(t *testing.T, r request) (ours, theirs answer) {
	t.Helper()
	ours, theirs = p.exchange(t, r)
	p.judge(t, r, ours, theirs)
	return ours, theirs
}

// exchange sends r to both at once.
func (p *pair) exchange(t *testing.T, r request) (ours, theirs answer) {
	t.Helper()
	var oursErr, theirsErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		ours, oursErr = p.ours.send(t.Context(), r)
	}()
	theirs, theirsErr = p.theirs.send(t.Context(), r)
	<-done
	if oursErr != nil || theirsErr != nil && !refersBySelectableField(r) {
		t.Errorf("%s %s\nhere %v\nupstream %v", r.method, r.path, oursErr, theirsErr)
	}
	return normal(ours), normal(theirs)
}

// judge fails the test if the answers differ by more than what is known.
func (p *pair) judge(t *testing.T, r request, ours, theirs answer) {
	t.Helper()
	p.sent++
	var unknown []string
	if p.unordered && ours.code == http.StatusUnprocessableEntity && theirs.code == ours.code {
		sortCauses(ours)
		sortCauses(theirs)
	}
	all := compare(ours, theirs)
	for _, d := range all {
		if !p.isKnown(r, d) {
			unknown = append(unknown, d.String())
		}
	}
	if len(all) == 0 {
		p.equal++
	}
	if len(unknown) > 0 {
		t.Errorf("%s %s %.1500s\n%s\nhere     %v\nupstream %v", r.method, r.path, r.body, strings.Join(unknown, "\n"), ours, theirs)
	}
}

func (p *pair) isKnown(r request, d difference) bool {
	for _, k := range p.known {
		if k.of(r, d) {
			k.used = true
			return true
		}
	}
	return false
}

// settle waits until kube-apiserver's loops have done what done asks of the answer to a GET. Ours has done it before.
func (p *pair) settle(t *testing.T, path string, done func(answer) bool) {
	t.Helper()
	p.settleOn(t, request{method: http.MethodGet, path: path}, done)
}

// settleOn is settle for any request that changes nothing.
func (p *pair) settleOn(t *testing.T, r request, done func(answer) bool) {
	t.Helper()
	var last answer
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		for _, s := range []*server{p.ours, p.theirs} {
			a, err := s.send(ctx, r)
			if last = a; err != nil || !done(a) {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("%s does not settle: %v, %v", r.path, err, last)
	}
}
