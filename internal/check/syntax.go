package check

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// atLine matches an error of the YAML parser with a line number. Line 1 is the first line of the document.
var atLine = regexp.MustCompile(`(?m)^(?:yaml:)? *line (\d+): (.*)$`)

// syntax reports a syntax error.
func (c *checker) syntax(d *document, err error) {
	c.addParserErrors(d, "Syntax", strings.TrimPrefix(err.Error(), "yaml: "))
}

// addParserErrors adds a finding for each line in a parser's message.
func (c *checker) addParserErrors(d *document, reason, message string) {
	found := atLine.FindAllStringSubmatch(message, -1)
	for _, m := range found {
		line, _ := strconv.Atoi(m[1])
		if countsFromZero(m[2]) && line < d.size {
			line++
		}
		c.addAt(d, d.line+line, 1, Finding{Severity: Error, Reason: reason, Message: m[2]})
	}
	if len(found) == 0 {
		c.addAt(d, d.line+1, 1, Finding{Severity: Error, Reason: reason, Message: message})
	}
}

// countsFromZero reports whether the line number in an error of go.yaml.in/yaml/v3 counts from 0. This is the case
// for errors of its parser, while errors of its scanner count from 1.
func countsFromZero(problem string) bool {
	expected, ok := strings.CutPrefix(problem, "did not find expected ")
	return problem == "found undefined tag handle" || ok && slices.Contains([]string{"<document start>", "node content",
		"'-' indicator", "key", "',' or ']'", "',' or '}'"}, expected)
}
