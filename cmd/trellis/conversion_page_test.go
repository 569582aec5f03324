package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestConversionWebhookPage runs every command of docs/conversion-webhook.md. The first commands use the server of
// the README. Later commands use a server that the page starts. The example webhook converts objects. It requires the
// client certificate that the server sends (CNV-011, CNV-014).
func TestConversionWebhookPage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program; skipped with -short")
	}
	const page = "../../docs/conversion-webhook.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	command := serveCommand.FindStringSubmatchIndex(string(text))
	if command == nil {
		t.Fatalf("%s does not start a server", page)
	}
	args := strings.Fields(string(text[command[2]:command[3]]))[3:]
	dir := copyModule(t)
	env := append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir(), "GOPATH="+goEnv(t, "GOPATH"),
		"GOCACHE="+goEnv(t, "GOCACHE"))
	t.Cleanup(func() { // in case a command failed
		if pid, err := os.ReadFile(filepath.Join(dir, "webhook.pid")); err == nil {
			_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
		}
	})
	stop := startServer(t, dir, env, "trellis", "serve")
	runBlocks(t, page, string(text[:command[0]]), dir, env)
	stop()
	stop = startServer(t, dir, env, "trellis", args...)
	runBlocks(t, page, string(text[command[1]:]), dir, env)
	stop()
}
