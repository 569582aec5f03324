package check

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// refusal reports why a server refuses d: a finding for each cause.
func (c *checker) refusal(d *document, err error) {
	var unknown unknownKind
	var version unserved
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return
	case errors.As(err, &unknown):
		why := "no CustomResourceDefinition for " + unknown.String() + " among the files: give it, too"
		if c.refused[unknown.GroupKind] {
			why = "its CustomResourceDefinition is refused"
		}
		c.add(d, Warning, "NotChecked", "kind", why)
		return
	case errors.As(err, &version):
		c.add(d, Error, "NotFound", "apiVersion", version.Error())
		return
	case !errors.As(err, &status):
		c.add(d, Error, "Refused", "", err.Error())
		return
	}
	answer := status.Status()
	if answer.Details == nil || len(answer.Details.Causes) == 0 {
		c.undecoded(d, string(answer.Reason), answer.Message)
		return
	}
	for _, cause := range answer.Details.Causes {
		if cause.Field == "<nil>" && strings.Contains(cause.Message, "some validation rules were not checked") {
			c.add(d, Note, "NotChecked", "", "rules, as other errors come first")
			continue
		}
		c.add(d, Error, reasonOf(cause), cause.Field, cause.Message)
	}
}

func reasonOf(cause metav1.StatusCause) string {
	return strings.TrimPrefix(string(cause.Type), "FieldValue")
}

// warnings reports what a client would be warned of.
func (c *checker) warnings(d *document, warnings []string) {
	for _, w := range warnings {
		if path, ok := quoted(w, "unknown field "); ok {
			c.add(d, Warning, "Pruned", path, "the schema does not know the field: it is dropped")
			continue
		}
		if path, ok := quoted(w, "duplicate field "); ok {
			c.add(d, Warning, "Duplicate", path, "the field is given twice: the last one counts")
			continue
		}
		if format, ok := quoted(w, "unrecognized format "); ok {
			c.formats(d, d.node, format)
			continue
		}
		c.add(d, Warning, "Warning", "", w)
	}
}

func quoted(text, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return "", false
	}
	out, err := strconv.Unquote(rest)
	return out, err == nil
}

// defaulted reports what a server adds to d by the defaults of its schema.
func (c *checker) defaulted(d *document, created object.Tree) {
	for _, key := range slices.Sorted(maps.Keys(created)) {
		if key != "metadata" {
			c.added(d, key, d.tree[key], created[key], d.tree, key)
		}
	}
}

// added compares what was sent with what came of it, at one path.
func (c *checker) added(d *document, path string, sent, kept any, parent object.Tree, key string) {
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
			c.added(d, path+"."+k, before[k], kept[k], before, k)
		}
	case []any:
		before, _ := sent.([]any)
		for i := range min(len(before), len(kept)) {
			c.added(d, path+"["+strconv.Itoa(i)+"]", before[i], kept[i], nil, "")
		}
	}
}

// twoTypes reports the types in the schemas of a CRD that stand beside x-kubernetes-int-or-string.
func (c *checker) twoTypes(d *document) {
	for _, v := range versionsOf(d.tree) {
		below(schemaOf(v.tree), v.path+".schema.openAPIV3Schema", func(s object.Tree, path string) {
			if typ := object.String(s, "type"); typ != "" && s["x-kubernetes-int-or-string"] == true {
				c.add(d, Warning, "Type", path+".type", "x-kubernetes-int-or-string takes integers and strings, whatever the type beside it; but a default, and a value that is applied on the server side, must be of type "+typ)
			}
		})
	}
}

// formats reports the formats of that name in the schemas of a CRD, which a server names once.
func (c *checker) formats(d *document, n *yaml.Node, name string) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == "format" && child.Kind == yaml.ScalarNode && child.Value == name {
			key := n.Content[i-1]
			c.addAt(d, d.line+key.Line, key.Column, Finding{Severity: Warning, Reason: "Format", Message: "unrecognized format " + strconv.Quote(name) + ": it is not checked"})
		}
		c.formats(d, child, name)
	}
}
