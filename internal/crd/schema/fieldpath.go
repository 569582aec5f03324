package schema

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ErrNoField is the error for a name in a path if the schema has no such field.
var ErrNoField = errors.New("does not refer to a valid field")

var errPathEnded = errors.New("unexpected end of JSON path")

// WalkFieldPath parses a JSON path of field names. Such paths are fieldPath in x-kubernetes-validations and jsonPath
// in selectable fields. If brackets is true, names may also be in brackets and single quotes. WalkFieldPath calls the
// function step with each name in order. It stops at the first error, which is a syntax error or comes from step.
func WalkFieldPath(path string, brackets bool, step func(name string) error) error {
	for path != "" {
		name, rest, err := "", "", error(nil)
		switch tok, after := token(path); tok {
		case ".":
			if after == "" {
				return errPathEnded
			}
			name, rest = token(after)
		case "[":
			if !brackets {
				return errors.New("array notation is not allowed")
			}
			name, rest, err = bracketed(after)
		default:
			return fmt.Errorf("expected [ or . but got: %s", tok)
		}
		if err != nil {
			return err
		}
		if err := step(name); err != nil {
			return err
		}
		if path[0] != '[' {
			path = rest
			continue
		}
		tok, after := token(rest)
		switch tok {
		case "]":
		case "":
			return errPathEnded
		default:
			return fmt.Errorf("expected ] but got %s", tok)
		}
		path = after
	}
	return nil
}

// NormalizedFieldPath returns a path relative to n in the form in which errors contain it. It returns "" if the path
// does not exist in the schema.
func NormalizedFieldPath(path string, n *Node) string {
	var out *field.Path
	err := WalkFieldPath(path, true, func(name string) error {
		child, ok := n.Properties[name]
		switch {
		case ok:
			out, n = out.Child(name), child
		case len(n.Properties) == 0 && n.Additional != nil && n.Additional.Schema != nil:
			out, n = out.Key(name), n.Additional.Schema
		default:
			return ErrNoField
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return out.String()
}

// token splits the first token off s: a delimiter, a name in single quotes, or a plain name.
func token(s string) (tok, rest string) {
	if s == "" {
		return "", ""
	}
	if s[0] == '\'' {
		for i := 1; i < len(s); i++ {
			if s[i] == '\'' && s[i-1] != '\\' {
				return s[:i+1], s[i+1:]
			}
		}
		return s, ""
	}
	switch i := strings.IndexAny(s, ".[]"); i {
	case -1:
		return s, ""
	case 0:
		return s[:1], s[1:]
	default:
		return s[:i], s[i:]
	}
}

// bracketed parses the name after an opening bracket.
func bracketed(s string) (name, rest string, err error) {
	tok, rest := token(s)
	switch {
	case tok == "":
		return "", "", errPathEnded
	case len(tok) < 2 || tok[0] != '\'' || tok[len(tok)-1] != '\'':
		return "", "", fmt.Errorf("expected single quoted string but got %s", tok)
	}
	name, err = unescape(tok[1 : len(tok)-1])
	if err != nil {
		err = fmt.Errorf("invalid string literal: %w", err)
	}
	return name, rest, err
}

func unescape(s string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		at := strings.IndexByte(`abfnrtv'\`, s[i])
		if at < 0 {
			return "", fmt.Errorf("invalid escape char %s", s[i-1:i+1])
		}
		out.WriteByte("\a\b\f\n\r\t\v'\\"[at])
	}
	return out.String(), nil
}
