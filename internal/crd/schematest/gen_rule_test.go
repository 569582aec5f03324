package schematest

import (
	"fmt"
	"strconv"
	"strings"
)

// rule adds random rules to some of the schemas s.
func (g *gen) rule(s props, depth int) {
	if !g.rules || !g.oneIn(5) {
		return
	}
	var rules []any
	for range 1 + g.n(2) {
		v := &variable{expr: "self", s: s, resource: depth == 0 || s["x-kubernetes-embedded-resource"] == true}
		w := &ruleWriter{gen: g}
		r := props{}
		switch {
		case g.oneIn(4):
			v.old = "oldSelf"
		case g.oneIn(8):
			r["optionalOldSelf"] = true
			v.optional = "oldSelf"
		}
		r["rule"] = w.test(v, 0)
		if g.oneIn(25) { // invalid in a new CRD, but possible in a stored one
			r["rule"] = pick(g.source, "self.nope > 1", "  ", "self +", "1 + 1", "oldSelf == self || nope(self)")
		}
		if g.oneIn(3) {
			r["message"] = pick(g.source, "it is wrong", "no")
		}
		if g.oneIn(4) {
			r["messageExpression"] = w.message(v)
		}
		if g.oneIn(4) {
			r["reason"] = pick(g.source, "FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired",
				"FieldValueDuplicate")
		}
		if path := w.fieldPath(s); path != "" && g.oneIn(4) {
			r["fieldPath"] = path
		}
		if g.mistakeRate > 0 && g.oneIn(max(1, g.mistakeRate/2)) {
			g.brokenRule(r, s)
		}
		rules = append(rules, r)
	}
	s["x-kubernetes-validations"] = rules
}

// variable is an expression for a value that a rule can use, with the schema of the value.
type variable struct {
	expr     string
	s        props
	resource bool
	old      string // the expression for the value in the old object
	optional string // the expression for the old value as an optional
}

// ruleWriter generates expressions that type-check.
type ruleWriter struct {
	*gen
	vars int
}

func (w *ruleWriter) fresh() string {
	w.vars++
	return "v" + strconv.Itoa(w.vars)
}

// kindOf returns the CEL type of values of s, or "" if CEL cannot access such values.
func kindOf(s props) string {
	if s["x-kubernetes-int-or-string"] == true {
		return "dyn"
	}
	switch s["type"] {
	case "array":
		if items, ok := s["items"].(props); ok && kindOf(items) != "" {
			return "list"
		}
		return ""
	case "object":
		if a, ok := s["additionalProperties"].(props); ok {
			if kindOf(a) == "" {
				return ""
			}
			return "map"
		}
		return "object"
	case "string":
		switch s["format"] {
		case "byte":
			return "bytes"
		case "date", "date-time", "datetime":
			return "timestamp"
		case "duration":
			return "duration"
		}
		return "string"
	case "integer":
		return "int"
	case "number":
		return "double"
	case "boolean":
		return "bool"
	}
	return ""
}

// field returns a field that a rule can select, or nil.
func (w *ruleWriter) field(v *variable) *variable {
	fields, _ := v.s["properties"].(props)
	var all []*variable
	for _, name := range sorted(fields) {
		esc, ok := escaped(name)
		s, _ := fields[name].(props)
		if ok && kindOf(s) != "" && !(v.resource && (name == "metadata" || name == "kind" || name == "apiVersion")) {
			f := &variable{expr: "." + esc, s: s, resource: s["x-kubernetes-embedded-resource"] == true}
			all = append(all, f)
		}
	}
	if v.resource {
		str := props{"type": "string"}
		all = append(all, &variable{expr: ".kind", s: str}, &variable{expr: ".metadata.name", s: str})
	}
	if len(all) == 0 {
		return nil
	}
	f := pick(w.source, all...)
	if v.old != "" {
		f.old = v.old + f.expr
	}
	f.expr = v.expr + f.expr
	return f
}

