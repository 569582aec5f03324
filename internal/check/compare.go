package check

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
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

var severities = map[Effect]Severity{Compatible: Note, Ratcheted: Warning, Breaking: Error}

// comparison collects the changes between two states.
type comparison struct{ changes []change }

func (c *comparison) add(e Effect, path, format string, args ...any) {
	c.changes = append(c.changes, change{e, path, fmt.Sprintf(format, args...)})
}

// difference is a keyword whose values differ between the old and the new schema of a value.
type difference struct {
	*comparison
	path     string // of the schema
	key      string
	old, now *schema.Node
	was, is  schema.JSON // "" means that the keyword is not set
}

// keywords lists the keywords with an effect, in the order of the reports, and the functions that report it.
var keywords = []struct {
	names  string
	report func(*difference)
}{
	{"type x-kubernetes-int-or-string", (*difference).typ},
	{"nullable x-kubernetes-preserve-unknown-fields", (*difference).allowance},
	{"x-kubernetes-embedded-resource", (*difference).embedded},
	{"default", (*difference).defaulted},
	{"maximum maxLength maxItems maxProperties minimum minLength minItems minProperties", (*difference).bound},
	{"exclusiveMaximum exclusiveMinimum", (*difference).exclusive},
	{"pattern format multipleOf", (*difference).restriction},
	{"enum", (*difference).enum},
	{"x-kubernetes-list-type x-kubernetes-list-map-keys x-kubernetes-map-type", (*difference).merging},
	{"required", (*difference).required},
	{"x-kubernetes-validations", (*difference).rules},
	{"allOf anyOf oneOf not", (*difference).validations},
}

// schema compares the old and the new schema of one value, which may be nil.
func (c *comparison) schema(path string, old, now *schema.Node) {
	if old == nil || now == nil || bytes.Equal(old.AppendJSON(nil), now.AppendJSON(nil)) {
		return
	}
	for _, k := range keywords {
		for _, key := range strings.Fields(k.names) {
			d := &difference{c, path, key, old, now, old.Value(key), now.Value(key)}
			if d.was != d.is || key == "required" {
				k.report(d)
			}
		}
	}
	c.properties(path, old, now)
	c.schema(path+".items", old.Items, now.Items)
}

// at adds a change at the keyword.
func (d *difference) at(e Effect, what string) { d.add(e, d.path+"."+d.key, "%s", what) }

// above adds a change at the schema that contains the keyword.
func (d *difference) above(e Effect, what string) { d.add(e, d.path, "%s", what) }

// change describes the change in the form "maximum was 5".
func (d *difference) change() string { return d.key + " was " + formatValue(d.was) }

func formatValue(v schema.JSON) string {
	if v == "" || v == "null" {
		return "not set"
	}
	return string(v)
}

func (d *difference) typ() {
	eased := d.now.IntOrString && (d.old.Type == "integer" || d.old.Type == "string")
	switch {
	case eased || d.was == `"integer"` && d.is == `"number"`:
		d.at(Compatible, d.change())
	case d.was == `"number"` && d.is == `"integer"`:
		d.at(Ratcheted, d.change())
	default: // such a change can also drop fields
		d.at(Breaking, d.change()+": server-side apply fails for objects with a value of the old type")
	}
}

// allowance compares a flag that allows more values.
func (d *difference) allowance() {
	switch {
	case d.is == "true":
		d.at(Compatible, "loosened: "+d.key+" is new")
	case d.was == "true" && d.key == "nullable":
		d.at(Breaking, "null values are dropped or rejected")
	case d.was == "true":
		d.at(Breaking, "unknown fields are no longer preserved: stored objects lose them")
	}
}

func (d *difference) embedded() {
	switch {
	case d.is == "true":
		d.at(Breaking, "a value must now have apiVersion, kind and metadata")
	case d.was != "true":
	case d.now.Preserve:
		d.above(Compatible, "loosened: "+d.key+" is removed")
	default:
		d.above(Breaking, "apiVersion, kind and metadata are dropped unless they are properties of the schema")
	}
}

func (d *difference) defaulted() {
	if d.is == "" {
		d.above(Compatible, d.change()+": objects without the field no longer get a default")
		return
	}
	d.at(Compatible, d.change()+": objects without the field get the new default")
}

// merging compares a keyword that defines how server-side apply merges lists and maps. Duplicate items remain allowed
// in a stored object that already has duplicates.
func (d *difference) merging() {
	switch d.is {
	case "", `"atomic"`, `"granular"`:
		d.at(Compatible, d.change()+": server-side apply merges differently")
	default:
		d.at(Ratcheted, d.change()+": duplicate items are rejected")
	}
}

// bound compares a numeric limit.
func (d *difference) bound() {
	was, notBefore := strconv.ParseFloat(string(d.was), 64)
	is, notNow := strconv.ParseFloat(string(d.is), 64)
	if strings.HasPrefix(d.key, "min") {
		was, is = -was, -is
	}
	switch {
	case notNow == nil && (notBefore != nil || is < was):
		d.at(Ratcheted, "tightened: "+d.change())
	case notBefore == nil:
		d.above(Compatible, "loosened: "+d.change())
	}
}

func (d *difference) exclusive() {
	switch {
	case d.is == "true":
		d.at(Ratcheted, "tightened: "+d.key+" is new")
	case d.was == "true":
		d.above(Compatible, "loosened: "+d.key+" is removed")
	}
}

