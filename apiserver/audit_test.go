package apiserver_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/server/options"

	"github.com/trellis-k8s/trellis/apiserver"
)

// auditOptions are those of a folder with a policy of a level; no Policy is written for "".
func auditOptions(t *testing.T, dir, level string) *options.AuditOptions {
	t.Helper()
	o := options.NewAuditOptions()
	if level != "" {
		o.PolicyFile = filepath.Join(dir, "policy.yaml")
		writeFile(t, o.PolicyFile, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: "+level+", users: [kubernetes-admin]}]")
	}
	return o
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// auditHook is a webhook over TLS that keeps the events it is sent.
type auditHook struct {
	mu      sync.Mutex
	batches []auditv1.EventList
	enter   func() // at the beginning of each call
}

// open returns the kubeconfig by which the hook is called.
func (h *auditHook) open(t *testing.T, dir string) string {
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		h.enter()
		var batch auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.batches = append(h.batches, batch)
	}))
	t.Cleanup(s.Close)
	path := filepath.Join(dir, "hook.kubeconfig")
	ca := filepath.Join(dir, "hook.crt")
	writeFile(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	writeFile(t, path, fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}],
users: [{name: a}], contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}`, s.URL, ca))
	return path
}

// A webhook gets events in batches, the last of them when the server ends.
func TestAuditWebhook(t *testing.T) {
	dir := t.TempDir()
	hook := &auditHook{enter: func() {}}
	o := auditOptions(t, dir, "Request")
	o.WebhookOptions.ConfigFile = hook.open(t, dir)
	o.WebhookOptions.BatchOptions.BatchConfig.MaxBatchSize, o.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait = 4, time.Hour
	s := start(t, apiserver.Config{Audit: o})
	c := &caller{t, s, client(t, s)}
	for i := range 10 {
		c.want(201, "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%d"}}`, i))
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, b := range hook.batches {
		if b.Kind != "EventList" || b.APIVersion != "audit.k8s.io/v1" || len(b.Items) > 4 {
			t.Errorf("a batch of %d, a %s of %s", len(b.Items), b.Kind, b.APIVersion)
		}
		for _, e := range b.Items {
			if e.RequestObject != nil {
				names[e.ObjectRef.Name] = true
			}
		}
	}
	if len(hook.batches) != 3 || len(names) != 10 {
		t.Errorf("%d batches about %d objects", len(hook.batches), len(names))
	}
}

// A webhook that does not answer costs memory up to a limit, and never a request's time; what is lost is counted.
func TestAuditWebhookThatHangs(t *testing.T) {
	dir, release := t.TempDir(), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	hook := &auditHook{enter: func() { <-release }}
	o := auditOptions(t, dir, "Metadata")
	o.WebhookOptions.ConfigFile = hook.open(t, dir)
	batch := &o.WebhookOptions.BatchOptions.BatchConfig
	batch.BufferSize, batch.MaxBatchSize, batch.AsyncDelegate = 2, 1, false
	s := start(t, apiserver.Config{Audit: o})
	c := &caller{t, s, client(t, s)}
	before := lostEvents(c)
	const asked = 20
	for range asked {
		c.want(200, "GET", "/version", "")
	}
	if lost := lostEvents(c) - before; lost < asked-4 {
		t.Errorf("%d of %d events were lost", lost, asked)
	}
	let()
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if n := len(hook.batches); n == 0 || n > 5 {
		t.Errorf("%d batches", n)
	}
}

// lostEvents is the metric of the events that found the buffer full, of all servers of this process.
func lostEvents(c *caller) int {
	c.Helper()
	metrics := c.want(200, "GET", "/metrics", "")
	if !strings.Contains(metrics, "\napiserver_audit_event_total ") || !strings.Contains(metrics, "\n"+`apiserver_audit_level_total{level="Metadata"} `) {
		c.Errorf("no metrics of audit in %s", metrics)
	}
	m := regexp.MustCompile(`\napiserver_audit_error_total\{plugin="buffered"\} (\d+)`).FindStringSubmatch(metrics)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		c.Error(err)
	}
	return n
}

// auditLines counts the events in the files whose names begin with path's.
func auditLines(t *testing.T, path string) (files, lines int) {
	t.Helper()
	all, err := filepath.Glob(strings.TrimSuffix(path, ".log") + "*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var e auditv1.Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %.100s: %v", file, line, err)
			}
			lines++
		}
	}
	return len(all), lines
}

// VER-006: what many requests say at once arrives whole, a line each; a file that is full is put aside, and what is left when the server ends
// is written.
func TestAuditLog(t *testing.T) {
	for _, mode := range []string{options.ModeBlocking, options.ModeBatch} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			o := auditOptions(t, dir, "Request")
			o.LogOptions.Path, o.LogOptions.MaxSize, o.LogOptions.BatchOptions.Mode = filepath.Join(dir, "new", "audit.log"), 1, mode
			s := start(t, apiserver.Config{Audit: o})
			c := &caller{t, s, client(t, s)}
			big := strings.Repeat("x", 100<<10)
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					for j := range 5 {
						c.want(201, "POST", "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":"c%d-%d"},"data":{"k":%q}}`, i, j, big))
					}
				})
			}
			all.Wait()
			if err := s.Shutdown(); err != nil {
				t.Fatal(err)
			}
			if files, lines := auditLines(t, o.LogOptions.Path); files < 2 || lines != 20 {
				t.Errorf("%d events in %d files", lines, files)
			}
		})
	}
}

// As kube-apiserver, a server without a policy writes no event; it says so.
func TestAuditWithoutAPolicy(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer // whose handler locks
	o := auditOptions(t, dir, "")
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	s := start(t, apiserver.Config{Audit: o, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c := &caller{t, s, client(t, s)}
	c.want(200, "GET", "/version", "")
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, n := auditLines(t, o.LogOptions.Path); n != 0 || !strings.Contains(log.String(), "there is no --audit-policy-file") {
		t.Errorf("%d events", n)
	}
}

// What cannot be audited as it is to be does not begin.
func TestAuditThatCannotBegin(t *testing.T) {
	dir := t.TempDir()
	broken := auditOptions(t, dir, "Nonsense")
	for what, o := range map[string]*options.AuditOptions{"level": broken, "policy": {PolicyFile: filepath.Join(dir, "none")}} {
		if s, err := apiserver.Start(t.Context(), apiserver.Config{Audit: o}); err == nil {
			t.Errorf("%s: it has started", what)
			_ = s.Shutdown()
		} else if !strings.HasPrefix(err.Error(), "audit: loading audit policy file: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
