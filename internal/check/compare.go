package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Effect classifies how a change of a CRD affects stored objects and requests.
type Effect string

const (
	// Compatible changes make no stored object invalid.
	Compatible Effect = "Compatible"
	// Ratcheted changes can make stored objects invalid. Such objects can still be updated while the
	// invalid part is unchanged (KEP-4008).
	Ratcheted Effect = "Ratcheted"
	// Breaking changes can prevent updates of stored objects, drop parts of these objects, or make requests fail that
	// succeeded before.
	Breaking Effect = "Breaking"
)

// change is a difference between two states of a CRD.
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

// comparison collects the changes between two states.
type comparison struct{ changes []change }

func (c *comparison) add(e Effect, path, format string, args ...any) {
	c.changes = append(c.changes, change{e, path, fmt.Sprintf(format, args...)})
}

// schema compares the old and the new schema of one value.
func (c *comparison) schema(path string, old, now object.Tree) {
	if old == nil || now == nil || object.Equal(old, now) {
		return
	}
	c.types(path, old, now)
	c.bounds(path, old, now)
	c.otherKeywords(path, old, now)
	c.enum(path, old, now)
	c.lists(path, old, now)
	c.required(path, old, now)
	c.rules(path, old, now)
	c.valueValidations(path, old, now)
	c.properties(path, old, now)
	c.below(path+".items", old["items"], now["items"])
}

func (c *comparison) below(path string, old, now any) {
	a, _ := old.(object.Tree)
	b, _ := now.(object.Tree)
	c.schema(path, a, b)
}

// types compares the keywords that define the type of a value.
func (c *comparison) types(path string, old, now object.Tree) {
	for _, key := range []string{"type", "x-kubernetes-int-or-string"} {
		was, is := old[key], now[key]
		eased := now["x-kubernetes-int-or-string"] == true && (old["type"] == "integer" || old["type"] == "string")
		switch {
		case object.Equal(was, is):
		case was == "integer" && is == "number" || eased:
			c.add(Compatible, path+"."+key, "%s was %s", key, formatValue(was))
		case was == "number" && is == "integer":
			c.add(Ratcheted, path+"."+key, "%s was %s", key, formatValue(was))
		default: // such a change can also drop fields
			c.add(Breaking, path+"."+key, "%s was %s: server-side apply fails for objects with a value of the old type",
				key, formatValue(was))
		}
	}
	for _, f := range []struct{ key, lost string }{
		{"nullable", "null values are dropped or rejected"},
		{"x-kubernetes-preserve-unknown-fields",
			"unknown fields are no longer preserved: stored objects lose them"},
	} {
		switch was, is := old[f.key] == true, now[f.key] == true; {
		case was && !is:
			c.add(Breaking, path+"."+f.key, "%s", f.lost)
		case is && !was:
			c.add(Compatible, path+"."+f.key, "loosened: %s is new", f.key)
		}
	}
	switch was, is := old["x-kubernetes-embedded-resource"] == true, now["x-kubernetes-embedded-resource"] == true; {
	case is && !was:
		c.add(Breaking, path+".x-kubernetes-embedded-resource", "a value must now have apiVersion, kind and metadata")
	case was && !is && now["x-kubernetes-preserve-unknown-fields"] == true:
		c.add(Compatible, path, "loosened: x-kubernetes-embedded-resource is removed")
	case was && !is:
		c.add(Breaking, path, "apiVersion, kind and metadata are dropped unless they are properties of the schema")
	}
	if old["default"] != nil && now["default"] == nil {
		c.add(Compatible, path, "default was %s: objects without the field no longer get a default",
			formatValue(old["default"]))
	}
	if now["default"] != nil && !object.Equal(old["default"], now["default"]) {
		c.add(Compatible, path+".default", "default was %s: objects without the field get the new default",
			formatValue(old["default"]))
	}
}

// lists compares the keywords that define how server-side apply merges lists and maps. Duplicate items remain allowed
// in a stored object that already has duplicates.
func (c *comparison) lists(path string, old, now object.Tree) {
	for _, key := range []string{"x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"} {
		was, is := old[key], now[key]
		switch {
		case object.Equal(was, is):
		case is == nil || is == "atomic" || is == "granular":
			c.add(Compatible, path+"."+key, "%s was %s: server-side apply merges differently", key, formatValue(was))
		default:
			c.add(Ratcheted, path+"."+key, "%s was %s: duplicate items are rejected", key, formatValue(was))
		}
	}
}

// bounds compares numeric limits.
func (c *comparison) bounds(path string, old, now object.Tree) {
	for _, key := range []string{"maximum", "maxLength", "maxItems", "maxProperties", "minimum", "minLength",
		"minItems", "minProperties"} {
		upper := strings.HasPrefix(key, "max")
		was, hadBound := number(old[key])
		is, hasBound := number(now[key])
		switch {
		case hasBound && (!hadBound || upper && is < was || !upper && is > was):
			c.add(Ratcheted, path+"."+key, "tightened: %s was %s", key, formatValue(old[key]))
		case hadBound && (!hasBound || is != was):
			c.add(Compatible, path, "loosened: %s was %s", key, formatValue(old[key]))
		}
	}
	for _, key := range []string{"exclusiveMaximum", "exclusiveMinimum"} {
		switch was, is := old[key] == true, now[key] == true; {
		case is && !was:
			c.add(Ratcheted, path+"."+key, "tightened: %s is new", key)
		case was && !is:
			c.add(Compatible, path, "loosened: %s is removed", key)
		}
	}
}

