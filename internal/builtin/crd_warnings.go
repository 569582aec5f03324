package builtin

import (
	"fmt"
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
	var formats, sets []string
	add := func(to *[]string, text string) {
		if !slices.Contains(*to, text) {
			*to = append(*to, text)
		}
	}
	for _, v := range list(crd, "spec", "versions") {
		version, _ := v.(object.Tree)
		eachSchema(tree(version, "schema", "openAPIV3Schema"), func(s object.Tree) {
			if format := text(s, "format"); format != "" && !isKnownFormat(text(s, "type"), format) {
				add(&formats, fmt.Sprintf("unrecognized format %q", format))
			}
			if typ := text(s, "items", "type"); text(s, "x-kubernetes-list-type") == "set" && (typ == "object" || typ == "array") {
				add(&sets, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", typ))
			}
		})
	}
	slices.Sort(sets)
	return append(formats, sets...)
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
		below := tree(s, key)
		for _, name := range slices.Sorted(maps.Keys(below)) {
			t, _ := below[name].(object.Tree)
			eachSchema(t, f)
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
