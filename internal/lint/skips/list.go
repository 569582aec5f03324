package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// allowed is one line of the list: "PACKAGE TEST | NEEDS | REASON".
type allowed struct {
	folder string
	test   string // name; "..." at its end includes all tests and subtests that begin with it
	needs  []string
	reason string
}

type list []allowed

// parse parses a list of allowed skips. Empty lines and lines that begin with # are comments.
func parse(text string) (list, error) {
	var all list
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, " | ")
		if len(columns) != 3 || strings.TrimSpace(columns[2]) == "" {
			return nil, fmt.Errorf("line %d: want PACKAGE TEST | NEEDS | REASON, got %q", n, line)
		}
		name, needs := strings.Fields(columns[0]), strings.Fields(columns[1])
		if len(name) != 2 || len(needs) == 0 {
			return nil, fmt.Errorf("line %d: want PACKAGE TEST | NEEDS | REASON, got %q", n, line)
		}
		all = append(all, allowed{name[0], name[1], needs, strings.TrimSpace(columns[2])})
	}
	return all, nil
}

// refuses returns the reason why the skip s is not allowed, or "" if it is allowed.
func (l list) refuses(s skip, r *requirements) string {
	why := ".ci/skips has no line for this test"
	for _, a := range l {
		if a.folder != s.folder || !a.covers(s.test) {
			continue
		}
		if r.missing(a.needs) {
			return ""
		}
		why = "this machine has everything that the test needs: " + strings.Join(a.needs, " ")
	}
	return why
}

func (a *allowed) covers(test string) bool {
	name, more := strings.CutSuffix(a.test, "...")
	if !more {
		return test == name
	}
	return name == "" || test == strings.TrimSuffix(name, "/") || strings.HasPrefix(test, name)
}

// requirements looks up programs, files and rights of this machine.
type requirements struct {
	root      string // root folder of the repository
	lookup    func(string) (string, bool)
	superuser bool
}

// missing reports whether this machine lacks one of the needs. A need is
//
//	root      rights of the superuser
//	$NAME     an environment variable
//	a/path    a file, relative to the root of the repository
//	/a/path   a file
//	name      a program
//	!word     a property that cannot be checked; it counts as missing
func (r *requirements) missing(needs []string) bool {
	for _, need := range needs {
		if !r.has(need) {
			return true
		}
	}
	return false
}

func (r *requirements) has(need string) bool {
	if name, ok := strings.CutPrefix(need, "$"); ok {
		value, _ := r.lookup(name)
		return value != ""
	}
	switch {
	case need == "root":
		return r.superuser
	case strings.HasPrefix(need, "!"):
		return false
	case filepath.IsAbs(need):
		return exists(need)
	case strings.Contains(need, "/"):
		return exists(filepath.Join(r.root, need))
	}
	_, err := exec.LookPath(need)
	return err == nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
