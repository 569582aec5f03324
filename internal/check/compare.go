package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Effect says what a change of a CRD does to objects that are stored already.
type Effect string

const (
	// Compatible changes leave every stored object as valid as it was.
	Compatible Effect = "Compatible"
	// Ratcheted changes may make stored objects invalid, which then can still be updated as long as the
	// invalid part does not change (KEP-4008).
	Ratcheted Effect = "Ratcheted"
	// Breaking changes may make stored objects impossible to update, or lose a part of them.
	Breaking Effect = "Breaking"
)

// change is one difference between two states of a CRD.
type change struct {
	Effect Effect
	Path   string // in the new state
	What   string
}

func (c change) severity() Severity {
	switch c.Effect {
	case Breaking:
		return Error
	case Ratcheted:
		return Warning
	}
	return Note
}

// comparison collects the changes between two schemas.
type comparison struct{ changes []change }

// compare lists what differs between two states of a CRD and matters to stored objects.
func compare(before, after object.Tree) []change {
	c := &comparison{}
	old, now := versionsOf(before), versionsOf(after)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		v, ok := now[name]
		if !ok {
			c.add(Breaking, "spec.versions", "version %s is gone: clients that use it fail", name)
			continue
		}
		if old[name].tree["served"] == true && v.tree["served"] != true {
			c.add(Breaking, v.path+".served", "version %s is no longer served: clients that use it fail", name)
		}
		c.schema(v.path+".schema.openAPIV3Schema", schemaOf(old[name].tree), schemaOf(v.tree))
	}
	return c.changes
}

type version struct {
	path string
	tree object.Tree
}

func versionsOf(crd object.Tree) map[string]version {
	all := map[string]version{}
	spec, _ := crd["spec"].(object.Tree)
	versions, _ := spec["versions"].([]any)
	for i, v := range versions {
		t, _ := v.(object.Tree)
		all[object.String(t, "name")] = version{fmt.Sprintf("spec.versions[%d]", i), t}
	}
	return all
}

func schemaOf(version object.Tree) object.Tree {
	s, _ := version["schema"].(object.Tree)
	root, _ := s["openAPIV3Schema"].(object.Tree)
	return root
}

func (c *comparison) add(e Effect, path, format string, args ...any) {
	c.changes = append(c.changes, change{e, path, fmt.Sprintf(format, args...)})
}

// schema compares two schemas of one value.
func (c *comparison) schema(path string, old, now object.Tree) {
	if old == nil || now == nil || object.Equal(old, now) {
		return
	}
	c.kind(path, old, now)
	c.bounds(path, old, now)
	c.texts(path, old, now)
	c.enum(path, old, now)
	c.required(path, old, now)
	c.rules(path, old, now)
	c.junctors(path, old, now)
	c.properties(path, old, now)
	c.below(path+".items", old["items"], now["items"])
}

func (c *comparison) below(path string, old, now any) {
	a, _ := old.(object.Tree)
	b, _ := now.(object.Tree)
	c.schema(path, a, b)
}

// kind compares what a value may be at all.
func (c *comparison) kind(path string, old, now object.Tree) {
	for _, key := range []string{"type", "x-kubernetes-int-or-string"} {
		if was, is := old[key], now[key]; !object.Equal(was, is) {
			e := Ratcheted
			eased := now["x-kubernetes-int-or-string"] == true && (old["type"] == "integer" || old["type"] == "string")
			if was == "integer" && is == "number" || eased {
				e = Compatible
			}
			c.add(e, path+"."+key, "%s was %s", key, shown(was))
		}
	}
	if old["nullable"] == true && now["nullable"] != true {
		c.add(Breaking, path+".nullable", "null is dropped or refused")
	}
	if old["x-kubernetes-preserve-unknown-fields"] == true && now["x-kubernetes-preserve-unknown-fields"] != true {
		c.add(Breaking, path, "unknown fields are no longer kept: they are dropped from stored objects")
	}
	for _, key := range []string{"x-kubernetes-list-type", "x-kubernetes-list-map-keys"} {
		if was, is := old[key], now[key]; !object.Equal(was, is) {
			e := Breaking // never ratcheted
			if is == "atomic" || is == nil {
				e = Compatible
			}
			c.add(e, path+"."+key, "%s was %s", key, shown(was))
		}
	}
	if now["x-kubernetes-embedded-resource"] == true && old["x-kubernetes-embedded-resource"] != true {
		c.add(Breaking, path+".x-kubernetes-embedded-resource", "a value needs apiVersion, kind and metadata now")
	}
	if old["default"] != nil && now["default"] == nil {
		c.add(Compatible, path, "objects without the field are shown without it; default was %s", shown(old["default"]))
	}
	if now["default"] != nil && !object.Equal(old["default"], now["default"]) {
		c.add(Compatible, path+".default", "objects without the field are shown with the default; it was %s", shown(old["default"]))
	}
}

