package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestConversionWebhookPage runs every command of docs/conversion-webhook.md: first beside the server of the README,
// then beside the one that the page starts. CNV-011 CNV-014: the example converts, and demands a client certificate
// that the server has.
func TestConversionWebhookPage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program; left out with -short")
	}
	const page = "../../docs/conversion-webhook.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	command := servedBy.FindStringSubmatchIndex(string(text))
	if command == nil {
		t.Fatalf("%s does not start a server", page)
	}
	args := strings.Fields(string(text[command[2]:command[3]]))[3:]
	dir := clone(t)
	env := append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir(), "GOPATH="+goEnv(t, "GOPATH"),
		"GOCACHE="+goEnv(t, "GOCACHE"))
	t.Cleanup(func() { // where a command failed
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
