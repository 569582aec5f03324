package crd

import (
	"context"
	"maps"
	"slices"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/object"
)

// maxSample limits the number of values in a sample.
const maxSample = 2_000

// Sample returns an object with every field of the schema except the field with the path without. If without is
// empty, no field is omitted. The function text generates the strings that have no enum and no format. ok is false if
// the schema rejects the object.
func (c *Compiled) Sample(ctx context.Context, text func(i int) string, without []string) (t object.Tree, ok bool) {
	m := sampler{text: text, root: c.Schema.Root}
	t, _ = m.value(c.Schema.Root, without, true).(object.Tree)
	if t == nil {
		return nil, false
	}
	t["metadata"] = object.Tree{"name": "sample", "namespace": "default"}
	return t, len(c.Validate(ctx, t, nil, nil)) == 0
}

type sampler struct {
	text  func(int) string
	root  *schema.Node
	count int
}

// value returns a value for the schema n, or nil if the sampler cannot construct one. If matched is true, the value
// omits the field with the path without, which is relative to n.
func (m *sampler) value(n *schema.Node, without []string, matched bool) any {
	if m.count++; n == nil || m.count > maxSample {
		return nil
	}
	if n.Checks != nil && n.Checks.Enum != nil && len(n.Checks.Enum.Values()) > 0 {
		values := n.Checks.Enum.Values()
		return values[m.count%len(values)]
	}
	switch {
	case n.IntOrString, n.Types == schema.Integer:
		return int64(m.number(n))
	case n.Types == schema.Number:
		return m.number(n)
	case n.Types == schema.String:
		return m.string(n)
	case n.Types == schema.Boolean:
		return true
	case n.Types == schema.Array:
		return m.list(n)
	case n.Types == schema.Object:
		return m.object(n, without, matched)
	}
	return nil
}

func (m *sampler) object(n *schema.Node, without []string, matched bool) any {
	t := object.Tree{}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		on := matched && len(without) > 0 && without[0] == name
		if on && len(without) == 1 || schema.IsTypeOrMeta(name) && (n == m.root || n.Embedded) {
			continue
		}
		var rest []string
		if on {
			rest = without[1:]
		}
		if v := m.value(n.Properties[name], rest, on); v != nil {
			t[name] = v
		}
	}
	if n.Embedded {
		t["apiVersion"], t["kind"], t["metadata"] = "v1", "ConfigMap", object.Tree{"name": "sample"}
	}
	if n.Additional != nil && n.Additional.Schema != nil && len(n.Properties) == 0 {
		if v := m.value(n.Additional.Schema, nil, false); v != nil {
			t["a"] = v
		}
	}
	return t
}

func (m *sampler) list(n *schema.Node) any {
	list, size := []any{}, 2
	if n.MaxItems != nil {
		size = int(min(*n.MaxItems, int64(size)))
	}
	for range size {
		if v := m.value(n.Items, nil, false); v != nil {
			list = append(list, v)
		}
	}
	return list
}

func (m *sampler) number(n *schema.Node) float64 {
	v := float64(m.count)
	if n.Checks != nil && n.Checks.Maximum != nil {
		v = min(v, *n.Checks.Maximum)
	}
	if n.Checks != nil && n.Checks.Minimum != nil {
		v = max(v, *n.Checks.Minimum)
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

func (m *sampler) string(n *schema.Node) any {
	if s := formats[n.Format]; s != "" {
		return s
	}
	s := m.text(m.count)
	if n.MaxLength != nil && int64(len(s)) > *n.MaxLength {
		s = s[:max(0, *n.MaxLength)]
	}
	return s
}
