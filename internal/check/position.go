package check

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// position returns the position of the field at path in the file, or of the nearest enclosing field in the file.
// Lines and columns count from 1.
func (d *document) position(path string) (line, column int) {
	if d.node == nil {
		return d.line + 1, 1
	}
	key, _, whole := find(d.node, path)
	for prefix, target := range sharedFields {
		if rest, ok := strings.CutPrefix(path, prefix); ok && !whole {
			key, _, _ = find(d.node, target+rest)
		}
	}
	return d.line + key.Line, key.Column
}

// find follows a path in the notation of field errors ("spec.versions[0].schema.properties[foo]"). It returns the key
// and value of the last field on the path that exists. whole reports whether the whole path exists. For a list item,
// key and value are both the item.
func find(node *yaml.Node, path string) (key, value *yaml.Node, whole bool) {
	key, value = node, node
	for path != "" {
		k, below, rest := step(value, path)
		if below == nil {
			return key, value, false
		}
		key, value, path = k, below, rest
	}
	return key, value, true
}

// step finds the field or item of node that matches the longest prefix of path. rest is the path after that prefix.
func step(node *yaml.Node, path string) (key, value *yaml.Node, rest string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.SequenceNode:
		index, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]")
		i, err := strconv.Atoi(index)
		if !ok || err != nil || i < 0 || i >= len(node.Content) {
			return nil, nil, ""
		}
		return node.Content[i], node.Content[i], rest
	case yaml.MappingNode:
		best := -1
		for i := 0; i+1 < len(node.Content); i += 2 {
			after, ok := cutKey(path, keyOf(node.Content[i]))
			if ok && (best < 0 || len(after) < len(rest)) {
				best, rest = i, after
			}
		}
		if best >= 0 {
			return node.Content[best], node.Content[best+1], rest
		}
	}
	return nil, nil, ""
}

// cutKey removes a field name from the start of a path. The path can start with ".name", "[name]" or "name".
func cutKey(path, name string) (rest string, ok bool) {
	if rest, ok := strings.CutPrefix(path, "["+name+"]"); ok {
		return rest, true
	}
	rest, ok = strings.CutPrefix(strings.TrimPrefix(path, "."), name)
	return rest, ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// sharedFields maps the paths of fields that are equal in all versions to their paths in the first version. Errors
// report such fields at the top of spec.
var sharedFields = map[string]string{
	"spec.validation":               "spec.versions[0].schema",
	"spec.subresources":             "spec.versions[0].subresources",
	"spec.additionalPrinterColumns": "spec.versions[0].additionalPrinterColumns",
	"spec.selectableFields":         "spec.versions[0].selectableFields",
}
