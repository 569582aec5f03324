package crd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// crdWarnings returns warnings about formats that are not validated and sets that cannot be merged. It omits the
// warnings that the old CRD already has.
func crdWarnings(obj, old object.Tree) []string {
	if old != nil && object.Equal(obj["spec"], old["spec"]) {
		return nil
	}
	found, before := schemaWarnings(obj), schemaWarnings(old)
	return slices.DeleteFunc(found, func(w string) bool { return slices.Contains(before, w) })
}

func schemaWarnings(crd object.Tree) []string {
	if crd == nil || !hasWarnings(crd) {
		return nil
	}
	var formats, sets []string
	add := func(to *[]string, text string) {
		if !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	for _, v := range object.ListAt(crd, "spec", "versions") {
		version, _ := v.(object.Tree)
		eachSchema(object.TreeAt(version, "schema", "openAPIV3Schema"), func(s object.Tree) {
			if format := unknownFormat(s); format != "" {
				add(&formats, fmt.Sprintf("unrecognized format %q", format))
			}
			if typ := unmergeableSetItems(s); typ != "" {
				add(&sets, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by "+
					"server-side apply or CEL validation rules", typ))
			}
		})
	}
	slices.Sort(sets)
	return append(formats, sets...)
}

// hasWarnings reports whether a CRD has any warnings. It is faster than schemaWarnings, because it does not sort, and
// most CRDs have none.
func hasWarnings(crd object.Tree) bool {
	return slices.ContainsFunc(object.ListAt(crd, "spec", "versions"), func(v any) bool {
		version, _ := v.(object.Tree)
		return isWarnable(object.TreeAt(version, "schema", "openAPIV3Schema"))
	})
}

// isWarnable reports whether the schema v, or a schema below it, has a warning. It visits the same schemas as
// eachSchema.
func isWarnable(v any) bool {
	s, _ := v.(object.Tree)
	for key, below := range s {
		found := false
		switch key {
		case "format":
			found = unknownFormat(s) != ""
		case "x-kubernetes-list-type":
			found = unmergeableSetItems(s) != ""
		case "items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "additionalItems":
			list, _ := below.([]any)
			found = isWarnable(below) || slices.ContainsFunc(list, isWarnable)
		case "properties", "patternProperties", "definitions", "dependencies":
			named, _ := below.(object.Tree)
			for _, schema := range named {
				if found = found || isWarnable(schema); found {
					break
				}
			}
		}
		if found {
			return true
		}
	}
	return false
}

// unknownFormat returns the format of s if the server does not validate it, and "" otherwise.
func unknownFormat(s object.Tree) string {
	if format := object.String(s, "format"); format != "" && !isKnownFormat(object.String(s, "type"), format) {
		return format
	}
	return ""
}

// unmergeableSetItems returns the type of the items if s is a set of objects or lists, which cannot be merged. It
// returns "" otherwise.
func unmergeableSetItems(s object.Tree) string {
	if object.String(s, "x-kubernetes-list-type") != "set" {
		return ""
	}
	if typ := object.StringAt(s, "items", "type"); typ == "object" || typ == "array" {
		return typ
	}
	return ""
}

// eachSchema calls f with s and every schema in it.
func eachSchema(s object.Tree, f func(object.Tree)) {
	if s == nil {
		return
	}
	f(s)
	for _, key := range []string{"items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "additionalItems"} {
		switch below := s[key].(type) {
		case object.Tree:
			eachSchema(below, f)
		case []any:
			for _, item := range below {
				t, _ := item.(object.Tree)
				eachSchema(t, f)
			}
		}
	}
	for _, key := range []string{"properties", "patternProperties", "definitions", "dependencies"} {
		below := object.TreeAt(s, key)
		for _, name := range slices.Sorted(maps.Keys(below)) {
			t, _ := below[name].(object.Tree)
			eachSchema(t, f)
		}
	}
}

// isKnownFormat reports whether the server validates a format for values of a type.
func isKnownFormat(typ, format string) bool {
	switch typ {
	case "", "string":
		switch strings.ReplaceAll(format, "-", "") {
		case "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3",
			"uuid4", "uuid5", "isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte",
			"password", "date", "duration", "datetime", "k8sshortname", "k8slongname":
			return true
		}
	case "integer":
		return format == "int32" || format == "int64"
	case "number":
		return format == "float" || format == "double"
	}
	return false
}
