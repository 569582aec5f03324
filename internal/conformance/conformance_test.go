// Package conformance_test sends the same requests to Trellis and to kube-apiserver, and compares the responses.
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

// pair holds the two servers and the results of the comparison.
type pair struct {
	trellis, upstream *server
	known             []*knownDifference
	sent, equal       int  // numbers of requests, and of requests with equal responses
	sortCauses        bool // sort the causes of a 422 before the comparison
	crds              []*crd
	pruner            discoveryPruner
	node              *node
}

// startTrellis starts Trellis with the plugin ServiceAccount enabled. Neither server runs controllers.
func startTrellis(t *testing.T, more ...testserver.Option) *testserver.Server {
	return testserver.Start(t, append(more,
		testserver.With(func(c *apiserver.Config) { c.Admission.Disable = nil }))...)
}

// disableFlowControl disables API Priority and Fairness, as startKubeAPIServer does. Its controller would write to
// FlowSchemas between requests.
func disableFlowControl(c *apiserver.Config) { c.Fairness.Disabled = true }

// TestConformance checks that both servers return the same responses, except for the differences that
// docs/compatibility.md lists. CONFORMANCE=all selects the whole corpus of CRDs.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	upstream, node := startKubeAPIServer(t, "--service-cluster-ip-range=10.0.0.0/24"), startKubelet(t)
	config := startTrellis(t, testserver.With(node.trustKubelet), testserver.With(disableFlowControl)).Config
	p := &pair{
		trellis: newServer(t, "trellis", config), upstream: newServer(t, "upstream", upstream),
		known: knownDifferences(), pruner: discoveryPruner{map[string]bool{}}, node: node,
	}
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
			t.Logf("%d requests, %d with equal responses, %v", p.sent-sent, p.equal-equal,
				time.Since(before).Round(time.Millisecond))
		})
	}
	for _, k := range p.known {
		if !k.used && ran == len(parts) && len(p.crds) > 1 { // with the corpus
			t.Errorf("remove the row from docs/compatibility.md, no request shows this difference: %s", k.row)
		}
	}
}

// TestKnownDifferencesAreDocumented checks that docs/compatibility.md has a row for each known difference.
func TestKnownDifferencesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range knownDifferences() {
		if !strings.Contains(string(page), "\n| "+k.row) {
			t.Errorf("got no row in docs/compatibility.md that begins with %q", k.row)
		}
	}
}

// do sends a request to both servers, compares the responses and returns them. line is "METHOD path".
func (p *pair) do(t *testing.T, line, contentType, body string) (got, want response) {
	t.Helper()
	method, path, _ := strings.Cut(line, " ")
	return p.send(t, request{method: method, path: path, contentType: contentType, body: body})
}

func (p *pair) get(t *testing.T, path string) (got, want response) {
	t.Helper()
	return p.do(t, "GET "+path, "", "")
}

func (p *pair) table(t *testing.T, path string) {
	t.Helper()
	p.send(t, request{method: "GET", path: path, accept: asTable})
}

func (p *pair) send(t *testing.T, r request) (got, want response) {
	t.Helper()
	got, want = p.exchange(t, r)
	p.check(t, r, got, want)
	return got, want
}

// exchange sends r to both servers concurrently and returns the normalized responses.
func (p *pair) exchange(t *testing.T, r request) (got, want response) {
	t.Helper()
	var trellisErr, upstreamErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, trellisErr = p.trellis.send(t.Context(), r)
	}()
	want, upstreamErr = p.upstream.send(t.Context(), r)
	<-done
	if trellisErr != nil || upstreamErr != nil && !combinesRefAndSelectable(r) {
		t.Errorf("%s %s\nTrellis: %v\nupstream: %v", r.method, r.path, trellisErr, upstreamErr)
	}
	return normalize(got), normalize(want)
}

// check fails the test if the responses differ and the difference is not a known one.
func (p *pair) check(t *testing.T, r request, got, want response) {
	t.Helper()
	p.sent++
	var unknown []string
	if p.sortCauses && got.code == http.StatusUnprocessableEntity && want.code == got.code {
		sortCauses(got)
		sortCauses(want)
	}
	all := compare(got, want)
	for _, d := range all {
		if !p.isKnown(r, d) {
			unknown = append(unknown, d.String())
		}
	}
	if len(all) == 0 {
		p.equal++
	}
	if len(unknown) > 0 {
		t.Errorf("%s %s %.1500s\n%s\ngot  %v\nwant %v", r.method, r.path, r.body, strings.Join(unknown, "\n"), got,
			want)
	}
}

func (p *pair) isKnown(r request, d difference) bool {
	for _, k := range p.known {
		if k.matches(r, d) {
			k.used = true
			return true
		}
	}
	return false
}

// waitFor sends a GET to each server until the function done returns true for the response. kube-apiserver's
// controllers work asynchronously.
func (p *pair) waitFor(t *testing.T, path string, done func(response) bool) {
	t.Helper()
	p.waitForResponse(t, request{method: http.MethodGet, path: path}, done)
}

// waitForResponse does the same as waitFor for any request that does not change state.
func (p *pair) waitForResponse(t *testing.T, r request, done func(response) bool) {
	t.Helper()
	var last response
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			for _, s := range []*server{p.trellis, p.upstream} {
				a, err := s.send(ctx, r)
				if last = a; err != nil || !done(a) {
					return false, err
				}
			}
			return true, nil
		})
	if err != nil {
		t.Errorf("waiting for the expected response of %s: %v, last response %v", r.path, err, last)
	}
}
