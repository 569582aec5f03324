package check

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// misfit finds what a decoder of JSON says of a value that a Go type cannot hold: what it is, and the path of the field
// without keys of maps and indices.
var misfit = regexp.MustCompile(`cannot unmarshal (\w+) .*into Go struct field \w+\.(\S+) of type`)

// undecoded reports an object that cannot be decoded, where the value stands that is of another type, if that is known.
func (c *checker) undecoded(d *document, reason, message string) {
	f := Finding{Severity: Error, Reason: reason, Message: message}
	if m := misfit.FindStringSubmatch(message); m != nil && d.node != nil {
		if key := findMisfit(d.node, d.node, strings.Split(m[2], "."), m[1]); key != nil {
			f.Path = m[2]
			c.addAt(d, d.line+key.Line, key.Column, f)
			return
		}
	}
	if m := placed.FindStringSubmatch(message); m != nil && d.node != nil {
		if key, _, whole := find(d.node, m[1]); whole {
			f.Path = m[1]
			c.addAt(d, d.line+key.Line, key.Column, f)
			return
		}
	}
	c.addAt(d, d.line+1, 1, f)
}

// placed matches the refusal of a value that its Go type cannot decode, after the path of the value.
var placed = regexp.MustCompile(`cannot be handled as a \w+: ([A-Za-z][^:]*): `)

// findMisfit finds the first value of a kind that names lead to, and returns its key or, in a list, itself. Between
// them may be elements of lists and keys of maps, which decoders leave out.
func findMisfit(key, value *yaml.Node, names []string, kind string) *yaml.Node {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if len(names) == 0 && jsonKind(value) == kind {
		return key
	}
	if value.Kind == yaml.SequenceNode {
		for _, v := range value.Content {
			if found := findMisfit(v, v, names, kind); found != nil {
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
			if found := findMisfit(k, value.Content[i+1], rest, kind); found != nil {
				return found
			}
		}
	}
	return nil
}

// jsonKind is what decoders of JSON call a value.
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

// yaml11 tells whether n is an unquoted word that YAML 1.1, which manifests are read as, takes for a boolean.
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

// keyOf is the key that n is read as.
func keyOf(n *yaml.Node) string {
	if is, ok := yaml11(n); ok {
		return strconv.FormatBool(is)
	}
	return n.Value
}

// booleans warns of the keys of d, and of the values of enums, that are read as booleans.
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
