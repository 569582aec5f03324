package check

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes r as text: one line for each finding, in the format of compiler errors, then expensive rules, then
// a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Findings {
		r.Findings[i].writeText(&b)
	}
	for i := range r.Rules {
		r.Rules[i].writeText(&b)
	}
	fmt.Fprintf(&b, "%d checked: %s, %s, %s\n", r.Checked, r.Total(Error), r.Total(Warning), r.Total(Note))
	_, err := io.WriteString(w, b.String())
	return err
}

func (f *Finding) writeText(b *strings.Builder) {
	fmt.Fprintf(b, "%s:%d:%d: %s: %s", f.File, f.Line, f.Column, f.Severity, f.Reason)
	for _, part := range []string{f.Object, f.Path, f.Message} {
		if part != "" {
			b.WriteString(": ")
			// Errors of the CEL compiler have several lines, with a caret below the position.
			b.WriteString(strings.ReplaceAll(part, "\n", "\n    "))
		}
	}
	b.WriteByte('\n')
}
