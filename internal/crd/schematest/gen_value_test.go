package schematest

import "strings"

// pattern is a regular expression with a text that matches it.
type pattern struct{ expr, fits string }

var patterns = []pattern{{"^[a-z]*$", "abc"}, {`^\d+(Mi|Gi)$`, "12Mi"}, {"a|b", "xa"}, {"^.{2,4}$", "äöü"},
	{`^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$`, "* * * * 5"}, {`^\pL+$`, "größe"}}

var formats = map[string][]string{
	"bsonobjectid": {"507f1f77bcf86cd799439011"}, "uri": {"http://example.com/a?b=c",
		"/x"}, "email": {"a@example.com"}, "hostname": {"example.com"},
	"ipv4": {"10.0.0.1"}, "ipv6": {"2001:db8::1", "::ffff:1.2.3.4"}, "cidr": {"10.0.0.0/8",
		"2001:db8::/32"}, "mac": {"01:02:03:04:05:06"},
	"uuid": {"a8098c1a-f86e-11da-bd1a-00112444be1e"}, "uuid3": {"bcd02e22-68f0-3046-a512-327cca9def8f"},
	"uuid4": {"025b0d74-00a2-4048-bf57-227c5111bb34"},
	"uuid5": {"886313e1-3b8a-5372-9b90-0c9aee199e5d"}, "isbn": {"0321751043",
		"978-0321751041"}, "isbn10": {"0321751043"}, "isbn13": {"978-0321751041"},
	"creditcard": {"4111-1111-1111-1111"}, "ssn": {"111-11-1111"}, "hexcolor": {"#FFFFFF",
		"fff"}, "rgbcolor": {"rgb(255,255,255)"},
	"byte": {"aGVsbG8=", ""}, "password": {"anything"}, "date": {"2006-01-02"}, "duration": {"22ns", "1h2m",
		"3 days"}, "datetime": {"2014-12-15T19:30:20.000Z"},
	"date-time": {"2014-12-15T19:30:20Z"}, "k8s-short-name": {"abc"}, "k8s-long-name": {"abc.def"},
	"bsonObjectId": {"x"}, "unheard-of": {"x"}, "int32": {"x"}, "double": {"x"},
}

var formatNames = func() (all []string) {
	m := props{}
	for k := range formats {
		m[k] = nil
	}
	return sorted(m)
}()

