package builtin

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// crdWarnings tells of formats that nothing checks and of sets that nothing can merge, unless the
// CRD had them before.
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
	for _, v := range list(crd, "spec", "versions") {
		version, _ := v.(object.Tree)
		eachSchema(tree(version, "schema", "openAPIV3Schema"), inOrder, func(s object.Tree) {
			if format := unknownFormat(s); format != "" {
				add(&formats, fmt.Sprintf("unrecognized format %q", format))
			}
			if typ := setOf(s); typ != "" {
				add(&sets, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", typ))
			}
		})
	}
	slices.Sort(sets)
	return append(formats, sets...)
}

// hasWarnings looks whether there is anything to warn of, in no order: mostly there is not.
func hasWarnings(crd object.Tree) (found bool) {
	for _, v := range list(crd, "spec", "versions") {
		version, _ := v.(object.Tree)
		eachSchema(tree(version, "schema", "openAPIV3Schema"), maps.Keys, func(s object.Tree) {
			found = found || unknownFormat(s) != "" || setOf(s) != ""
		})
	}
	return found
}

// unknownFormat is the format of s if nothing checks it.
func unknownFormat(s object.Tree) string {
	if format := text(s, "format"); format != "" && !isKnownFormat(text(s, "type"), format) {
		return format
	}
	return ""
}

// setOf is the type of the items of a set that cannot be merged.
func setOf(s object.Tree) string {
	if text(s, "x-kubernetes-list-type") != "set" {
		return ""
	}
	if typ := text(s, "items", "type"); typ == "object" || typ == "array" {
		return typ
	}
	return ""
}

func inOrder(t object.Tree) iter.Seq[string] { return slices.Values(slices.Sorted(maps.Keys(t))) }

// eachSchema calls f with s and every schema in it; those below names in the order that names gives.
func eachSchema(s object.Tree, names func(object.Tree) iter.Seq[string], f func(object.Tree)) {
	if s == nil {
		return
	}
	f(s)
	for _, key := range []string{"items", "allOf", "anyOf", "oneOf", "not", "additionalProperties", "additionalItems"} {
		switch below := s[key].(type) {
		case object.Tree:
			eachSchema(below, names, f)
		case []any:
			for _, item := range below {
				t, _ := item.(object.Tree)
				eachSchema(t, names, f)
			}
		}
	}
	for _, key := range []string{"properties", "patternProperties", "definitions", "dependencies"} {
		below := tree(s, key)
		for name := range names(below) {
			t, _ := below[name].(object.Tree)
			eachSchema(t, names, f)
		}
	}
}

// isKnownFormat is true of the formats that the server checks for values of a type.
func isKnownFormat(typ, format string) bool {
	switch typ {
	case "", "string":
		switch strings.ReplaceAll(format, "-", "") {
		case "bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3", "uuid4", "uuid5",
			"isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password", "date", "duration",
			"datetime", "k8sshortname", "k8slongname":
			return true
		}
	case "integer":
		return format == "int32" || format == "int64"
	case "number":
		return format == "float" || format == "double"
	}
	return false
}