// restriction compares a keyword whose values cannot be ordered by strictness.
func (d *difference) restriction() {
	if d.is == "" {
		d.above(Compatible, "loosened: "+d.change())
		return
	}
	d.at(Ratcheted, d.change())
}

func (d *difference) enum() {
	was, is := elements(d.was), elements(d.is)
	switch {
	case d.is == "":
		d.above(Compatible, "loosened: any value is allowed")
		return
	case d.was == "":
		d.at(Ratcheted, "enum is new")
		return
	}
	for _, v := range removed(is, was) {
		d.at(Compatible, "loosened: "+formatValue(v)+" is allowed")
	}
	for _, v := range removed(was, is) {
		d.at(Ratcheted, formatValue(v)+" is no longer allowed")
	}
}

// elements returns the elements of a list.
func elements(list schema.JSON) (all []schema.JSON) {
	c := object.NewCursor([]byte(list))
	c.Elements(func(int) { all = append(all, schema.JSON(c.Raw())) })
	return all
}

// removed returns the elements of the old list that are missing in the current list.
func removed[E comparable](old, current []E) []E {
	return slices.DeleteFunc(slices.Clone(old), func(e E) bool { return slices.Contains(current, e) })
}

// required compares the names of required fields. The default of such a field may also have been removed, so schema
// calls required for equal names, too.
func (d *difference) required() {
	for _, name := range removed(d.old.Required, d.now.Required) {
		d.above(Compatible, "loosened: "+name+" is no longer required")
	}
	for _, name := range d.now.Required {
		had, has := d.old.Properties[name].Value("default") != "", d.now.Properties[name].Value("default") != ""
		switch {
		case slices.Contains(d.old.Required, name):
			if had && !has {
				d.at(Breaking, name+" is required and no longer has a default: objects without it cannot be updated")
			}
		case has:
			d.at(Compatible, name+" is newly required and has a default")
		default:
			d.at(Breaking, name+" is newly required: objects without it cannot be updated")
		}
	}
}

// rules compares the rules. A rule that uses oldSelf is evaluated even for an unchanged value.
func (d *difference) rules() {
	type rule struct {
		text     string
		optional bool // optionalOldSelf
	}
	rulesOf := func(n *schema.Node) (all []rule) {
		for _, r := range n.Rules.All() {
			all = append(all, rule{r.Rule, r.IsOldSelfOptional()})
		}
		return all
	}
	was, is := rulesOf(d.old), rulesOf(d.now)
	for i, r := range is {
		at := fmt.Sprintf("%s.%s[%d].rule", d.path, d.key, i)
		switch {
		case slices.Contains(was, r):
		case strings.Contains(r.text, "oldSelf"):
			d.add(Breaking, at, "new transition rule: it is evaluated even for unchanged values")
		default:
			d.add(Ratcheted, at, "new rule")
		}
	}
	for _, r := range removed(was, is) {
		d.above(Compatible, "loosened: a rule is removed: "+r.text)
	}
}

// validations compares allOf, anyOf, oneOf or not. An error below one of them is ignored only while the whole value is
// unchanged.
func (d *difference) validations() {
	was, is := elements(d.was), elements(d.is)
	switch {
	case d.is == "", d.key == "anyOf" && d.was != "" && len(removed(was, is)) == 0,
		d.key == "allOf" && len(removed(is, was)) == 0:
		d.above(Compatible, "loosened: "+d.change())
	case slices.Contains([]string{"object", "array", ""}, d.now.WrittenType()):
		d.at(Breaking, d.key+" has changed: updates of an invalid object fail unless the whole value is unchanged")
	default:
		d.at(Ratcheted, d.key+" has changed")
	}
}

// properties compares the fields of an object.
func (c *comparison) properties(path string, old, now *schema.Node) {
	was, is := old.Properties, now.Properties
	others, more := old.Additional, now.Additional
	keeps := now.Preserve || more != nil
	for _, name := range slices.Sorted(maps.Keys(was)) {
		switch _, ok := is[name]; {
		case ok:
			c.schema(path+".properties["+name+"]", was[name], is[name])
		case keeps:
			c.schema(path+".additionalProperties", was[name], now.Child(name))
		default:
			c.add(Breaking, path+".properties", "%s is removed: stored objects lose the field", name)
		}
	}
	allowsAll := func(a *schema.AdditionalProperties) bool { return a != nil && a.Schema == nil && a.Allows }
	open := old.Preserve || allowsAll(others)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		switch _, ok := was[name]; {
		case ok:
		case open:
			c.add(Breaking, path+".properties["+name+"]",
				"%s now has a schema: server-side apply fails for stored objects in which the field has a value of "+
					"another type", name)
		default:
			c.schema(path+".properties["+name+"]", old.Child(name), is[name])
		}
	}
	switch {
	case others != nil && !keeps:
		c.add(Breaking, path, "additionalProperties is removed: stored objects lose the fields that it allowed")
	case open && more != nil && !allowsAll(more):
		c.add(Breaking, path+".additionalProperties",
			"additionalProperties is now a schema: server-side apply fails for stored objects with fields of another "+
				"type")
	case allowsAll(more) && !allowsAll(others):
		c.add(Compatible, path+".additionalProperties", "loosened: fields may have any value")
	case others != nil && more != nil:
		c.schema(path+".additionalProperties", others.Schema, more.Schema)
	}
}
