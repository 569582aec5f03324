package crdvalidation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func selectableFields(fields []apiextensions.SelectableField, s *schema, parent *field.Path, o options, version string) (errs field.ErrorList) {
	path := parent.Child("selectableFields")
	if err := unsupportedIn(s); err != nil {
		return field.ErrorList{field.Invalid(parent.Child("schema.openAPIV3Schema"), "", err.Error())}
	}
	var seen []string
	for i, f := range fields {
		at := path.Index(i).Child("jsonPath")
		if f.JSONPath == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		found, err := resolve(f.JSONPath, s, false)
		if err != nil {
			errs = append(errs, field.Invalid(at, f.JSONPath, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		if found.names[0] == "metadata" {
			errs = append(errs, field.Invalid(at, f.JSONPath, "must not point to fields in metadata"))
		}
		if found.schema == nil || !slices.Contains([]string{"string", "boolean", "integer"}, found.schema.Type) {
			errs = append(errs, field.Invalid(at, f.JSONPath, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."))
		}
		if name := strings.Join(found.names, "."); slices.Contains(seen, name) {
			errs = append(errs, field.Duplicate(at, f.JSONPath))
		} else {
			seen = append(seen, name)
		}
	}
	if len(seen) > MaxSelectableFields && !o.manySelectable[version] {
		errs = append(errs, field.TooMany(path, len(seen), MaxSelectableFields))
	}
	return errs
}

// target is what a path leads to.
type target struct {
	names  []string
	schema *schema // nil: of any shape
}

var (
	errNoField   = errors.New("does not refer to a valid field")
	errPathEnded = errors.New("unexpected end of JSON path")
)

// resolve follows a JSON path of fields and, if brackets are allowed, names in brackets and
// single quotes, from s on.
func resolve(path string, s *schema, brackets bool) (target, error) {
	t := target{schema: s}
	for path != "" {
		name, rest, err := "", "", error(nil)
		switch tok, after := token(path); tok {
		case ".":
			if after == "" {
				return t, errPathEnded
			}
			name, rest = token(after)
		case "[":
			if !brackets {
				return t, errors.New("array notation is not allowed")
			}
			name, rest, err = bracketed(after)
		default:
			return t, fmt.Errorf("expected [ or . but got: %s", tok)
		}
		if err != nil {
			return t, err
		}
		if t, err = t.below(name); err != nil {
			return t, err
		}
		if path[0] != '[' {
			path = rest
			continue
		}
		tok, after := token(rest)
		switch tok {
		case "]":
		case "":
			return t, errPathEnded
		default:
			return t, fmt.Errorf("expected ] but got %s", tok)
		}
		path = after
	}
	return t, nil
}

func (t target) below(name string) (target, error) {
	next := target{names: append(slices.Clip(t.names), name)}
	switch {
	case t.schema != nil && len(t.schema.Properties) > 0:
		p, ok := t.schema.Properties[name]
		if !ok {
			return t, errNoField
		}
		next.schema = &p
	case t.schema != nil && t.schema.AdditionalProperties != nil:
		next.schema = t.schema.AdditionalProperties.Schema
	default:
		return t, errNoField
	}
	return next, nil
}

// token cuts off a delimiter, a name in single quotes or a name.
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

// bracketed reads the name behind an opening bracket.
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
