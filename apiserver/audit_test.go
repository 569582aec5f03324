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

// auditOptions returns audit options. It writes a policy file for one audit level to the folder dir. The level ""
// means no policy file.
func auditOptions(t *testing.T, dir, level string) *options.AuditOptions {
	t.Helper()
	o := options.NewAuditOptions()
	if level != "" {
		o.PolicyFile = filepath.Join(dir, "policy.yaml")
		writeFile(t, o.PolicyFile, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: "+
			"[RequestReceived]\nrules: [{level: "+level+", users: [kubernetes-admin]}]")
	}
	return o
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// auditHook is an audit webhook over TLS that records the events it receives.
type auditHook struct {
	mu      sync.Mutex
	batches []auditv1.EventList
	enter   func() // called at the start of each request
}

// open starts the webhook and returns the path of a kubeconfig for it.
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

// TestAuditWebhook checks that a webhook receives events in batches, and the last batch when the server shuts down.
func TestAuditWebhook(t *testing.T) {
	dir := t.TempDir()
	hook := &auditHook{enter: func() {}}
	o := auditOptions(t, dir, "Request")
	o.WebhookOptions.ConfigFile = hook.open(t, dir)
	o.WebhookOptions.BatchOptions.BatchConfig.MaxBatchSize = 4
	o.WebhookOptions.BatchOptions.BatchConfig.MaxBatchWait = time.Hour
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
			t.Errorf("got a batch of %d events, %s of %s", len(b.Items), b.Kind, b.APIVersion)
		}
		for _, e := range b.Items {
			if e.RequestObject != nil {
				names[e.ObjectRef.Name] = true
			}
		}
	}
	if len(hook.batches) != 3 || len(names) != 10 {
		t.Errorf("got %d batches about %d objects", len(hook.batches), len(names))
	}
}

// TestAuditWebhookThatHangs checks that a webhook that does not respond delays no request. The events for the webhook
// are stored in a bounded buffer. Events that do not fit are dropped and counted.
func TestAuditWebhookThatHangs(t *testing.T) {
	dir, release := t.TempDir(), make(chan struct{})
	resume := sync.OnceFunc(func() { close(release) })
	defer resume()
	hook := &auditHook{enter: func() { <-release }}
	o := auditOptions(t, dir, "Metadata")
	o.WebhookOptions.ConfigFile = hook.open(t, dir)
	batch := &o.WebhookOptions.BatchOptions.BatchConfig
	batch.BufferSize, batch.MaxBatchSize, batch.AsyncDelegate = 2, 1, false
	s := start(t, apiserver.Config{Audit: o})
	c := &caller{t, s, client(t, s)}
	before := lostEvents(c)
	const requests = 20
	for range requests {
		c.want(200, "GET", "/version", "")
	}
	if lost := lostEvents(c) - before; lost < requests-4 {
		t.Errorf("%d of %d events were lost", lost, requests)
	}
	resume()
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if n := len(hook.batches); n == 0 || n > 5 {
		t.Errorf("%d batches", n)
	}
}

// lostEvents returns the number of audit events that were dropped because the buffer was full, from the metrics. It
// counts all servers of this process.
func lostEvents(c *caller) int {
	c.Helper()
	metrics := c.want(200, "GET", "/metrics", "")
	if !strings.Contains(metrics, "\napiserver_audit_event_total ") ||
		!strings.Contains(metrics, "\n"+`apiserver_audit_level_total{level="Metadata"} `) {
		c.Errorf("the audit metrics are missing in %s", metrics)
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

// auditLines counts the audit events in the log file and its rotated files.
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

// TestAuditLog checks that concurrent requests write one complete line for each event, that a full file is rotated, and
// that pending events are written when the server shuts down. (VER-006)
func TestAuditLog(t *testing.T) {
	for _, mode := range []string{options.ModeBlocking, options.ModeBatch} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			o := auditOptions(t, dir, "Request")
			o.LogOptions.Path = filepath.Join(dir, "new", "audit.log")
			o.LogOptions.MaxSize, o.LogOptions.BatchOptions.Mode = 1, mode
			s := start(t, apiserver.Config{Audit: o})
			c := &caller{t, s, client(t, s)}
			big := strings.Repeat("x", 100<<10)
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					for j := range 5 {
						c.want(201, "POST", "/api/v1/namespaces/default/configmaps",
							fmt.Sprintf(`{"metadata":{"name":"c%d-%d"},"data":{"k":%q}}`, i, j, big))
					}
				})
			}
			all.Wait()
			if err := s.Shutdown(); err != nil {
				t.Fatal(err)
			}
			if files, lines := auditLines(t, o.LogOptions.Path); files < 2 || lines != 20 {
				t.Errorf("got %d events in %d files", lines, files)
			}
		})
	}
}

// TestAuditWithoutAPolicy checks that a server without a policy writes no event and logs a warning, as kube-apiserver
// does.
func TestAuditWithoutAPolicy(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer // slog's handler serializes writes
	o := auditOptions(t, dir, "")
	o.LogOptions.Path = filepath.Join(dir, "audit.log")
	s := start(t, apiserver.Config{Audit: o, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c := &caller{t, s, client(t, s)}
	c.want(200, "GET", "/version", "")
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if _, n := auditLines(t, o.LogOptions.Path); n != 0 || !strings.Contains(log.String(),
		"--audit-policy-file is not set") {
		t.Errorf("got %d events", n)
	}
}

// TestInvalidAuditConfig checks that an invalid audit configuration prevents the start.
func TestInvalidAuditConfig(t *testing.T) {
	dir := t.TempDir()
	broken := auditOptions(t, dir, "Nonsense")
	for what, o := range map[string]*options.AuditOptions{"level": broken,
		"policy": {PolicyFile: filepath.Join(dir, "none")}} {
		if s, err := apiserver.Start(t.Context(), apiserver.Config{Audit: o}); err == nil {
			t.Errorf("%s: the server started", what)
			_ = s.Shutdown()
		} else if !strings.HasPrefix(err.Error(), "audit: loading audit policy file: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
