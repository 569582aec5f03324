package check

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// position is where the field of a path stands in the file, or the nearest one around it
// that the file has. Lines and columns count from 1.
func (d *document) position(path string) (line, column int) {
	if d.node == nil {
		return d.line + 1, 1
	}
	key, _, whole := find(d.node, path)
	if own, ok := ownPath(path); !whole && ok {
		key, _, _ = find(d.node, own)
	}
	return d.line + key.Line, key.Column
}

// find follows a path in the notation of field errors ("spec.versions[0].schema.properties[foo]").
// It returns the last field that there is, key and value; the key of an element is the element.
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

// step takes the longest first part of a path that node has.
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

// cutKey takes the name of a field off a path, as ".name", "[name]" or at its beginning.
func cutKey(path, name string) (rest string, ok bool) {
	if rest, ok := strings.CutPrefix(path, "["+name+"]"); ok {
		return rest, true
	}
	rest, ok = strings.CutPrefix(strings.TrimPrefix(path, "."), name)
	return rest, ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// shared are the fields that errors name at the top of spec when they are the same in all versions.
var shared = map[string]string{
	"spec.validation":               "spec.versions[0].schema",
	"spec.subresources":             "spec.versions[0].subresources",
	"spec.additionalPrinterColumns": "spec.versions[0].additionalPrinterColumns",
	"spec.selectableFields":         "spec.versions[0].selectableFields",
}

// ownPath is where a manifest has a field that all versions of a CRD share.
func ownPath(path string) (own string, ok bool) {
	for prefix, place := range shared {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return place + rest, true
		}
	}
	return "", false
}