// test returns a boolean expression that uses v.
func (w *ruleWriter) test(v *variable, depth int) string {
	if v.optional != "" && w.oneIn(2) {
		o := w.fresh()
		return pick(w.source, fmt.Sprintf("%s.optMap(%s, %s).orValue(true)", v.optional, o,
			w.test(&variable{expr: o, s: v.s}, depth+1)),
			fmt.Sprintf("!%s.hasValue() || %s.value() == %s", v.optional, v.optional,
				v.expr), fmt.Sprintf("%s.hasValue()", v.optional))
	}
	if v.old != "" && w.oneIn(3) {
		return pick(w.source, fmt.Sprintf("%s == %s", v.expr, v.old), fmt.Sprintf("%s != %s", v.old, v.expr),
			w.test(&variable{expr: v.old, s: v.s, resource: v.resource}, depth+1))
	}
	if depth > 4 {
		return v.expr + " == " + v.expr
	}
	if w.oneIn(6) {
		a, b := w.test(v, depth+1), w.test(v, depth+1)
		return pick(w.source, fmt.Sprintf("(%s) && (%s)", a, b), fmt.Sprintf("(%s) || (%s)", a, b), "!("+a+")",
			fmt.Sprintf("(%s) ? (%s) : true", a, b))
	}
	switch kindOf(v.s) {
	case "object":
		return w.object(v, depth)
	case "list":
		return w.list(v, depth)
	case "map":
		return w.mapped(v, depth)
	}
	return w.scalar(v)
}

func (w *ruleWriter) object(v *variable, depth int) string {
	f := w.field(v)
	if f == nil {
		return pick(w.source, v.expr+" == "+v.expr, "true", "type("+v.expr+") == type("+v.expr+")")
	}
	switch w.n(7) {
	case 0:
		return "has(" + f.expr + ")"
	case 1, 2, 3:
		if f.old != "" {
			return fmt.Sprintf("!has(%s) || !has(%s) || (%s)", f.expr, f.old, w.test(f, depth+1))
		}
		return fmt.Sprintf("!has(%s) || (%s)", f.expr, w.test(f, depth+1))
	case 4:
		if e := w.field(v); e != nil && kindOf(e.s) == kindOf(f.s) && w.plain(f.s) {
			return fmt.Sprintf("has(%s) && has(%s) ? %s == %s : true", f.expr, e.expr, f.expr, e.expr)
		}
	}
	return w.test(f, depth+1)
}

func (w *ruleWriter) plain(s props) bool {
	k := kindOf(s)
	return k != "object" && k != "map" && k != "list"
}

func (w *ruleWriter) list(v *variable, depth int) string {
	items := v.s["items"].(props)
	x := w.fresh()
	elem := &variable{expr: x, s: items, resource: items["x-kubernetes-embedded-resource"] == true}
	e, in := v.expr, func() string { return w.test(elem, depth+1) }
	switch w.n(12) {
	case 0:
		return fmt.Sprintf("size(%s) < %d", e, w.n(4))
	case 1:
		return fmt.Sprintf("%s.all(%s, %s)", e, x, in())
	case 2:
		return fmt.Sprintf("%s.exists(%s, %s)", e, x, in())
	case 3:
		return fmt.Sprintf("%s.exists_one(%s, %s)", e, x, in())
	case 4:
		return fmt.Sprintf("size(%s.filter(%s, %s)) <= 1", e, x, in())
	case 5:
		return fmt.Sprintf("%s.map(%s, %s).all(b, b)", e, x, in())
	case 6:
		return fmt.Sprintf("(%s + %s) == %s", e, e, e)
	case 7:
		if v.old != "" {
			return pick(w.source, fmt.Sprintf("size(%s + %s) == size(%s)", e, v.old, e),
				fmt.Sprintf("%s.all(o, o in %s)", v.old, e), fmt.Sprintf("%s + %s == %s", v.old, e, e))
		}
		return fmt.Sprintf("%s.all(i, %s, i < 2 || (%s))", e, x, in())
	case 8:
		elem.expr = e + "[0]"
		return fmt.Sprintf("size(%s) == 0 || (%s)", e, in())
	case 9:
		elem.expr = e + "[1]"
		return in()
	case 10:
		return fmt.Sprintf("%s.all(%s, %s in %s)", e, x, x, e)
	}
	switch kindOf(items) {
	case "int":
		return pick(w.source, e+".isSorted()", e+".sum() > 3", e+".max() > 4", e+".min() < 4", e+".indexOf(2) < 1",
			"2 in "+e, e+".lastIndexOf(1) == 0", e+" == [1, 2]", "sets.contains("+e+", [1])")
	case "string":
		return pick(w.source, e+".isSorted()", e+".join(',').size() < 9", "'a' in "+e, e+".indexOf('a') < 1",
			e+" == ['a', 'b']", e+" + ['a'] == "+e, "sets.intersects("+e+", ['a', 'b'])", e+".max() > 'b'")
	case "double":
		return pick(w.source, e+".sum() > 1.0", e+".min() < 0.5", e+".isSorted()")
	}
	return fmt.Sprintf("%s.all(%s, %s)", e, x, in())
}