var texts = []string{"a", "", "abc", "foo", "bar", "é", "日本", "𝄞x", "1", "-1", "100Mi", "10.0.0.1", "10.0.0.0/8",
	"2001:db8::1", "http://a.b/c?d=e", "2020-01-02", "2020-01-02T03:04:05Z", "1h2m", "a\nb", "\"q'", "\u2028", "TCP",
	"Pod",
	"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}

var (
	integers = []any{int64(1), int64(0), int64(2), int64(5), int64(10), int64(-1), int64(80), int64(2147483647),
		int64(2147483648), int64(-2147483649), int64(9007199254740993), int64(9223372036854775807),
		int64(-9223372036854775808), int64(4), 3.0, 1e18}
	floats = []any{0.5, 1.5, int64(2), int64(7), -0.25, 1e10, 3.4e38, 1e39, 1e300, 1e-7, 0.1, 100.0,
		int64(9007199254740993)}
	oddities = []any{"text", int64(1), 1.5, true, nil, map[string]any{"a": map[string]any{"b": "c"}}, []any{},
		[]any{nil, int64(1)}, map[string]any{}, []any{map[string]any{"d": nil}},
		map[string]any{"metadata": map[string]any{"q": "r", "name": "n"}, "kind": "K", "apiVersion": "v1",
			"spec": map[string]any{}}, []any{"a", "a"}}
)

// object returns an object of the kind.
func (g *gen) object(s props) map[string]any {
	t := g.fieldsOf(s, 0)
	t["apiVersion"], t["kind"] = "example.com/v1", "Foo"
	t["metadata"] = map[string]any{"name": pick(g.source, "abc", "x", "abcdefgh", "a-1"),
		"labels": map[string]any{"a": "b"}}
	return t
}

// value returns a value that is usually valid for s.
func (g *gen) value(s props, depth int) any {
	if g.wrongValueRate > 0 && g.oneIn(g.wrongValueRate) {
		return copied(pick(g.source, oddities...))
	}
	if s["nullable"] == true && g.oneIn(3) {
		return nil
	}
	if list, _ := s["enum"].([]any); len(list) > 0 && !g.wrongValue() {
		return copied(pick(g.source, list...))
	}
	if s["x-kubernetes-int-or-string"] == true {
		return pick[any](g.source, int64(1), "10%", int64(5), "12", int64(80))
	}
	switch s["type"] {
	case "string":
		return g.textFor(s)
	case "integer":
		return g.within(s, integers)
	case "number":
		return g.within(s, floats)
	case "boolean":
		return g.oneIn(2)
	case "array":
		return g.listFor(s, depth)
	case "object":
		return g.fieldsOf(s, depth)
	}
	v := copied(pick(g.source, oddities...))
	if v == nil {
		return "free"
	}
	return v
}

func (g *gen) wrongValue() bool { return g.wrongValueRate > 0 && g.oneIn(g.wrongValueRate) }

func (g *gen) textFor(s props) string {
	text := pick(g.source, texts...)
	if g.wrongValue() {
		return text
	}
	if f, ok := s["format"].(string); ok && formats[f] != nil {
		text = pick(g.source, formats[f]...)
	}
	if p, ok := s["pattern"].(string); ok {
		for _, known := range patterns {
			if known.expr == p {
				text = known.fits
			}
		}
	}
	if low, ok := count(s, "minLength"); ok {
		for len([]rune(text)) < low {
			text += "é"
		}
	}
	if high, ok := count(s, "maxLength"); ok && len([]rune(text)) > high {
		text = string([]rune(text)[:high])
	}
	return text
}

// within returns one of the given numbers. It prefers numbers within the bounds of s.
func (g *gen) within(s props, of []any) any {
	if g.wrongValue() {
		return pick(g.source, of...)
	}
	var fit []any
	for _, v := range of {
		f := asFloat(v)
		low, hasLow := s["minimum"]
		high, hasHigh := s["maximum"]
		step, hasStep := s["multipleOf"]
		switch {
		case hasLow && f <= asFloat(low), hasHigh && f >= asFloat(high), hasStep &&
			(f < 0 || f > 1e12 || f/asFloat(step) != float64(int64(f/asFloat(step)))):
		case s["format"] == "int32" && (f > 2147483647 || f < -2147483648), s["format"] == "float" && f > 3e38:
		default:
			fit = append(fit, v)
		}
	}
	if len(fit) == 0 {
		return pick(g.source, of...)
	}
	return pick(g.source, fit...)
}

func asFloat(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case int64:
		return float64(v)
	}
	return v.(float64)
}

// count returns the limit in the keyword key of s, for the generation of values.
func count(s props, key string) (int, bool) {
	switch v := s[key].(type) {
	case int:
		return v, true
	case int64:
		return int(max(0, min(v, 40))), true
	}
	return 0, false
}

// between returns a random count within the limits of s.
func (g *gen) between(s props, of string) int {
	low, _ := count(s, "min"+of)
	high, ok := count(s, "max"+of)
	if !ok {
		high = low + 3
	}
	if g.wrongValue() {
		return g.n(7)
	}
	return low + g.n(max(1, high-low+1))
}

func (g *gen) listFor(s props, depth int) []any {
	items, _ := s["items"].(props)
	list := []any{}
	if depth > 9 {
		return list
	}
	seen := map[string]bool{}
	n := g.between(s, "Items")
	for range n * 3 {
		if len(list) == n {
			break
		}
		v := g.value(items, depth+1)
		id := identity(v, s)
		if id != "" && seen[id] && !g.wrongValue() {
			continue
		}
		seen[id] = true
		list = append(list, v)
	}
	if len(list) > 0 && g.wrongValue() {
		list = append(list, copied(list[0]))
	}
	return list
}

// identity returns a text for the item v that must be unique in a set or a list-type map with the schema s.
func identity(v any, s props) string {
	switch s["x-kubernetes-list-type"] {
	case "set":
		return string(asJSON(v))
	case "map":
		t, _ := v.(map[string]any)
		id := []any{}
		keys, _ := s["x-kubernetes-list-map-keys"].([]any)
		for _, k := range keys {
			id = append(id, t[k.(string)])
		}
		return string(asJSON(id))
	}
	return ""
}

