package definition

import (
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// crdHeader holds the fields of a CRD, with its schemas as raw JSON. It is read in one pass over the CRD's bytes as
// soon as the CRD appears. Its strings point into these bytes.
type crdHeader struct {
	group           string
	names, accepted resource.Names
	namespaced      bool
	preserve        bool // spec.preserveUnknownFields
	established     bool
	terminating     bool
	migrating       bool
	unreachable     bool
	strategy        string
	webhook         object.Raw // raw JSON of spec.conversion.webhook
	declared        object.Raw // raw JSON of the annotation ConversionAnnotation
	versions        []versionHeader
}

type versionHeader struct {
	name                        string
	served, storage, deprecated bool
	warning                     string
	hasWarning                  bool
	schema                      string // raw JSON of openAPIV3Schema, "" if there is none
	status                      bool
	scale                       *resource.Scale
	columns                     []printerColumn
	selectable                  []string
}

// readCRDHeader reads the JSON of a stored CRD. Damaged JSON leaves fields empty.
func readCRDHeader(js []byte) *crdHeader {
	h := &crdHeader{}
	c := object.NewCursor(js)
	var deleted, scope string
	c.Fields(map[string]any{
		"metadata": func() {
			c.Fields(map[string]any{
				"deletionTimestamp": &deleted,
				"annotations":       func() { c.Fields(map[string]any{resource.ConversionAnnotation: &h.declared}) },
			})
		},
		"spec": func() {
			c.Fields(map[string]any{
				"group":                 &h.group,
				"names":                 func() { h.names = readNames(c) },
				"scope":                 &scope,
				"preserveUnknownFields": &h.preserve,
				"conversion": func() {
					c.Fields(map[string]any{"strategy": &h.strategy, "webhook": &h.webhook})
				},
				"versions": func() {
					c.Elements(func(int) { h.versions = append(h.versions, readVersion(c)) })
				},
			})
		},
		"status": func() {
			c.Fields(map[string]any{
				"acceptedNames": func() { h.accepted = readNames(c) },
				"conditions":    func() { c.Elements(func(int) { h.condition(c) }) },
			})
		},
	})
	h.namespaced = scope == "Namespaced"
	h.terminating = h.terminating || deleted != ""
	return h
}

func (h *crdHeader) condition(c *object.Cursor) {
	var name, status string
	c.Fields(map[string]any{"type": &name, "status": &status})
	switch name {
	case "Established":
		h.established = status == "True"
	case "Terminating":
		h.terminating = h.terminating || status == "True"
	case resource.StorageMigrating:
		h.migrating = status == "True"
	case resource.WebhookReachable:
		h.unreachable = status == "False"
	}
}

func (h *crdHeader) conversion() (out resource.Conversion) {
	if h.strategy == "Webhook" {
		out.Webhook = string(h.webhook)
	} else {
		out.Declared = string(h.declared)
	}
	return out
}

func readNames(c *object.Cursor) (n resource.Names) {
	c.Fields(map[string]any{"plural": &n.Plural, "singular": &n.Singular, "kind": &n.Kind, "listKind": &n.ListKind,
		"shortNames": &n.ShortNames, "categories": &n.Categories})
	return n
}

func readVersion(c *object.Cursor) (v versionHeader) {
	c.Fields(map[string]any{
		"name": &v.name, "served": &v.served, "storage": &v.storage, "deprecated": &v.deprecated,
		"deprecationWarning": func() {
			v.hasWarning = c.Kind() == '"'
			v.warning = c.Text()
		},
		"schema": func() {
			c.Fields(map[string]any{"openAPIV3Schema": func() {
				if c.Kind() == '{' {
					v.schema = c.Raw()
				}
			}})
		},
		"subresources": func() {
			c.Fields(map[string]any{
				"status": func() { v.status = c.Kind() == '{' },
				"scale":  func() { v.scale = readScale(c) },
			})
		},
		"additionalPrinterColumns": func() { v.columns = readPrinterColumns(c) },
		"selectableFields": func() {
			c.Elements(func(int) {
				var path string
				if c.Fields(map[string]any{"jsonPath": &path}); path != "" {
					v.selectable = append(v.selectable, path)
				}
			})
		},
	})
	return v
}

func readScale(c *object.Cursor) *resource.Scale {
	if c.Kind() != '{' {
		return nil
	}
	var spec, status, selector string
	c.Fields(map[string]any{"specReplicasPath": &spec, "statusReplicasPath": &status, "labelSelectorPath": &selector})
	return &resource.Scale{SpecReplicas: fieldNames(spec), StatusReplicas: fieldNames(status),
		LabelSelector: fieldNames(selector), ByPath: true}
}

// fieldNames splits a simple JSONPath, such as ".spec.replicas", at every dot. Upstream does the same for scale
// paths.
func fieldNames(path string) []string {
	path = strings.TrimPrefix(path, ".")
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}
