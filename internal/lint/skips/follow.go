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

// module is the path of this module and the prefix of the paths of nested modules.
const module = "github.com/trellis-k8s/trellis/"

// event is one line of "go test -json".
type event struct {
	Action, Package, Test, Output string
}

// skip is a test that was skipped.
type skip struct {
	folder string // of the package, relative to the root of the repository
	test   string // name, with its subtest
	output string
}

// follower prints events. It holds back the output of a test until the test has failed.
type follower struct {
	out     io.Writer
	held    map[string]*strings.Builder // output by package and test; subtests have separate entries
	skipped []skip
}

// follow prints the events from in as "go test" does, and returns the skipped tests.
func follow(in io.Reader, out io.Writer) ([]skip, error) {
	f := follower{out: out, held: map[string]*strings.Builder{}}
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

// take prints or holds back the output of e. If a package fails, take prints all output that it holds of the
// package. After a panic, no event reports the end of the test.
func (f *follower) take(e *event) {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		f.output(e, name)
	case "skip":
		if e.Test != "" {
			f.skipped = append(f.skipped, skip{strings.TrimPrefix(e.Package, module), e.Test, fmt.Sprint(f.held[name])})
		}
		delete(f.held, name)
	case "pass":
		delete(f.held, name)
	case "fail":
		if e.Test != "" {
			f.print(name)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(f.held)) {
			if strings.HasPrefix(name, e.Package+" ") {
				f.print(name)
			}
		}
	}
}

// progress matches the lines that "go test" prints only with -v.
var progress = regexp.MustCompile(`^(=== |\s*--- PASS: )`)

func (f *follower) output(e *event, name string) {
	switch {
	case e.Test == "":
		if e.Output != "PASS\n" {
			fmt.Fprint(f.out, e.Output)
		}
	case !progress.MatchString(e.Output):
		if f.held[name] == nil {
			f.held[name] = &strings.Builder{}
		}
		f.held[name].WriteString(e.Output)
	}
}

func (f *follower) print(name string) {
	if b := f.held[name]; b != nil {
		fmt.Fprint(f.out, b.String())
		delete(f.held, name)
	}
}