// otherKeywords compares keywords whose values cannot be ordered by strictness.
func (c *comparison) otherKeywords(path string, old, now object.Tree) {
	for _, key := range []string{"pattern", "format", "multipleOf"} {
		switch was, is := old[key], now[key]; {
		case object.Equal(was, is):
		case is == nil:
			c.add(Compatible, path, "loosened: %s was %s", key, formatValue(was))
		default:
			c.add(Ratcheted, path+"."+key, "%s was %s", key, formatValue(was))
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
	for _, v := range is {
		if !slices.ContainsFunc(was, func(w any) bool { return object.Equal(v, w) }) {
			c.add(Compatible, path+".enum", "loosened: %s is allowed", formatValue(v))
		}
	}
	for _, v := range was {
		if !slices.ContainsFunc(is, func(n any) bool { return object.Equal(v, n) }) {
			c.add(Ratcheted, path+".enum", "%s is no longer allowed", formatValue(v))
		}
	}
}

func (c *comparison) required(path string, old, now object.Tree) {
	was := object.Strings(old, "required")
	before, properties := child(old, "properties"), child(now, "properties")
	for _, name := range was {
		if !slices.Contains(object.Strings(now, "required"), name) {
			c.add(Compatible, path, "loosened: %s is no longer required", name)
		}
	}
	for _, name := range object.Strings(now, "required") {
		b, p := child(before, name), child(properties, name)
		switch {
		case slices.Contains(was, name):
			if b["default"] != nil && p["default"] == nil {
				c.add(Breaking, path+".required",
					"%s is required and no longer has a default: objects without it cannot be updated", name)
			}
		case p["default"] != nil:
			c.add(Compatible, path+".required", "%s is newly required and has a default", name)
		default:
			c.add(Breaking, path+".required", "%s is newly required: objects without it cannot be updated", name)
		}
	}
}

// rules compares x-kubernetes-validations. A rule that uses oldSelf is evaluated even for an unchanged value.
func (c *comparison) rules(path string, old, now object.Tree) {
	id := func(r object.Tree) string { return fmt.Sprint(object.String(r, "rule"), r["optionalOldSelf"] == true) }
	was, is := list(old, "x-kubernetes-validations"), list(now, "x-kubernetes-validations")
	has := func(rules []object.Tree, r object.Tree) bool {
		return slices.ContainsFunc(rules, func(o object.Tree) bool { return id(o) == id(r) })
	}
	for i, r := range is {
		rule := object.String(r, "rule")
		at := fmt.Sprintf("%s.x-kubernetes-validations[%d].rule", path, i)
		switch {
		case has(was, r):
		case strings.Contains(rule, "oldSelf"):
			c.add(Breaking, at, "new transition rule: it is evaluated even for unchanged values")
		default:
			c.add(Ratcheted, at, "new rule")
		}
	}
	for _, r := range was {
		if !has(is, r) {
			c.add(Compatible, path, "loosened: a rule is removed: %s", object.String(r, "rule"))
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

// valueValidations compares allOf, anyOf, oneOf and not. An error below one of them is ignored only while the whole
// value is unchanged.
func (c *comparison) valueValidations(path string, old, now object.Tree) {
	for _, key := range []string{"allOf", "anyOf", "oneOf", "not"} {
		was, _ := old[key].([]any)
		is, _ := now[key].([]any)
		whole := now["type"] == "object" || now["type"] == "array" || now["type"] == nil
		switch {
		case object.Equal(old[key], now[key]):
		case now[key] == nil, key == "anyOf" && old[key] != nil && containsAll(is, was), key == "allOf" &&
			containsAll(was, is):
			c.add(Compatible, path, "loosened: %s was %s", key, formatValue(old[key]))
		case whole:
			c.add(Breaking, path+"."+key,
				"%s has changed: updates of an invalid object fail unless the whole value is unchanged", key)
		default:
			c.add(Ratcheted, path+"."+key, "%s has changed", key)
		}
	}
}

// containsAll reports whether list contains every one of the elements.
func containsAll(list, elements []any) bool {
	return !slices.ContainsFunc(elements, func(e any) bool {
		return !slices.ContainsFunc(list, func(v any) bool { return object.Equal(v, e) })
	})
}

// properties compares the fields of an object.
func (c *comparison) properties(path string, old, now object.Tree) {
	was, is := child(old, "properties"), child(now, "properties")
	others, more := old["additionalProperties"], now["additionalProperties"]
	keeps := now["x-kubernetes-preserve-unknown-fields"] == true || more != nil
	for _, name := range slices.Sorted(maps.Keys(was)) {
		switch _, ok := is[name]; {
		case ok:
			c.below(path+".properties["+name+"]", was[name], is[name])
		case keeps:
			c.below(path+".additionalProperties", was[name], more)
		default:
			c.add(Breaking, path+".properties", "%s is removed: stored objects lose the field", name)
		}
	}
	open := old["x-kubernetes-preserve-unknown-fields"] == true || others == true
	for _, name := range slices.Sorted(maps.Keys(is)) {
		switch _, ok := was[name]; {
		case ok:
		case open:
			c.add(Breaking, path+".properties["+name+"]",
				"%s now has a schema: server-side apply fails for stored objects in which the field has a value of "+
					"another type", name)
		default:
			c.below(path+".properties["+name+"]", others, is[name])
		}
	}
	switch {
	case others != nil && !keeps:
		c.add(Breaking, path, "additionalProperties is removed: stored objects lose the fields that it allowed")
	case open && more != nil && more != true:
		c.add(Breaking, path+".additionalProperties",
			"additionalProperties is now a schema: server-side apply fails for stored objects with fields of another "+
				"type")
	case more == true && others != true:
		c.add(Compatible, path+".additionalProperties", "loosened: fields may have any value")
	default:
		c.below(path+".additionalProperties", others, more)
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

func formatValue(v any) string {
	if v == nil {
		return "not set"
	}
	return string(object.AppendJSON(nil, v))
}
