package check

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// typeErrorPattern matches the JSON decoder's error for a value of a wrong type. It captures the type of the value
// and the path of the field, which omits map keys and indices.
var typeErrorPattern = regexp.MustCompile(`cannot unmarshal (\w+) .*into Go struct field \w+\.(\S+) of type`)

// decodeError adds a finding for an object that cannot be decoded, at the position of the wrong value if it is
// known.
func (c *checker) decodeError(d *document, reason, message string) {
	f := Finding{Severity: Error, Reason: reason, Message: message}
	if m := typeErrorPattern.FindStringSubmatch(message); m != nil && d.node != nil {
		if key := findTypeError(d.node, d.node, strings.Split(m[2], "."), m[1]); key != nil {
			f.Path = m[2]
			c.addAt(d, d.line+key.Line, key.Column, f)
			return
		}
	}
	if m := valuePathPattern.FindStringSubmatch(message); m != nil && d.node != nil {
		if key, _, whole := find(d.node, m[1]); whole {
			f.Path = m[1]
			c.addAt(d, d.line+key.Line, key.Column, f)
			return
		}
	}
	c.addAt(d, d.line+1, 1, f)
}

// valuePathPattern matches the error for a value that cannot be decoded into the Go type. It captures the path of the
// value.
var valuePathPattern = regexp.MustCompile(`cannot be handled as a \w+: ([A-Za-z][^:]*): `)

// findTypeError searches value for the first value whose JSON type is kind and whose path consists of names. It
// returns the key of that value or, in a list, the item. Decoders omit list indices and map keys from paths, so the
// search skips these levels.
func findTypeError(key, value *yaml.Node, names []string, kind string) *yaml.Node {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if len(names) == 0 && jsonKind(value) == kind {
		return key
	}
	if value.Kind == yaml.SequenceNode {
		for _, v := range value.Content {
			if found := findTypeError(v, v, names, kind); found != nil {
				return found
			}
		}
		return nil
	}
	if value.Kind != yaml.MappingNode {
		return nil
	}
	for _, named := range []bool{true, false} {
		for i := 0; i+1 < len(value.Content); i += 2 {
			k, rest := value.Content[i], names
			if is := len(names) > 0 && keyOf(k) == names[0]; is != named {
				continue
			} else if is {
				rest = names[1:]
			}
			if found := findTypeError(k, value.Content[i+1], rest, kind); found != nil {
				return found
			}
		}
	}
	return nil
}

// jsonKind returns the name that JSON decoders use in errors for the type of n.
func jsonKind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "object"
	case n.Kind == yaml.SequenceNode:
		return "array"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "number"
	case "!!bool":
		return "bool"
	case "!!null":
		return "null"
	}
	if _, ok := yaml11(n); ok {
		return "bool"
	}
	return "string"
}

// yaml11 reports whether n is an unquoted word that YAML 1.1 treats as a boolean. Manifests are decoded as YAML
// 1.1.
func yaml11(n *yaml.Node) (is bool, ok bool) {
	if n.Kind != yaml.ScalarNode || n.Style != 0 {
		return false, false
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// keyOf returns the decoded form of the map key n.
func keyOf(n *yaml.Node) string {
	if is, ok := yaml11(n); ok {
		return strconv.FormatBool(is)
	}
	return n.Value
}

// booleans adds a warning for each map key and enum value below n that is decoded as a boolean.
func (c *checker) booleans(d *document, n *yaml.Node) {
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 0:
			c.boolean(d, child, "the key %[2]q")
		case n.Kind == yaml.MappingNode && n.Content[i-1].Value == "enum" && child.Kind == yaml.SequenceNode:
			for _, v := range child.Content {
				c.boolean(d, v, "%[2]s")
			}
		}
		c.booleans(d, child)
	}
}

func (c *checker) boolean(d *document, n *yaml.Node, what string) {
	if _, ok := yaml11(n); ok {
		text := fmt.Sprintf("unquoted %[1]s is read as "+what+": write %[1]q", n.Value, keyOf(n))
		c.addAt(d, d.line+n.Line, n.Column, Finding{Severity: Warning, Reason: "Boolean", Message: text})
	}
}
