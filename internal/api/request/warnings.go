package request

import (
	"strings"
	"unicode/utf8"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Limits of the Warning headers. The values are upstream's.
const (
	maxWarningRunes      = 4 * 1024 // of all warnings
	shortenedWarningRune = 256      // maximum for each warning after the total exceeds maxWarningRunes
)

// warnings are the Warning headers of a response (RFC 7234, section 5.5).
type warnings struct {
	texts      []string
	runes      int32 // small, so that a Request has no unused memory
	shortening bool
}

// yamlProblems is the prefix of a YAML parser error with one line for each problem.
const yamlProblems = "yaml: unmarshal errors:\n"

// Warn adds a Warning header. It ignores repeated texts.
func (q *Request) Warn(text string) {
	if lines, ok := strings.CutPrefix(text, yamlProblems); ok {
		for line := range strings.SplitSeq(lines, "\n") {
			q.Warn(strings.TrimSpace(line))
		}
		return
	}
	w := &q.warnings
	if text == "" || w.shortening && w.runes >= maxWarningRunes {
		return
	}
	for _, t := range w.texts {
		if t == text {
			return
		}
	}
	w.texts = append(w.texts, text)
	if w.shortening || int(w.runes)+utf8.RuneCountInString(text) <= maxWarningRunes {
		q.addWarning(text)
		return
	}
	w.shortening, w.runes = true, 0
	q.W.Header().Del("Warning")
	for _, t := range w.texts {
		q.addWarning(t)
	}
}

func (q *Request) addWarning(text string) {
	w := &q.warnings
	n := utf8.RuneCountInString(text)
	if w.shortening && n > shortenedWarningRune {
		text, n = string([]rune(text)[:shortenedWarningRune]), shortenedWarningRune
	}
	header, err := utilnet.NewWarningHeader(299, "-", text)
	if err != nil {
		return // the text is not printable and cannot be in a header
	}
	w.runes += int32(n)
	q.W.Header().Add("Warning", header)
}
