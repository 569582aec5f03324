package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// clusterBlock matches the README's block of commands that run Pods.
var clusterBlock = regexp.MustCompile("(?ms)^```sh cluster\n(.*?)^```$")

// pageBlock matches a block of a page of docs: commands, a part of the output of the preceding commands, or the content
// of a file.
var pageBlock = regexp.MustCompile("(?ms)^```(sh test|sh docker|text|dockerfile|yaml)\n(.*?)^```$")

// newPageTerminal returns a terminal in a copy of the repository, with the kubeconfig of the fixture's server.
func (f *fixture) newPageTerminal() *terminal {
	f.Helper()
	t := f.newTerminal(f.newNodesDir(1))
	for _, name := range []string{"Makefile", "go.mod", "go.sum", "internal", "cluster", "examples"} {
		t.link(name, filepath.Join(repository, name))
	}
	f.must(os.MkdirAll(filepath.Join(repository, "bin"), 0o755))
	t.link("bin", filepath.Join(repository, "bin"))
	t.link(".trellis/admin.kubeconfig", f.server.Kubeconfig)
	t.env = append(t.env, "KUBECONFIG=")
	f.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(t.dir, ".trellis", "cluster.log")); f.Failed() && err == nil {
			f.Logf("trellis-cluster up:\n%s", log)
		}
	})
	return t
}

// TestReadme runs the README's commands for Pods, and checks that the Pod runs and that kubectl prints its log.
func TestReadme(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	at.must(err)
	blocks := clusterBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 1 {
		t.Fatalf("got %d blocks of commands, want 1", len(blocks))
	}
	out, err := at.run("trap 'kill $!; wait' EXIT\n" + blocks[0][1])
	if err != nil || !strings.Contains(out, "job.batch/hello condition met\nhello\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSchedulersPage runs all commands of docs/schedulers.md with the real kubectl and the files of
// examples/schedulers. SCD-004 SCD-005 SCD-006 SCD-007 SCD-008 SCD-013 SCD-014 SCD-020 SCD-024 SCD-025 SCD-027 SCD-032
// SCD-033 SCD-037
func TestSchedulersPage(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	// `kubectl edit` starts this editor, which makes the change that the page describes.
	at.env = append(at.env, "EDITOR=sed -i 's/^\\( *\\)- kube-scheduler$/&\\n\\1- my-scheduler/'")
	at.runPage("schedulers.md", "", strings.NewReplacer())
}

// TestReachPage runs all commands of the first section of docs/reach.md with the real kubectl and curl. It replaces
// the ports and addresses on the page by a free port and the address of the fixture's server. HPX-001 HPX-002 HPX-003
// HPX-004 HPX-005 HPX-006 HPX-008 HPX-009 HPX-010 HPX-011
func TestReachPage(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	at.must(err)
	_, free, err := net.SplitHostPort(l.Addr().String())
	at.must(errors.Join(err, l.Close()))
	at.runPage("reach.md", "The API through kubectl proxy", strings.NewReplacer("8080", free, "127.0.0.1:6443",
		strings.TrimPrefix(at.server.Config.Host, "https://")))
}

// pageSection returns the text of a section of a page of docs, or of the whole page if name is "".
func (f *fixture) pageSection(page, name string) string {
	f.Helper()
	data, err := os.ReadFile(filepath.Join(repository, "docs", page))
	f.must(err)
	text := string(data)
	if name == "" {
		return text
	}
	_, text, found := strings.Cut(text, "\n## "+name+"\n")
	if !found {
		f.Fatalf("%s has no section %q", page, name)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// runPage runs the blocks of a section of a page of docs. Before this, it applies replacer to the page, for example to
// replace addresses and ports.
func (at *terminal) runPage(name, section string, replacer *strings.Replacer) {
	at.Helper()
	t := at.T
	at.Cleanup(func() { // stops the programs of the page if a command failed
		for _, folder := range []string{"", ".trellis", ".trellis/try"} {
			pids, _ := filepath.Glob(filepath.Join(at.dir, folder, "*.pid"))
			for _, name := range pids {
				if pid, err := os.ReadFile(name); err == nil {
					_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
				}
			}
		}
	})
	text := at.pageSection(name, section)
	blocks := pageBlock.FindAllStringSubmatch(replacer.Replace(text), -1)
	if fences := strings.Count(text, "```"); len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("the page has %d fences, but only %d known blocks", fences, len(blocks))
	}
	out, err := "", error(nil)
	for _, b := range blocks {
		switch kind, block := b[1], b[2]; kind {
		case "text":
			if !strings.Contains(mask(out), strings.TrimSpace(mask(block))) {
				t.Errorf("the page shows\n%s, but the output is\n%s", block, out)
			}
		case "dockerfile":
			if file, err := os.ReadFile(filepath.Join(at.dir, "examples", "schedulers", "Dockerfile")); err != nil ||
				string(file) != block {
				t.Errorf("the file has the content %q, error %v; the page shows\n%s", file, err, block)
			}
		case "yaml":
			if role, err := at.run("trellis kubectl get clusterrole system:kube-scheduler -o yaml"); err != nil ||
				!strings.Contains(role, block) {
				t.Errorf("the role is\n%s, error %v; it does not contain\n%s", role, err, block)
			}
		default:
			if kind == "sh docker" && exec.Command("docker", "info").Run() != nil {
				t.Logf("skipped, because docker is not available: %s", block)
				continue
			}
			if out, err = at.runBlock(block); err != nil {
				t.Fatalf("%s: %v\n%s", block, err, out)
			}
		}
	}
}
