package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// konnectivityBlock matches a code block of docs/reach.md. It contains commands on the control plane that must
// succeed, commands there that must fail, commands on the machine of the nodes, or a part of the output.
var konnectivityBlock = regexp.MustCompile("(?ms)^```(sh test|sh refused|sh nodes|text)\n(.*?)^```$")

// TestKonnectivityPage runs all commands of the section about Konnectivity in docs/reach.md, with the files of the
// documentation and the real kubectl. KON-002 KON-007 KON-011 KON-013 KON-014 KON-015 KON-016 KON-017 KON-018 KON-020
// KON-027 KON-035 KON-039 KON-046 KON-049 KON-052 KON-054
func TestKonnectivityPage(t *testing.T) {
	f := newTwoMachines(t, "192.0.2.10")
	files, err := filepath.Glob(filepath.Join(repository, "examples", "konnectivity", "*.yaml"))
	f.must(err)
	for _, file := range files {
		f.link(filepath.Base(file), file)
	}
	for _, name := range []string{"node-1", "node-2"} {
		f.Cleanup(func() { f.cleanUpMachine(f.nodes, name) })
	}
	f.Cleanup(func() { f.cleanUpMachine(f.control, "control-plane") })
	f.Cleanup(f.stopPrograms)
	f.clusterProgram()
	section := f.pageSection("reach.md", "The API server behind Konnectivity")
	blocks := konnectivityBlock.FindAllStringSubmatch(section, -1)
	if fences := strings.Count(section, "\n```"); len(blocks) < 20 || fences != 2*len(blocks)+2 { // 2 for the diagram
		t.Fatalf("the page has %d fences, but only %d known blocks", fences, len(blocks))
	}
	output := ""
	for _, b := range blocks {
		output = f.runKonnectivityBlock(b[1], b[2], output)
	}
}

// runKonnectivityBlock runs a block of commands and returns its output. If kind is "text", it instead checks that the
// output of the preceding commands contains the lines of the block. The parameter output is the output of these
// commands.
func (f *twoMachines) runKonnectivityBlock(kind, block, output string) string {
	f.Helper()
	if kind == "text" {
		for line := range strings.Lines(block) {
			if !strings.Contains(mask(output), strings.TrimSpace(mask(line))) {
				f.Errorf("the page shows\n%s, but the output is\n%s", line, output)
			}
		}
		return output
	}
	run := f.runBlock
	if kind == "sh nodes" {
		control := f.prefix
		f.prefix, run = enterCommand(f.nodes, f.dir), f.run
		defer func() { f.prefix = control }()
	}
	out, err := run(block)
	if (err != nil) != (kind == "sh refused") {
		f.Fatalf("%s: %v\n%s", block, err, out)
	}
	if f.Interface == nil { // this block may have started the API server
		if _, err := os.Stat(filepath.Join(f.dir, "serve.pid")); err == nil {
			f.loadKubeconfig()
		}
	}
	return out
}

// stopPrograms stops the programs that the page has started, and logs their output if the test has failed.
func (f *twoMachines) stopPrograms() {
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
