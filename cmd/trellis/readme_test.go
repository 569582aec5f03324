package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// readmeBlock matches a fenced block of shell commands in the README. The tests of the Go module in the folder
// cluster run the blocks with the info string `sh cluster`.
var readmeBlock = regexp.MustCompile("(?ms)^```sh( test)?\n(.*?)^```$")

// pageBlock matches a fenced block of a documentation page. There are three kinds of blocks: commands that succeed,
// commands of which the last one fails, and a part of the output of the preceding commands.
var pageBlock = regexp.MustCompile("(?ms)^```(sh test|sh refused|sh|text)\n(.*?)^```$")

// TestReadme runs every command of the README unchanged. The first two blocks start the server. The README describes
// the other blocks for a second terminal. After the README, the test runs the commands of the documentation pages.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program; skipped with -short")
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := readmeBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) < 4 {
		t.Fatalf("the README has %d blocks of commands, want at least 4", len(blocks))
	}
	setUp := strings.TrimSpace(blocks[0][2])
	if setUp != "go run ./cmd/trellis serve --apply examples/crontab" ||
		strings.TrimSpace(blocks[1][2]) != "go test ./..." {
		t.Fatalf("the README does not begin with the two set-up commands: %q, %q", setUp, blocks[1][2])
	}
	dir := copyModule(t)
	bin := t.TempDir()
	env := append(os.Environ(), "GOBIN="+bin, "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"KUBECONFIG=", "HOME="+t.TempDir(), "GOPATH="+goEnv(t, "GOPATH"), "GOCACHE="+goEnv(t, "GOCACHE"))
	stop := startReadmeServer(t, dir, env, setUp)
	for _, b := range blocks[2:] {
		if b[1] == "" {
			t.Errorf("no test runs this block of commands:\n%s", b[2])
			continue
		}
		c := exec.Command("sh", "-eux", "-c", b[2])
		c.Dir, c.Env = dir, env
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
	}
	runPage(t, "../../docs/access.md", dir, env)
	runPage(t, "../../docs/crd.md", dir, env)
	runPage(t, "../../docs/aggregation.md", dir, env)
	t.Cleanup(func() { // in case a command failed
		for _, name := range []string{"webhook.pid", "guard.pid"} {
			if pid, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
			}
		}
	})
	runPage(t, "../../docs/admission.md", dir, env)
	runPage(t, "../../docs/versions.md", dir, env)
	runPage(t, "../../docs/envtest.md", dir, env)
	stop()
	runExtensionPage(t, dir, env)
}

// runPage runs every command of a page with the running server.
func runPage(t *testing.T, page, dir string, env []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := pageBlock.FindAllStringSubmatch(string(text), -1)
	if fences := strings.Count(string(text), "```"); len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("%s has %d fences, but %d blocks with a known language", page, fences, len(blocks))
	}
	runBlocks(t, page, string(text), dir, env)
}

// runBlocks runs the commands in a part of a page and compares their output with the page.
func runBlocks(t *testing.T, page, text, dir string, env []string) {
	t.Helper()
	var out []byte
	for _, b := range pageBlock.FindAllStringSubmatch(text, -1) {
		switch b[1] {
		case "text":
			if want := strings.TrimSpace(b[2]); !strings.Contains(string(out), want) {
				t.Errorf("%s shows %q, but the output is:\n%s", page, want, out)
			}
		case "sh":
			t.Errorf("no test runs this block of commands:\n%s", b[2])
		default:
			c := exec.Command("sh", "-eu", "-c", b[2])
			c.Dir, c.Env = dir, env
			var err error
			out, err = c.CombinedOutput()
			if refused := b[1] == "sh refused"; (err != nil) != refused {
				t.Errorf("%srefused: %v, want %v:\n%s", b[2], err, refused, out)
			}
		}
	}
}

// copyModule copies the module to a new folder, in which a server can store its data.
func copyModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "apiserver", "cmd", "conversionwebhook", "examples", "extension",
		"internal", "testserver"} {
		source, err := filepath.Abs(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(source); err == nil && info.IsDir() {
			err = os.CopyFS(filepath.Join(dir, name), os.DirFS(source))
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// startReadmeServer runs the command that starts a server, on a free port to avoid conflicts. It returns when the
// server is ready.
func startReadmeServer(t *testing.T, dir string, env []string, command string) (stop func()) {
	t.Helper()
	// The program is built first, because "go run" does not forward an interrupt to the program that it runs.
	build := exec.Command("go", "build", "-o", "server.test", "./cmd/trellis")
	build.Dir, build.Env = dir, env
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	args := strings.Fields(command)
	if strings.Join(args[:3], " ") != "go run ./cmd/trellis" {
		t.Fatalf("unexpected command %q", command)
	}
	return startServer(t, dir, env, filepath.Join(dir, "server.test"), args[3:]...)
}

// startServer starts a server on a free port, and returns when the server logs that it is ready.
func startServer(t *testing.T, dir string, env []string, program string, args ...string) (stop func()) {
	t.Helper()
	output := filepath.Join(dir, "output.test")
	f, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, append(args, "--secure-port", "0")...)
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, env, f, f
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() })
	deadline := time.After(scriptTimeout)
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if data, _ := os.ReadFile(output); strings.Contains(string(data), "Trellis is ready") {
			break
		}
		select {
		case <-tick.C:
		case err := <-ended:
			data, _ := os.ReadFile(output)
			t.Fatalf("the server has ended: %v\n%s", err, data)
		case <-deadline:
			data, _ := os.ReadFile(output)
			t.Fatalf("the server is not ready:\n%s", data)
		}
	}
	return func() {
		t.Helper()
		_ = c.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			data, _ := os.ReadFile(output)
			t.Errorf("the server did not end cleanly: %v\n%s", err, data)
		}
	}
}