func (w *ruleWriter) mapped(v *variable, depth int) string {
	s := v.s["additionalProperties"].(props)
	k, x := w.fresh(), w.fresh()
	value := &variable{expr: v.expr + "[" + k + "]", s: s, resource: s["x-kubernetes-embedded-resource"] == true}
	switch w.n(8) {
	case 0:
		return fmt.Sprintf("'k1' in %s", v.expr)
	case 1:
		return fmt.Sprintf("size(%s) < 2", v.expr)
	case 2:
		value.expr = v.expr + "['k1']"
		return w.test(value, depth+1)
	case 3:
		value.expr = v.expr + "['k2']"
		return fmt.Sprintf("!('k2' in %s) || (%s)", v.expr, w.test(value, depth+1))
	case 4:
		value.expr = x
		return fmt.Sprintf("%s.exists(%s, %s, %s == 'k1' || (%s))", v.expr, k, x, k, w.test(value, depth+1))
	case 5:
		return fmt.Sprintf("%s.map(%s, %s.size()).size() < 3", v.expr, k, k)
	case 6:
		return fmt.Sprintf("%s == %s", v.expr, v.expr)
	}
	return fmt.Sprintf("%s.all(%s, %s)", v.expr, k, w.test(value, depth+1))
}

func (w *ruleWriter) scalar(v *variable) string {
	e := v.expr
	switch kindOf(v.s) {
	case "int":
		return pick(w.source, e+" > 1", e+" <= 5", e+" + 1 > "+e, e+" * 2 < 20", "10 / "+e+" > 1", e+" % 2 == 0",
			"string("+e+") != '5'", "double("+e+") < 3.5", e+" in [1, 2, 3]", "-"+e+" < 0", "uint("+e+
				") > uint(2)", "'%d'.format(["+e+"]) == '1'", e+" == 1.0", e+" < 2.5")
	case "double":
		return pick(w.source, e+" > 1.0", e+" < 100.5", e+" + 0.5 > 1.0", "int("+e+") < 3", e+" > 1",
			"'%.2f'.format(["+e+"]) != '0.50'", "string("+e+").size() < 5", e+" in [0.5, 1.0]")
	case "bool":
		return pick(w.source, e, "!"+e, e+" == true", "string("+e+") == 'true'")
	case "bytes":
		return pick(w.source, "size("+e+") < 4", e+" == b'hello'", "string("+e+") != ''", e+" == b''",
			"base64.encode("+e+").size() > 2", e+" < b'zzz'")
	case "timestamp":
		return pick(w.source, e+".getFullYear() > 2010", e+" < timestamp('2015-01-01T00:00:00Z')",
			e+" + duration('24h') > timestamp('2006-01-02T00:00:00Z')", e+".getMonth('Europe/Berlin') == 0", "string("+
				e+").size() > 5", e+".getDayOfWeek() < 5", e+" - timestamp('2000-01-01T00:00:00Z') > duration('1h')")
	case "duration":
		return pick(w.source, e+" < duration('1h')", e+".getHours() < 1", "string("+e+") != ''", e+" + "+e+" > "+e,
			e+".getSeconds() > 3")
	case "dyn":
		return pick(w.source, "type("+e+") == int ? "+e+" > 2 : "+e+" != '10%'", "type("+e+") == string || "+e+" == 5",
			e+" > 2", e+" == 5", e+" == '10%'", "string("+e+") == '5'", e+".size() > 2", e+" in [5, 80]")
	}
	return w.text(e)
}

