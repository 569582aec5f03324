package check

import (
	"regexp"
	"strconv"
	"strings"
)

// atLine finds what a YAML parser says of a line, counted from 1 in its document.
var atLine = regexp.MustCompile(`(?m)^(?:yaml:)? *line (\d+): (.*)$`)

// syntax reports a text that is no manifest.
func (c *checker) syntax(d *document, err error) {
	c.told(d, "Syntax", strings.TrimPrefix(err.Error(), "yaml: "))
}

// duplicates reports the keys that are there twice.
func (c *checker) duplicates(d *document, message string) {
	c.told(d, "Duplicate", message)
}

// told reports a parser's message, each line of the document that it speaks of for itself.
func (c *checker) told(d *document, reason, message string) {
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

// countsFromZero tells which problems go.yaml.in/yaml/v3 puts a line too high: those of its parser, not of its scanner.
func countsFromZero(problem string) bool {
	for _, of := range []string{"<document start>", "node content", "'-' indicator", "key", "',' or ']'", "',' or '}'"} {
		if problem == "did not find expected "+of {
			return true
		}
	}
	return problem == "found undefined tag handle"
}