// bounds compares numbers.
func (c *comparison) bounds(path string, old, now object.Tree) {
	for _, key := range []string{"maximum", "maxLength", "maxItems", "maxProperties", "minimum", "minLength", "minItems", "minProperties"} {
		upper := strings.HasPrefix(key, "max")
		was, hadBound := number(old[key])
		is, hasBound := number(now[key])
		switch {
		case hasBound && (!hadBound || upper && is < was || !upper && is > was):
			c.add(Ratcheted, path+"."+key, "tightened: %s was %s", key, shown(old[key]))
		case hadBound && (!hasBound || is != was):
			c.add(Compatible, path, "loosened: %s was %s", key, shown(old[key]))
		}
	}
	for _, key := range []string{"exclusiveMaximum", "exclusiveMinimum"} {
		if now[key] == true && old[key] != true {
			c.add(Ratcheted, path+"."+key, "tightened: %s is new", key)
		}
	}
}

// texts compares what only has to be the same.
func (c *comparison) texts(path string, old, now object.Tree) {
	for _, key := range []string{"pattern", "format", "multipleOf"} {
		switch was, is := old[key], now[key]; {
		case object.Equal(was, is):
		case is == nil:
			c.add(Compatible, path, "loosened: %s was %s", key, shown(was))
		default:
			c.add(Ratcheted, path+"."+key, "%s was %s", key, shown(was))
		}
	}
}

func (c *comparison) enum(path string, old, now object.Tree) {
	was, had := old["enum"].([]any)
	is, has := now["enum"].([]any)
	if !has {
		if had {
			c.add(Compatible, path, "loosened: any value is allowed")
		}
		return
	}
	if !had {
		c.add(Ratcheted, path+".enum", "enum is new")
		return
	}
	for _, v := range was {
		if !slices.ContainsFunc(is, func(n any) bool { return object.Equal(v, n) }) {
			c.add(Ratcheted, path+".enum", "%s is no longer allowed", shown(v))
		}
	}
}

func (c *comparison) required(path string, old, now object.Tree) {
	was := object.Strings(old, "required")
	properties, _ := now["properties"].(object.Tree)
	before, _ := old["properties"].(object.Tree)
	for _, name := range object.Strings(now, "required") {
		p, _ := properties[name].(object.Tree)
		b, _ := before[name].(object.Tree)
		switch {
		case slices.Contains(was, name):
			if b["default"] != nil && p["default"] == nil {
				c.add(Breaking, path+".required", "%s is required and has no default any more: objects without it cannot be updated", name)
			}
		case p["default"] != nil:
			c.add(Compatible, path+".required", "%s is newly required, and has a default", name)
		default:
			c.add(Breaking, path+".required", "%s is newly required: objects without it cannot be updated", name)
		}
	}
}

// rules compares x-kubernetes-validations. A rule with oldSelf is never ratcheted.
func (c *comparison) rules(path string, old, now object.Tree) {
	was := map[string]bool{}
	for _, r := range list(old, "x-kubernetes-validations") {
		was[object.String(r, "rule")] = true
	}
	for i, r := range list(now, "x-kubernetes-validations") {
		rule := object.String(r, "rule")
		at := fmt.Sprintf("%s.x-kubernetes-validations[%d].rule", path, i)
		switch {
		case was[rule]:
		case strings.Contains(rule, "oldSelf"):
			c.add(Breaking, at, "new transition rule: it is never ratcheted")
		default:
			c.add(Ratcheted, at, "new rule")
		}
	}
}

func list(t object.Tree, key string) (all []object.Tree) {
	values, _ := t[key].([]any)
	for _, v := range values {
		item, _ := v.(object.Tree)
		all = append(all, item)
	}
	return all
}

// junctors are never ratcheted, nor what is in them.
func (c *comparison) junctors(path string, old, now object.Tree) {
	for _, key := range []string{"allOf", "anyOf", "oneOf", "not"} {
		was, is := old[key], now[key]
		switch {
		case object.Equal(was, is):
		case is == nil:
			c.add(Compatible, path, "loosened: %s is gone", key)
		default:
			c.add(Breaking, path+"."+key, "%s has changed: it is never ratcheted", key)
		}
	}
}

// properties compares the fields of an object.
func (c *comparison) properties(path string, old, now object.Tree) {
	was, _ := old["properties"].(object.Tree)
	is, _ := now["properties"].(object.Tree)
	keeps := now["x-kubernetes-preserve-unknown-fields"] == true || now["additionalProperties"] != nil
	for _, name := range slices.Sorted(maps.Keys(was)) {
		at := path + ".properties[" + name + "]"
		if _, ok := is[name]; !ok && !keeps {
			c.add(Breaking, path+".properties", "%s is gone: it is dropped from stored objects", name)
			continue
		}
		if _, ok := is[name]; !ok {
			c.below(path+".additionalProperties", was[name], now["additionalProperties"])
			continue
		}
		c.below(at, was[name], is[name])
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, ok := was[name]; !ok && old["x-kubernetes-preserve-unknown-fields"] == true {
			c.add(Ratcheted, path+".properties["+name+"]", "%s has a schema now: objects may have anything there", name)
		}
	}
	switch a, b := old["additionalProperties"], now["additionalProperties"]; {
	case a != nil && b == nil && !keeps:
		c.add(Breaking, path, "additionalProperties is gone: the fields that it allowed are dropped from stored objects")
	default:
		c.below(path+".additionalProperties", a, b)
	}
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func shown(v any) string {
	if v == nil {
		return "not set"
	}
	return string(object.AppendJSON(nil, v))
}
