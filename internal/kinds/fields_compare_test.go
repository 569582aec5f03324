package kinds

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// comparison compares Trellis' schemas with upstream's. Its paths have the same format as the paths in
// resource/fields.txt.
type comparison struct {
	trellis, upstream *schema.Schema
	differences       []string
	lines             []string // missing in fields.txt
}

func (c *comparison) differ(path string, a, b any) {
	c.differences = append(c.differences, fmt.Sprintf("%s: got %v, want upstream's %v", path, a, b))
}

// lacksLine records a line that is lines that are missing in fields.txt.
func (c *comparison) lacksLine(path string, words ...string) {
	c.lines = append(c.lines, strings.Join(append([]string{path}, words...), " "))
}

// compareRelationship compares two element relationships. It records a missing line if only upstream's relationship
// is atomic.
func (c *comparison) compareRelationship(path string, a, b schema.ElementRelationship) {
	switch {
	case (a == schema.Atomic) == (b == schema.Atomic):
	case b == schema.Atomic:
		c.lacksLine(path, "atomic")
	default:
		c.differ(path, a, b)
	}
}

func override(r schema.TypeRef) schema.ElementRelationship {
	if r.ElementRelationship == nil {
		return ""
	}
	return *r.ElementRelationship
}

func (c *comparison) compare(seen map[string]bool, path string, a, b schema.TypeRef) {
	c.compareRelationship(path, override(a), override(b))
	a.ElementRelationship, b.ElementRelationship = nil, nil
	if a.NamedType != nil {
		if path = *a.NamedType; seen[path] {
			return
		}
		seen[path] = true
	}
	x, okA := c.trellis.Resolve(a)
	y, okB := c.upstream.Resolve(b)
	if !okA || !okB {
		c.differ(path, okA, okB)
		return
	}
	if (x.Scalar == nil) != (y.Scalar == nil) || (x.List == nil) != (y.List == nil) ||
		(x.Map == nil) != (y.Map == nil) {
		c.differ(path, x, y)
		return
	}
	if x.Scalar != nil && *x.Scalar != *y.Scalar {
		c.differ(path, *x.Scalar, *y.Scalar)
	}
	if x.List != nil {
		c.compareLists(seen, path, x.List, y.List)
	}
	if x.Map != nil {
		c.compareMaps(seen, path, x.Map, y.Map)
	}
}

func (c *comparison) compareLists(seen map[string]bool, path string, a, b *schema.List) {
	switch {
	case a.ElementRelationship == b.ElementRelationship && slices.Equal(a.Keys, b.Keys):
	case b.ElementRelationship == schema.Atomic:
		c.lacksLine(path, "atomic")
	default:
		c.lacksLine(path, append([]string{"list"}, b.Keys...)...)
	}
	c.compare(seen, path+"[]", a.ElementType, b.ElementType)
}

func (c *comparison) compareMaps(seen map[string]bool, path string, a, b *schema.Map) {
	c.compareRelationship(path, a.ElementRelationship, b.ElementRelationship)
	if (a.ElementType == schema.TypeRef{}) != (b.ElementType == schema.TypeRef{}) {
		c.differ(path+".*", a.ElementType, b.ElementType)
	} else if (a.ElementType != schema.TypeRef{}) {
		c.compare(seen, path+".*", a.ElementType, b.ElementType)
	}
	names := map[string]bool{}
	for _, f := range append(slices.Clone(a.Fields), b.Fields...) {
		names[f.Name] = true
	}
	for name := range names {
		x, okA := a.FindField(name)
		y, okB := b.FindField(name)
		if okA != okB {
			c.differ(path+"."+name, okA, okB)
			continue
		}
		c.compare(seen, path+"."+name, x.Type, y.Type)
		if isScalar(y.Default) && b.ElementRelationship != schema.Atomic &&
			fmt.Sprint(x.Default) != fmt.Sprint(y.Default) {
			text, _ := json.Marshal(y.Default)
			c.lacksLine(path+"."+name, "default", string(text))
		}
	}
}

// isScalar reports whether v has a scalar type that the default of a list key may have.
func isScalar(v any) bool {
	switch v.(type) {
	case string, bool, int, int64:
		return true
	}
	return false
}
