package apiserver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/server/options"
)

// TestAuditWebhookUsesDialer checks that the audit webhook is called through the server's dialer.
func TestAuditWebhookUsesDialer(t *testing.T) {
	dir := t.TempDir()
	o := options.NewAuditOptions()
	o.PolicyFile, o.WebhookOptions.ConfigFile = filepath.Join(dir, "policy"), filepath.Join(dir, "hook")
	o.WebhookOptions.BatchOptions.Mode, o.WebhookOptions.InitialBackoff = options.ModeBlockingStrict, time.Nanosecond
	for file, text := range map[string]string{
		o.PolicyFile: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]",
		o.WebhookOptions.ConfigFile: `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://audit.example.com"}}],
users: [{name: a}], contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dialed := ""
	s := &Server{config: Config{Audit: o}.withDefaults()}
	if err := s.openAudit(func(_ context.Context, _, address string) (net.Conn, error) {
		dialed = address
		return nil, errors.New("refused")
	}); err != nil {
		t.Fatal(err)
	}
	if s.audit.Sink.ProcessEvents(&auditinternal.Event{}) || dialed != "audit.example.com:443" {
		t.Errorf("dialed %q", dialed)
	}
	s.audit.close()
}
