package conformance_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// normalize replaces the values of a response that depend on the server or the time.
func normalize(a response) response {
	a.body = normalizeValue("", a.body)
	warnings := make([]string, len(a.warnings))
	for i, w := range a.warnings {
		warnings[i] = normalizeText(w)
	}
	if slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "unrecognized format") }) {
		slices.Sort(warnings) // kube-apiserver returns the warnings of a CRD's schema in random order
	}
	a.warnings = warnings
	return a
}

// sortCauses sorts the causes of a Status, because kube-apiserver returns the causes of a custom object in random
// order.
func sortCauses(a response) {
	status, causes := a.body, nested[[]any](a.body, "details", "causes")
	if len(causes) < 2 {
		return
	}
	slices.SortStableFunc(causes, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	message, _, _ := strings.Cut(nested[string](status, "message"), " is invalid: [") // the rest repeats the causes
	status.(map[string]any)["message"] = message
}

// normalizeValue normalizes a decoded value in place and returns it. key is the name of its field, or of the list that
// contains it.
func normalizeValue(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range maps.Clone(v) { // managedFields contain the UIDs of owners as keys
			if name := uid.ReplaceAllString(k, "(uid)"); name != k {
				v[name] = v[k]
				delete(v, k)
			}
		}
		for k := range v {
			if v[k] = normalizeValue(k, v[k]); k == "extra" &&
				nested[any](v[k], "authentication.kubernetes.io/credential-id") != nil {
				delete(v, k) // only the client of Trellis has a certificate
			}
		}
		if prefix := nested[string](v, "generateName"); prefix != "" &&
			strings.HasPrefix(nested[string](v, "name"), prefix) {
			v["name"] = prefix + "(random)"
		}
	case []any:
		for i := range v {
			v[i] = normalizeValue(key, v[i])
		}
		switch key {
		case "managedFields": // the servers sort them by a time in seconds
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(manager(a), manager(b)) })
		case "conditions": // several controllers write the conditions of a CRD, in random order
			if slices.ContainsFunc(v, func(c any) bool { return nested[string](c, "type") == "Established" }) {
				slices.SortFunc(v, func(a, b any) int {
					return strings.Compare(nested[string](a, "type"), nested[string](b, "type"))
				})
			}
		case "resourceRules", "nonResourceRules": // kube-apiserver reads bindings in random order for a review
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		case "resources": // kube-apiserver reads CRDs in random order
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(nameOf(a), nameOf(b)) })
		}
	case json.Number:
		if key == "nodePort" || key == "healthCheckNodePort" {
			return "(port)"
		}
	case string:
		switch {
		case v == "":
		case key == "uid", key == "resourceVersion", key == "continue":
			return "(" + key + ")"
		case key == "cells" && age.MatchString(v):
			return "(age)"
		}
		return normalizeText(v)
	}
	return v
}

// nameOf returns the name of a resource in aggregated or unaggregated discovery.
func nameOf(item any) string {
	return nested[string](item, "name") + nested[string](item, "resource")
}

// manager returns the sort key of an entry of managedFields.
func manager(entry any) string {
	return fmt.Sprint(nested[any](entry, "operation"), nested[any](entry, "manager"), nested[any](entry, "subresource"))
}

var (
	age       = regexp.MustCompile(`^([0-9]+[smhd])+( ago)?$|^<invalid>$`)
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	uid       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	host      = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d{4,}`)
	address   = regexp.MustCompile(`10\.0\.\d+\.\d+|fd00:10::[0-9a-f:]*`)
	revision  = regexp.MustCompile(`(ResourceVersion in [a-z ]*: |resource version: |current: |in record \(|"resourceVersion\\?":\\?")\d+`)
	hash      = regexp.MustCompile(`\?hash=[0-9A-F]+`)
	ports     = regexp.MustCompile(`\b(\d+):3[0-2]\d{3}/TCP`)
	random    = regexp.MustCompile(`(A_|kube-api-access-)[a-z0-9]{5}\b`)
)

// normalizeText replaces the variable parts of a text, such as UIDs and recent times.
func normalizeText(s string) string {
	if !strings.ContainsAny(s, "0123456789_-") {
		return s
	}
	s = timestamp.ReplaceAllStringFunc(s, func(m string) string {
		if at, err := time.Parse(time.RFC3339, m); err == nil && time.Since(at).Abs() < time.Hour {
			return "(now)"
		}
		return m
	})
	s = uid.ReplaceAllString(s, "(uid)")
	s = host.ReplaceAllString(s, "(host)")
	s = hash.ReplaceAllString(s, "?hash=")
	s = ports.ReplaceAllString(s, "$1:(port)/TCP")
	s = random.ReplaceAllString(s, "$1(random)")
	s = address.ReplaceAllString(s, "(address)")
	return revision.ReplaceAllString(s, "$1(rv)")
}

// difference is a field in which two responses differ.
type difference struct {
	path      string
	got, want any
}

func (d difference) String() string {
	return fmt.Sprintf("  %s:\n    got  %s\n    want %s", d.path, short(d.got), short(d.want))
}

func short(v any) string {
	text, _ := json.Marshal(v)
	if v == missing {
		text = []byte("(missing)")
	}
	return fmt.Sprintf("%.700s", text)
}

// missing stands for a field or an item that one of the compared values lacks.
var missing any = struct{ missing bool }{}

// compare returns the differences of two responses.
func compare(got, want response) (all []difference) {
	note := func(path string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			all = append(all, difference{path, a, b})
		}
	}
	note("code", got.code, want.code)
	note("contentType", got.contentType, want.contentType)
	note("warnings", got.warnings, want.warnings)
	return append(all, compareValues("body", got.body, want.body)...)
}

// compareValues returns the differences of two decoded values at path.
func compareValues(path string, a, b any) (all []difference) {
	if reflect.DeepEqual(a, b) {
		return nil
	}
	if x, y, ok := both[map[string]any](a, b); ok {
		names := slices.Concat(slices.Collect(maps.Keys(x)), slices.Collect(maps.Keys(y)))
		slices.Sort(names)
		for _, k := range slices.Compact(names) {
			all = append(all, compareValues(path+"."+k, memberOrMissing(x, k), memberOrMissing(y, k))...)
		}
		return all
	}
	if x, y, ok := both[[]any](a, b); ok && len(x) == len(y) {
		for i := range x {
			all = append(all, compareValues(fmt.Sprintf("%s[%d]", path, i), x[i], y[i])...)
		}
		return all
	}
	return []difference{{path, a, b}}
}

// both converts a and b to the type T. ok reports whether both have this type.
func both[T any](a, b any) (x, y T, ok bool) {
	x, isX := a.(T)
	y, isY := b.(T)
	return x, y, isX && isY
}

// memberOrMissing returns m[k], or missing.
func memberOrMissing(m map[string]any, k string) any {
	if v, ok := m[k]; ok {
		return v
	}
	return missing
}
