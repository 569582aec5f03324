package check

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
)

// addRejection adds a finding for each cause in the error with which a server rejects d.
func (c *checker) addRejection(d *document, err error) {
	var unknown unknownKind
	var version unservedVersion
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return
	case errors.As(err, &unknown):
		reason := "no CustomResourceDefinition for " + unknown.String() + " in the files: add the file that contains it"
		if c.rejected[unknown.GroupKind] {
			reason = "its CustomResourceDefinition is invalid"
		}
		c.add(d, Warning, "NotChecked", "kind", reason)
		return
	case errors.As(err, &version):
		c.add(d, Error, "NotFound", "apiVersion", version.Error())
		return
	case !errors.As(err, &status):
		c.add(d, Error, "Refused", "", err.Error())
		return
	}
	result := status.Status()
	if result.Details == nil || len(result.Details.Causes) == 0 {
		c.decodeError(d, string(result.Reason), result.Message)
		return
	}
	for _, cause := range result.Details.Causes {
		if cause.Field == "<nil>" && strings.Contains(cause.Message, "some validation rules were not checked") {
			c.add(d, Note, "NotChecked", "", "rules were not evaluated because of other errors")
			continue
		}
		c.add(d, Error, strings.TrimPrefix(string(cause.Type), "FieldValue"), cause.Field, cause.Message)
	}
}

// warnings adds a finding for each warning of a server.
func (c *checker) warnings(d *document, warnings []string) {
	for _, w := range warnings {
		what, rest, _ := strings.Cut(w, ` "`)
		value, err := strconv.Unquote(`"` + rest)
		switch {
		case err == nil && what == "unknown field":
			c.add(d, Warning, "Pruned", value, "the field is not in the schema and is dropped")
		case err == nil && what == "duplicate field":
			c.add(d, Warning, "Duplicate", value, "the field occurs twice: the last value is used")
		case err == nil && what == "unrecognized format":
			c.formats(d, d.node, value)
		default:
			c.add(d, Warning, "Warning", "", w)
		}
	}
}

// defaulted adds a note for each value that a server adds to d from the defaults of the schema.
func (c *checker) defaulted(d *document, created object.Tree) {
	for _, key := range slices.Sorted(maps.Keys(created)) {
		if key != "metadata" {
			c.addDefaults(d, key, d.tree[key], created[key], d.tree, key)
		}
	}
}

// addDefaults compares the sent value and the stored value at one path.
func (c *checker) addDefaults(d *document, path string, sent, kept any, parent object.Tree, key string) {
	if _, ok := parent[key]; parent != nil && (!ok || sent == nil && kept != nil) {
		c.add(d, Note, "Defaulted", path, "default: "+string(object.AppendJSON(nil, kept)))
		return
	}
	switch kept := kept.(type) {
	case object.Tree:
		before, ok := sent.(object.Tree)
		if !ok {
			return
		}
		for _, k := range slices.Sorted(maps.Keys(kept)) {
			c.addDefaults(d, path+"."+k, before[k], kept[k], before, k)
		}
	case []any:
		before, _ := sent.([]any)
		for i := range min(len(before), len(kept)) {
			c.addDefaults(d, path+"["+strconv.Itoa(i)+"]", before[i], kept[i], nil, "")
		}
	}
}

// formats adds a warning for each schema below n with the unrecognized format. The server reports each format only
// once.
func (c *checker) formats(d *document, n *yaml.Node, format string) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == "format" &&
			child.Kind == yaml.ScalarNode && child.Value == format {
			key := n.Content[i-1]
			c.addAt(d, d.line+key.Line, key.Column, Finding{Severity: Warning, Reason: "Format",
				Message: "unrecognized format " + strconv.Quote(format) + " is not validated"})
		}
		c.formats(d, child, format)
	}
}
