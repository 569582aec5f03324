package lint_test

import (
	"go/ast"
	"go/token"
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxLine  = 120 // characters
	tabWidth = 4
)

// width returns the number of characters of a line, in which a tab advances to the next multiple of tabWidth.
func width(line string) int {
	n := 0
	for _, r := range line {
		if r == '\t' {
			n += tabWidth - n%tabWidth
		} else {
			n++
		}
	}
	return n
}

// TestLinesOfGo checks that lines of Go have at most 120 characters. Tables and raw strings of tests may have
// longer lines.
func TestLinesOfGo(t *testing.T) {
	for _, s := range sources(t) {
		if ast.IsGenerated(s.ast) {
			continue
		}
		table := map[int]bool{}
		if s.test {
			table = linesOfTables(s)
		}
		n := 0
		for line := range strings.Lines(s.text) {
			n++
			if w := width(strings.TrimRight(line, "\n")); w > maxLine && !table[n] {
				t.Errorf("%s:%d: %d characters, want at most %d", s.path, n, w, maxLine)
			}
		}
	}
}

// linesOfTables returns the lines of a test that belong to a list, a map or a raw string.
func linesOfTables(s *source) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			switch n.Type.(type) {
			case *ast.ArrayType, *ast.MapType:
			default:
				return true
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING || !strings.HasPrefix(n.Value, "`") {
				return true
			}
		default:
			return true
		}
		for l := s.line(n.Pos()); l <= s.line(n.End()); l++ {
			lines[l] = true
		}
		return true
	})
	return lines
}

// TestLinesOfPages checks that lines of prose have at most 120 characters. Tables, code and lines with one long link
// may be longer.
func TestLinesOfPages(t *testing.T) {
	files(t, func(file string, data []byte) {
		if path.Ext(file) != ".md" || generatedPage(file) {
			return
		}
		for _, x := range textOfMarkdown(file, string(data)) {
			line := strings.TrimRight(x.text, "\n")
			if strings.HasPrefix(strings.TrimSpace(line), "|") || strings.HasPrefix(line, "    ") {
				continue
			}
			if n := utf8.RuneCountInString(link.ReplaceAllString(line, "]")); n > maxLine {
				t.Errorf("%s:%d: %d characters, want at most %d", file, x.line, n, maxLine)
			}
		}
	})
}