func (w *ruleWriter) text(e string) string {
	return pick(w.source, e+".startsWith('a')", e+".contains('o')", e+".matches('^[a-z]+$')", "size("+e+") < 4",
		e+".endsWith('c')", e+".lowerAscii() == "+e, e+".upperAscii() != 'ABC'",
		e+" in ['a', 'b', 'abc']", e+" < 'b'", e+" + 'x' != 'ax'", e+".split('.').size() < 3", e+
			".replace('a', 'b') == "+e, e+".indexOf('b') == 1", e+".substring(1) != 'bc'", e+".charAt(0) == 'a'", e+
			".trim() == "+e,
		"isQuantity("+e+")", "!isQuantity("+e+") || quantity("+e+").isGreaterThan(quantity('1Mi'))", "quantity("+e+
			").asInteger() > 1", "quantity("+e+").compareTo(quantity('2')) < 1",
		"isIP("+e+")", "!isIP("+e+") || ip("+e+").family() == 4", "ip("+e+").isLoopback()", "!isCIDR("+e+") || cidr("+e+
			").prefixLength() < 16", "cidr('10.0.0.0/8').containsIP("+e+")",
		"isURL("+e+")", "!isURL("+e+") || url("+e+").getHost() == 'a.b'", "url("+e+").getQuery().size() == 1", e+
			".find('[0-9]+') == ''", e+".findAll('[a-z]').size() < 3", "int("+e+") > 0", "duration("+e+
			") > duration('1m')", "timestamp("+e+").getFullYear() > 2000",
		"!format.dns1123Label().validate("+e+").hasValue()", "format.named('dns1123Subdomain').hasValue()", "isSemver("+
			e+")", "!isSemver("+e+", true) || semver("+e+", true).major() > 0", "strings.quote("+e+").size() > 5", e+
			".reverse() == "+e)
}

// message returns a string expression. In some cases it fails or returns an invalid message.
func (w *ruleWriter) message(v *variable) string {
	own := "'text'"
	switch kindOf(v.s) {
	case "string":
		own = v.expr
	case "int", "double", "bool":
		own = "string(" + v.expr + ")"
	case "list", "map":
		own = "string(size(" + v.expr + "))"
	case "object":
		if f := w.field(v); f != nil && kindOf(f.s) == "string" {
			own = f.expr
		}
	}
	return pick(w.source, "'bad ' + "+own, own, "''", "'two\\nlines'", "string(1 / 0)", "'   '",
		"'0123456789'.replace('', 'x'.replace('x', '"+strings.Repeat("x", 600)+"'))", "'%s'.format(["+own+"])")
}

// fieldPath returns a path that exists below s.
func (w *ruleWriter) fieldPath(s props) string {
	fields, _ := s["properties"].(props)
	if len(fields) == 0 {
		return ""
	}
	name := pick(w.source, sorted(fields)...)
	path := "['" + name + "']"
	if name == "foo" || name == "bar" || name == "baz" || name == "x-prop" {
		path = "." + name
	}
	if below, ok := fields[name].(props); ok && w.oneIn(2) {
		if _, ok := below["additionalProperties"].(props); ok {
			return path + ".any"
		}
		path += w.fieldPath(below)
	}
	return path
}
