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

// normal is an answer without what depends on the server and the moment.
func normal(a answer) answer {
	a.body = normalValue("", a.body)
	warnings := make([]string, len(a.warnings))
	for i, w := range a.warnings {
		warnings[i] = normalText(w)
	}
	if slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "unrecognized format") }) {
		slices.Sort(warnings) // those of a CRD's schema come in no fixed order from kube-apiserver
	}
	a.warnings = warnings
	return a
}

// sortCauses: those of a custom object's fields come in no fixed order from kube-apiserver.
func sortCauses(a answer) {
	status, causes := a.body, nested[[]any](a.body, "details", "causes")
	if len(causes) < 2 {
		return
	}
	slices.SortStableFunc(causes, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	message, _, _ := strings.Cut(nested[string](status, "message"), " is invalid: [") // which says the same as the causes
	status.(map[string]any)["message"] = message
}

func normalValue(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range maps.Clone(v) { // of an owner in managedFields
			if name := uid.ReplaceAllString(k, "(uid)"); name != k {
				v[name] = v[k]
				delete(v, k)
			}
		}
		for k := range v {
			if v[k] = normalValue(k, v[k]); k == "extra" && nested[any](v[k], "authentication.kubernetes.io/credential-id") != nil {
				delete(v, k) // only here the client has a certificate
			}
		}
		if prefix := nested[string](v, "generateName"); prefix != "" && strings.HasPrefix(nested[string](v, "name"), prefix) {
			v["name"] = prefix + "(random)"
		}
	case []any:
		for i := range v {
			v[i] = normalValue(key, v[i])
		}
		switch key {
		case "managedFields": // their order is one of seconds
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(manager(a), manager(b)) })
		case "conditions": // of CRDs, which several loops write
			if slices.ContainsFunc(v, func(c any) bool { return nested[string](c, "type") == "Established" }) {
				slices.SortFunc(v, func(a, b any) int { return strings.Compare(nested[string](a, "type"), nested[string](b, "type")) })
			}
		case "resourceRules", "nonResourceRules": // of a review, from bindings that kube-apiserver keeps in no order
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		case "resources": // kube-apiserver keeps CRDs in no order
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
		return normalText(v)
	}
	return v
}

// nameOf is what a resource is called in either form of discovery.
func nameOf(item any) string {
	return nested[string](item, "name") + nested[string](item, "resource")
}

func manager(entry any) string {
	return fmt.Sprint(nested[any](entry, "operation"), nested[any](entry, "manager"), nested[any](entry, "subresource"))
}

var (
	age      = regexp.MustCompile(`^([0-9]+[smhd])+( ago)?$|^<invalid>$`)
	moment   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	uid      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	host     = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d{4,}`)
	address  = regexp.MustCompile(`10\.0\.\d+\.\d+|fd00:10::[0-9a-f:]*`)
	revision = regexp.MustCompile(`(ResourceVersion in [a-z ]*: |resource version: |current: |in record \(|"resourceVersion\\?":\\?")\d+`)
	hash     = regexp.MustCompile(`\?hash=[0-9A-F]+`)
	ports    = regexp.MustCompile(`\b(\d+):3[0-2]\d{3}/TCP`)
	random   = regexp.MustCompile(`(A_|kube-api-access-)[a-z0-9]{5}\b`)
)

func normalText(s string) string {
	if !strings.ContainsAny(s, "0123456789_-") {
		return s
	}
	s = moment.ReplaceAllStringFunc(s, func(m string) string {
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

// difference is one place where two answers differ.
type difference struct {
	path         string
	ours, theirs any
}

func (d difference) String() string {
	return fmt.Sprintf("  %s:\n    here     %s\n    upstream %s", d.path, short(d.ours), short(d.theirs))
}

func short(v any) string {
	text, _ := json.Marshal(v)
	if v == missing {
		text = []byte("nothing")
	}
	return fmt.Sprintf("%.700s", text)
}

// missing stands for a field or an item that is not there.
var missing any = struct{ missing bool }{}

// compare lists the places where a and b differ.
func compare(ours, theirs answer) (all []difference) {
	note := func(path string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			all = append(all, difference{path, a, b})
		}
	}
	note("code", ours.code, theirs.code)
	note("contentType", ours.contentType, theirs.contentType)
	note("warnings", ours.warnings, theirs.warnings)
	return append(all, compareValues("body", ours.body, theirs.body)...)
}

func compareValues(path string, a, b any) (all []difference) {
	if reflect.DeepEqual(a, b) {
		return nil
	}
	if x, y, ok := both[map[string]any](a, b); ok {
		names := slices.Concat(slices.Collect(maps.Keys(x)), slices.Collect(maps.Keys(y)))
		slices.Sort(names)
		for _, k := range slices.Compact(names) {
			all = append(all, compareValues(path+"."+k, or(x, k), or(y, k))...)
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

func both[T any](a, b any) (x, y T, ok bool) {
	x, isX := a.(T)
	y, isY := b.(T)
	return x, y, isX && isY
}

func or(m map[string]any, k string) any {
	if v, ok := m[k]; ok {
		return v
	}
	return missing
}
