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

// clusterBlock is what the README has people type to run Pods.
var clusterBlock = regexp.MustCompile("(?ms)^```sh cluster\n(.*?)^```$")

// pageBlock is one block of a page of docs: commands, a part of what the ones before it print, or a file of the documentation.
var pageBlock = regexp.MustCompile("(?ms)^```(sh test|sh docker|text|dockerfile|yaml)\n(.*?)^```$")

// newPageTerminal is at a terminal in a clone of the repository, beside a server.
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

// TestReadme runs these commands as they are written, beside a server. The Pod runs, and what it says is told.
func TestReadme(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	at.must(err)
	blocks := clusterBlock.FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks", len(blocks))
	}
	out, err := at.run("trap 'kill $!; wait' EXIT\n" + blocks[0][1])
	if err != nil || !strings.Contains(out, "\nhello\n") || !strings.Contains(out, "node/node-1 ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestSchedulersPage types docs/schedulers.md line by line, with the files of examples/schedulers. SCD-004 SCD-005 SCD-006 SCD-007 SCD-008
// SCD-013 SCD-014 SCD-020 SCD-024 SCD-025 SCD-027 SCD-032 SCD-033 SCD-037, by kubectl.
func TestSchedulersPage(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	// What somebody does in the editor that opens.
	at.env = append(at.env, "EDITOR=sed -i 's/^\\( *\\)- kube-scheduler$/&\\n\\1- my-scheduler/'")
	at.runPage("schedulers.md", "", strings.NewReplacer())
}

// TestReachPage types the first chapter of docs/reach.md line by line, at a free port and for the world's server. HPX-001 HPX-002 HPX-003 HPX-004 HPX-005
// HPX-006 HPX-008 HPX-009 HPX-010 HPX-011, by kubectl and curl.
func TestReachPage(t *testing.T) {
	at := newFullFixture(t).newPageTerminal()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	at.must(err)
	_, free, err := net.SplitHostPort(l.Addr().String())
	at.must(errors.Join(err, l.Close()))
	at.runPage("reach.md", "The API through kubectl proxy", strings.NewReplacer("8080", free, "127.0.0.1:6443", strings.TrimPrefix(at.server.Config.Host, "https://")))
}

// pageSection is that of a page of docs, all of the page if it has no name.
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
		f.Fatalf("%s has no chapter %q", page, name)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// runPage types a chapter of a page of docs, in which what differs here is replaced.
func (at *terminal) runPage(name, chapter string, here *strings.Replacer) {
	at.Helper()
	t := at.T
	at.Cleanup(func() { // where a command failed
		for _, folder := range []string{"", ".trellis", ".trellis/try"} {
			pids, _ := filepath.Glob(filepath.Join(at.dir, folder, "*.pid"))
			for _, name := range pids {
				if pid, err := os.ReadFile(name); err == nil {
					_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
				}
			}
		}
	})
	text := at.pageSection(name, chapter)
	blocks := pageBlock.FindAllStringSubmatch(here.Replace(text), -1)
	if fences := strings.Count(text, "```"); len(blocks) < 10 || fences != 2*len(blocks) {
		t.Fatalf("%d fences, %d blocks are understood", fences, len(blocks))
	}
	out, err := "", error(nil)
	for _, b := range blocks {
		switch kind, block := b[1], b[2]; kind {
		case "text":
			if !strings.Contains(mask(out), strings.TrimSpace(mask(block))) {
				t.Errorf("the page shows\n%s, but it is\n%s", block, out)
			}
		case "dockerfile":
			if file, err := os.ReadFile(filepath.Join(at.dir, "examples", "schedulers", "Dockerfile")); err != nil || string(file) != block {
				t.Errorf("the file is %q, %v", file, err)
			}
		case "yaml":
			if role, err := at.run("trellis kubectl get clusterrole system:kube-scheduler -o yaml"); err != nil || !strings.Contains(role, block) {
				t.Errorf("the role is %s, %v, without\n%s", role, err, block)
			}
		default:
			if kind == "sh docker" && exec.Command("docker", "info").Run() != nil {
				t.Logf("there is no docker for %s", block)
				continue
			}
			if out, err = at.runBlock(block); err != nil {
				t.Fatalf("%s: %v\n%s", block, err, out)
			}
		}
	}
}
