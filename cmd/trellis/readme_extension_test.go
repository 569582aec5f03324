package main

import (
	"archive/zip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// serveCommand matches the command that starts the server in a page of docs.
var serveCommand = regexp.MustCompile(`(?m)^    (go run \./cmd/trellis serve .*)$`)

// runExtensionPage runs the commands of docs/extension-server.md with the server that the page starts. The page
// creates a Go module that requires this module. The test starts a Go module proxy that serves the copy of this
// module in dir. The page uses kubectl to show EXT-005 to EXT-008, EXT-011 to EXT-016, EXT-018, EXT-019, EXT-027 and
// EXT-029.
func runExtensionPage(t *testing.T, dir string, env []string) {
	t.Helper()
	proxy, version := t.TempDir(), fmt.Sprintf("v0.0.%d", time.Now().UnixNano())
	publish(t, dir, filepath.Join(proxy, "github.com/trellis-k8s/trellis/@v"), version)
	cache := goEnv(t, "GOMODCACHE")
	t.Cleanup(func() {
		left, err := filepath.Glob(filepath.Join(cache, "cache/download/github.com/trellis-k8s/trellis/@v",
			version+"*"))
		for _, path := range append(left, filepath.Join(cache, "github.com/trellis-k8s/trellis@"+version)) {
			if err == nil {
				err = os.RemoveAll(path)
			}
		}
		if err != nil {
			t.Error(err)
		}
		if pid, err := os.ReadFile(filepath.Join(dir, "wardle/pid")); err == nil { // in case a command failed
			_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
		}
	})
	env = append(env, "GOPROXY=file://"+proxy+","+goEnv(t, "GOPROXY"), "GOSUMDB=off", "GOMODCACHE="+cache,
		"GOFLAGS=-buildvcs=false -modcacherw")
	page := "../../docs/extension-server.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	command := serveCommand.FindSubmatch(text)
	if command == nil {
		t.Fatalf("%s does not start a server", page)
	}
	stop := startReadmeServer(t, dir, env, string(command[1]))
	runPage(t, page, dir, env)
	stop()
}

// publish writes the module in dir to a folder, in the layout of a Go module proxy.
func publish(t *testing.T, dir, folder, version string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(folder, 0o700))
	f, err := os.Create(filepath.Join(folder, version+".zip"))
	must(err)
	defer f.Close()
	z := zip.NewWriter(f)
	for _, part := range []string{"go.mod", "go.sum", "extension", "internal", "conversionwebhook"} {
		must(filepath.WalkDir(filepath.Join(dir, part), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			name, _ := filepath.Rel(dir, path)
			w, err := z.Create("github.com/trellis-k8s/trellis@" + version + "/" + filepath.ToSlash(name))
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		}))
	}
	must(z.Close())
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	must(err)
	must(os.WriteFile(filepath.Join(folder, version+".mod"), mod, 0o600))
	must(os.WriteFile(filepath.Join(folder, version+".info"), fmt.Appendf(nil, `{"Version":%q}`, version), 0o600))
	must(os.WriteFile(filepath.Join(folder, "list"), []byte(version+"\n"), 0o600))
}