func (g *gen) fieldsOf(s props, depth int) map[string]any {
	t := map[string]any{}
	if s["x-kubernetes-embedded-resource"] == true {
		g.resource(t)
	}
	required, _ := s["required"].([]any)
	wanted := func(name string) bool {
		for _, r := range required {
			if r == name {
				return !g.wrongValue()
			}
		}
		return false
	}
	fields, _ := s["properties"].(props)
	high, limited := count(s, "maxProperties")
	low, _ := count(s, "minProperties")
	for _, name := range sorted(fields) {
		if s["x-kubernetes-embedded-resource"] == true && (name == "metadata" || name == "kind") {
			continue
		}
		must := wanted(name) || len(t) < low
		if must || !(limited && len(t) >= high) && g.n(3) > 0 && depth < 10 {
			t[name] = g.value(fields[name].(props), depth+1)
		}
	}
	if a, ok := s["additionalProperties"].(props); ok && depth < 10 {
		for range g.between(s, "Properties") {
			t[pick(g.source, "k1", "k2", "k-3", "größe", "a.b", "")] = g.value(a, depth+1)
		}
	}
	if s["additionalProperties"] == true || s["x-kubernetes-preserve-unknown-fields"] == true || g.wrongValueRate > 0 &&
		g.oneIn(3*g.wrongValueRate) {
		for range g.n(3) {
			t[pick(g.source, "unknown", "metadata", "kind", "extra.1")] = copied(pick(g.source, oddities...))
		}
	}
	return t
}

// resource adds the type and the metadata of an embedded resource to t.
func (g *gen) resource(t map[string]any) {
	if g.wrongValue() {
		t["apiVersion"] = pick[any](g.source, "a/b/c", "", int64(1), nil)
	} else {
		t["apiVersion"] = pick[any](g.source, "v1", "apps/v1")
	}
	if g.wrongValue() {
		t["kind"] = pick[any](g.source, "", "not ok", int64(1), nil)
	} else {
		t["kind"] = pick[any](g.source, "Pod", "Foo")
	}
	if g.wrongValue() {
		t["metadata"] = copied(pick[any](g.source, map[string]any{"name": int64(1)}, "text",
			map[string]any{"name": "A B", "labels": map[string]any{"a b": "c d"}},
			map[string]any{"creationTimestamp": "never", "name": "x"}, nil,
			map[string]any{"finalizers": []any{"a", "b c"}, "ownerReferences": []any{map[string]any{"name": "x"}},
				"unknown": "u", "namespace": "n"}))
	} else if g.oneIn(2) {
		t["metadata"] = copied(pick[any](g.source, map[string]any{"name": "x"}, map[string]any{},
			map[string]any{"name": "y", "labels": map[string]any{"a": "b"}, "annotations": map[string]any{"c": "d"},
				"creationTimestamp": nil},
			map[string]any{"generateName": "x-", "namespace": "ns", "creationTimestamp": "2020-01-02T03:04:05Z"}))
	}
}

// changed returns v after a few of its values were replaced by values in other.
func (g *gen) changed(v, other any) any {
	switch v := v.(type) {
	case map[string]any:
		o, ok := other.(map[string]any)
		if !ok {
			return v
		}
		for _, k := range sorted(v) {
			if k != "metadata" && g.oneIn(2) {
				if w, ok := o[k]; ok && g.oneIn(4) {
					v[k] = copied(w)
				} else if g.oneIn(12) {
					delete(v, k)
				} else {
					v[k] = g.changed(v[k], w)
				}
			}
		}
	case []any:
		o, _ := other.([]any)
		switch {
		case len(v) > 1 && g.oneIn(3):
			v[0], v[1] = v[1], v[0]
		case len(v) > 0 && len(o) > 0 && g.oneIn(2):
			v[len(v)-1] = g.changed(v[len(v)-1], o[0])
		case g.oneIn(4):
			v = append(v, copied(other))
		}
		return v
	case string:
		if g.oneIn(8) {
			return v + "x"
		}
	}
	return v
}

func copied(v any) any {
	switch v := v.(type) {
	case map[string]any:
		t := make(map[string]any, len(v))
		for k, w := range v {
			t[k] = copied(w)
		}
		return t
	case []any:
		l := make([]any, len(v))
		for i := range v {
			l[i] = copied(v[i])
		}
		return l
	case string:
		return strings.Clone(v)
	case int:
		return int64(v)
	}
	return v
}
