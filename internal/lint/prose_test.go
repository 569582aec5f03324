package lint_test

import (
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Limits of the prose test, in matches per 1,000 words.
const (
	maxProse        = 1.5 // of all text
	maxProseOfPart  = 4.0 // of one package or page
	freeMatches     = 3   // number of matches that any package or page may have
	minSpacesOfText = 3   // strings with fewer spaces are values
)

// habits match phrases that plain technical English avoids: verbs of speech for software, pronouns in place of a
// noun, and clauses in place of a noun. Each alternative is a separate string, so that this file passes its own
// test.
var habits = []*regexp.Regexp{
	phrases(`tell`, `tells`, `told`, `telling`, `says?`, `said`, `saying`, `ask`, `asks`, `asked`, `asking`, `hears?`,
		`heard`),
	phrases(`somebody`, `someone else`, `nobody`, `whoever`, `whom`, `whose turn`, `anybody else`),
	phrases(after("what", `it`, `there`, `they`, `the`, `a`, `an`, `has`, `have`, `is`, `are`, `was`, `were`, `goes`,
		`comes`,
		`lies`, `stands`, `waits`, `follows`, `becomes`, `needs`, `else`),
		after("who", `asks?`, `is`, `has`, `may`, `writes?`, `reads?`, `sends?`, `wants?`, `takes?`, `waits?`,
			`deletes?`, `makes?`),
		`(?:lets?|letting)`+` go`+` of`, `anew`),
}

// phrases returns a regular expression that matches each alternative as whole words, in any case.
func phrases(alternatives ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(alternatives, "|") + `)\b`)
}

// after returns a pattern that matches a word and one of the words that follow it.
func after(word string, next ...string) string { return word + ` (?:` + strings.Join(next, "|") + `)` }

var (
	word      = regexp.MustCompile(`[A-Za-z][A-Za-z'-]+`)
	backticks = regexp.MustCompile("`[^`\n]*`")
)

// text is one piece of prose.
type text struct {
	path string
	line int
	text string
}

// prose counts the words and the matches of a package or page.
type prose struct {
	words   int
	matches []string
}

func (p *prose) add(x text) {
	plain := backticks.ReplaceAllString(x.text, "")
	p.words += len(word.FindAllString(plain, -1))
	for _, habit := range habits {
		for _, m := range habit.FindAllString(plain, -1) {
			p.matches = append(p.matches, fmt.Sprintf("%s:%d: %q", x.path, x.line, m))
		}
	}
}

func (p *prose) density() float64 { return float64(len(p.matches)) * 1000 / float64(max(1, p.words)) }

// TestProse checks that comments, messages, help texts and pages are written in plain technical English. It reads the
// comments and strings of Go files, the comments of scripts and of Makefile, and Markdown outside code.
func TestProse(t *testing.T) {
	upstream := upstreamWords(t)
	parts := map[string]*prose{}
	add := func(part string, all []text) {
		if parts[part] == nil {
			parts[part] = &prose{}
		}
		for _, x := range all {
			if !upstream[x.text] {
				parts[part].add(x)
			}
		}
	}
	files(t, func(file string, data []byte) {
		switch {
		case generatedPage(file):
		case path.Ext(file) == ".go":
			if part := path.Dir(file); strings.HasSuffix(file, "_test.go") {
				add(part+" (tests)", textOfGo(t, file, data))
			} else {
				add(part, textOfGo(t, file, data))
			}
		case path.Ext(file) == ".md":
			add(file, textOfMarkdown(file, string(data)))
		case path.Ext(file) == ".txtar" || path.Ext(file) == ".sh" || path.Dir(file) == ".ci" ||
			path.Base(file) == "Makefile":
			add(path.Dir(file)+" (scripts)", textOfScript(file, string(data)))
		}
	})
	total := prose{}
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		p := parts[part]
		total.words += p.words
		total.matches = append(total.matches, p.matches...)
		if len(p.matches) > freeMatches && p.density() > maxProseOfPart {
			t.Errorf("%s has %.1f matches per 1,000 words, want at most %.1f:\n\t%s", part, p.density(), maxProseOfPart,
				strings.Join(p.matches, "\n\t"))
		}
	}
	if total.words < 50_000 {
		t.Errorf("found %d words, want at least 50,000", total.words)
	}
	if total.density() > maxProse {
		t.Errorf("all text has %.1f matches per 1,000 words, want at most %.1f", total.density(), maxProse)
	}
}

// generatedPage reports whether the test skips a file, because its text is generated or records past changes.
func generatedPage(file string) bool {
	return file == "docs/requirements.md" || file == "CHANGELOG.md" || strings.Contains(file, "testdata/") &&
		path.Ext(file) == ".go"
}

// upstreamWords returns the messages in testdata/upstream-words.txt. Each line is a message, a tab and its source.
func upstreamWords(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("testdata/upstream-words.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		message, origin, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || message == "" {
			continue
		}
		if strings.TrimSpace(origin) == "" {
			t.Errorf("testdata/upstream-words.txt: %q has no source", message)
		}
		all[message] = true
	}
	return all
}

// textOfGo returns the comments of a Go file, its strings that are sentences, and raw strings that are help texts.
func textOfGo(t *testing.T, file string, data []byte) (all []text) {
	t.Helper()
	fset := token.NewFileSet()
	f := fset.AddFile(file, -1, len(data))
	var s scanner.Scanner
	s.Init(f, data, nil, scanner.ScanComments)
	var before [2]string // the last two tokens
	help := false
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return all
		}
		switch {
		case tok == token.COMMENT:
			if !strings.HasPrefix(lit, "//go:") {
				all = append(all, text{file, f.Line(pos), strings.TrimLeft(lit, "/* ")})
			}
			continue
		case tok == token.STRING:
			help = help && before[1] == "+" || before[1] == ":" && helpField[before[0]]
			value, err := strconv.Unquote(lit)
			if err != nil {
				t.Errorf("%s:%d: %v", file, f.Line(pos), err)
			}
			if strings.Count(value, " ") >= minSpacesOfText && (help || lit[0] == '"') {
				all = append(all, text{file, f.Line(pos), value})
			}
		}
		before[0], before[1] = before[1], lit
		if lit == "" || tok.IsOperator() {
			before[1] = tok.String()
		}
	}
}

// helpField holds the fields of a command that have help texts.
var helpField = map[string]bool{"Long": true, "Short": true, "Example": true, "Usage": true}

// textOfMarkdown returns the lines of a page outside blocks of code.
func textOfMarkdown(file, page string) (all []text) {
	code, n := false, 0
	for line := range strings.Lines(page) {
		n++
		if strings.HasPrefix(line, "```") {
			code = !code
		} else if !code {
			all = append(all, text{file, n, line})
		}
	}
	return all
}

// textOfScript returns the comments of a script.
func textOfScript(file, script string) (all []text) {
	n := 0
	for line := range strings.Lines(script) {
		n++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "-- ") && strings.HasSuffix(line, " --") {
			return all // the files of a .txtar are data
		}
		if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "#!") {
			all = append(all, text{file, n, line})
		}
	}
	return all
}
