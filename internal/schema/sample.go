package schema

import (
	"context"
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/object"
)

// maxSample limits the number of values in a sample.
const maxSample = 2_000

// Sample returns an object with every field of the schema except the field with the path without. If without is
// empty, no field is omitted. The function text generates the strings that have no enum and no format. ok is false if
// the schema rejects the object.
func (s *Schema) Sample(ctx context.Context, text func(i int) string, without []string) (t object.Tree, ok bool) {
	m := sampler{text: text, root: s.root}
	t, _ = m.value(s.root, without, true).(object.Tree)
	if t == nil {
		return nil, false
	}
	t["metadata"] = object.Tree{"name": "sample", "namespace": "default"}
	return t, len(s.Validate(ctx, t, nil, nil)) == 0
}

type sampler struct {
	text  func(int) string
	root  *node
	count int
}

// value returns a value for the schema n, or nil if the sampler cannot construct one. If matched is true, the value
// omits the field with the path without, which is relative to n.
func (m *sampler) value(n *node, without []string, matched bool) any {
	if m.count++; n == nil || m.count > maxSample {
		return nil
	}
	if n.checks != nil && n.checks.enum != nil && len(n.checks.enum.values()) > 0 {
		values := n.checks.enum.values()
		return values[m.count%len(values)]
	}
	switch {
	case n.intOrString, n.types == isInteger:
		return int64(m.number(n))
	case n.types == isNumber:
		return m.number(n)
	case n.types == isString:
		return m.string(n)
	case n.types == isBoolean:
		return true
	case n.types == isArray:
		return m.list(n)
	case n.types == isObject:
		return m.object(n, without, matched)
	}
	return nil
}

func (m *sampler) object(n *node, without []string, matched bool) any {
	t := object.Tree{}
	for _, name := range slices.Sorted(maps.Keys(n.properties)) {
		on := matched && len(without) > 0 && without[0] == name
		if on && len(without) == 1 || isTypeOrMeta(name) && (n == m.root || n.embedded) {
			continue
		}
		var rest []string
		if on {
			rest = without[1:]
		}
		if v := m.value(n.properties[name], rest, on); v != nil {
			t[name] = v
		}
	}
	if n.embedded {
		t["apiVersion"], t["kind"], t["metadata"] = "v1", "ConfigMap", object.Tree{"name": "sample"}
	}
	if n.additional != nil && n.additional.schema != nil && len(n.properties) == 0 {
		if v := m.value(n.additional.schema, nil, false); v != nil {
			t["a"] = v
		}
	}
	return t
}

func (m *sampler) list(n *node) any {
	list, size := []any{}, 2
	if n.maxItems != nil {
		size = int(min(*n.maxItems, int64(size)))
	}
	for range size {
		if v := m.value(n.items, nil, false); v != nil {
			list = append(list, v)
		}
	}
	return list
}

func (m *sampler) number(n *node) float64 {
	v := float64(m.count)
	if n.checks != nil && n.checks.maximum != nil {
		v = min(v, *n.checks.maximum)
	}
	if n.checks != nil && n.checks.minimum != nil {
		v = max(v, *n.checks.minimum)
	}
	return v
}

// formats maps format names to sample strings.
var formats = map[string]string{
	"date-time": "2024-02-29T12:34:56Z", "date": "2024-02-29", "duration": "1h2m3s", "byte": "c2FtcGxl",
	"uuid": "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
	"ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "cidr": "192.0.2.0/24", "hostname": "sample.example.com",
	"email": "sample@example.com", "uri": "https://example.com/sample",
}

func (m *sampler) string(n *node) any {
	if s := formats[n.format]; s != "" {
		return s
	}
	s := m.text(m.count)
	if n.maxLength != nil && int64(len(s)) > *n.maxLength {
		s = s[:max(0, *n.maxLength)]
	}
	return s
}
