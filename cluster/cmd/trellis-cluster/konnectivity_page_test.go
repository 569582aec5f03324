package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// konnectivityBlock is commands on the control plane, that pass or not; commands on the machine of the nodes; or a part of what was printed.
var konnectivityBlock = regexp.MustCompile("(?ms)^```(sh test|sh refused|sh nodes|text)\n(.*?)^```$")

// TestPageOfKonnectivity types the chapter line by line, with the files of the documentation. KON-002 KON-007 KON-011 KON-013 KON-014 KON-015 KON-016
// KON-017 KON-018 KON-020 KON-027 KON-035 KON-039 KON-046 KON-049 KON-052 KON-054, by kubectl and the programs of their names.
func TestPageOfKonnectivity(t *testing.T) {
	f := newFar(t, "192.0.2.10")
	files, err := filepath.Glob(filepath.Join(repository, "examples", "konnectivity", "*.yaml"))
	f.must(err)
	for _, file := range files {
		f.has(filepath.Base(file), file)
	}
	for _, name := range []string{"node-1", "node-2"} {
		f.Cleanup(func() { f.leaves(f.nodes, name) })
	}
	f.Cleanup(func() { f.leaves(f.control, "control-plane") })
	f.Cleanup(f.ends)
	f.cluster()
	chapter := f.chapter("reach.md", "The API server behind Konnectivity")
	blocks := konnectivityBlock.FindAllStringSubmatch(chapter, -1)
	if fences := strings.Count(chapter, "\n```"); len(blocks) < 20 || fences != 2*len(blocks)+2 { // and the picture
		t.Fatalf("%d fences, %d blocks are understood", fences, len(blocks))
	}
	said := ""
	for _, b := range blocks {
		said = f.typesBlock(b[1], b[2], said)
	}
}

// typesBlock types one block, and returns what is printed. What was said before is what a text is a part of.
func (f *far) typesBlock(kind, block, said string) string {
	f.Helper()
	if kind == "text" {
		for line := range strings.Lines(block) {
			if !strings.Contains(mask(said), strings.TrimSpace(mask(line))) {
				f.Errorf("the page shows\n%s, but it is\n%s", line, said)
			}
		}
		return said
	}
	types := f.reads
	if kind == "sh nodes" {
		control := f.enter
		f.enter, types = enter(f.nodes, f.dir), f.types
		defer func() { f.enter = control }()
	}
	out, err := types(block)
	if (err != nil) != (kind == "sh refused") {
		f.Fatalf("%s: %v\n%s", block, err, out)
	}
	if f.Interface == nil { // the API server has begun, if it was to
		if _, err := os.Stat(filepath.Join(f.dir, "serve.pid")); err == nil {
			f.knows()
		}
	}
	return out
}

// ends ends what the page has started, and shows what that has said where a test has failed.
func (f *far) ends() {
	for _, name := range []string{"nodes", "control-plane", "serve"} {
		pid, err := os.ReadFile(filepath.Join(f.dir, name+".pid"))
		if err == nil {
			_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
		}
		if log, err := os.ReadFile(filepath.Join(f.dir, name+".log")); f.Failed() && err == nil {
			f.Logf("%s:\n%s", name, log)
		}
	}
}
