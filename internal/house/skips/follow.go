package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// module is the path of this module, and the beginning of those of nested ones.
const module = "github.com/trellis-k8s/trellis/"

// event is one line of "go test -json".
type event struct {
	Action, Package, Test, Output string
}

// skip is a test that was skipped.
type skip struct {
	folder string // of the package, below the root of the repository
	test   string // with its subtest
	output string
}

// follower prints events. It holds back the output of a test until the test has failed.
type follower struct {
	out     io.Writer
	held    map[string]map[string]*strings.Builder // by package and test without subtests
	own     map[string]*strings.Builder            // by package and test, of each subtest alone
	skipped []skip
}

// follow prints the events of in as "go test" does, and returns the skipped tests.
func follow(in io.Reader, out io.Writer) ([]skip, error) {
	f := follower{out: out, held: map[string]map[string]*strings.Builder{}, own: map[string]*strings.Builder{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			f.take(&e)
		} else {
			fmt.Fprint(out, line)
		}
		if err == io.EOF {
			return f.skipped, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the output of go test: %w", err)
		}
	}
}

// take prints or holds back what e has. The output of a package that fails is printed as a whole: a panic ends no test.
func (f *follower) take(e *event) {
	test, _, _ := strings.Cut(e.Test, "/")
	switch {
	case e.Output != "" && test == "":
		if e.Output != "PASS\n" {
			fmt.Fprint(f.out, e.Output)
		}
	case e.Output != "":
		f.hold(e, test)
	case e.Action == "skip" && test != "":
		folder := strings.TrimPrefix(e.Package, module)
		f.skipped = append(f.skipped, skip{folder, e.Test, fmt.Sprint(f.own[e.Package+" "+e.Test])})
	}
	if e.Action == "pass" || e.Action == "fail" || e.Action == "skip" {
		f.end(e, test)
	}
}

// end forgets the output of what has ended, after that of a failure is printed.
func (f *follower) end(e *event, test string) {
	delete(f.own, e.Package+" "+e.Test)
	switch {
	case e.Test == "" && e.Action == "fail":
		for _, name := range slices.Sorted(maps.Keys(f.held[e.Package])) {
			f.print(e.Package, name)
		}
	case e.Test == test && e.Action == "fail":
		f.print(e.Package, test)
	case e.Test == test:
		delete(f.held[e.Package], test)
	}
}

// progress are the lines that "go test" prints with -v alone.
var progress = regexp.MustCompile(`^(=== |\s*--- PASS: )`)

func (f *follower) hold(e *event, test string) {
	if progress.MatchString(e.Output) {
		return
	}
	if f.held[e.Package] == nil {
		f.held[e.Package] = map[string]*strings.Builder{}
	}
	for _, at := range []struct {
		in  map[string]*strings.Builder
		key string
	}{{f.held[e.Package], test}, {f.own, e.Package + " " + e.Test}} {
		if at.in[at.key] == nil {
			at.in[at.key] = &strings.Builder{}
		}
		at.in[at.key].WriteString(e.Output)
	}
}

func (f *follower) print(folder, test string) {
	if b := f.held[folder][test]; b != nil {
		fmt.Fprint(f.out, b.String())
		delete(f.held[folder], test)
	}
}
