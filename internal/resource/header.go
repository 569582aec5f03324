package resource

import (
	"strings"

	"github.com/trellis-k8s/trellis/internal/object"
)

// header is what is read of every CRD as soon as it is seen: all but the schemas,
// in one pass over its bytes. The strings point into them.
type header struct {
	group           string
	names, accepted Names
	namespaced      bool
	preserve        bool // spec.preserveUnknownFields
	established     bool
	terminating     bool
	migrating       bool
	unreachable     bool
	strategy        string
	webhook         string // raw JSON of spec.conversion.webhook
	declared        string // raw JSON of the annotation
	versions        []versionHeader
}

type versionHeader struct {
	name                        string
	served, storage, deprecated bool
	warning                     string
	hasWarning                  bool
	schema                      string // raw JSON of openAPIV3Schema, "" if there is none
	status                      bool
	scale                       *Scale
	columns                     []printerColumn
	selectable                  []string
}

// readHeader reads the JSON of a stored CRD. Damage leaves fields empty.
func readHeader(js []byte) *header {
	h := &header{}
	c := object.NewCursor(js)
	c.Members(func(key string) {
		switch key {
		case "metadata":
			c.Members(func(key string) { h.metadata(c, key) })
		case "spec":
			c.Members(func(key string) { h.spec(c, key) })
		case "status":
			c.Members(func(key string) { h.status(c, key) })
		}
	})
	return h
}

func (h *header) metadata(c *object.Cursor, key string) {
	switch key {
	case "deletionTimestamp":
		h.terminating = c.Text() != ""
	case "annotations":
		c.Members(func(key string) {
			if key == ConversionAnnotation {
				h.declared = c.Raw()
			}
		})
	}
}

func (h *header) conversion() (out Conversion) {
	if h.strategy == "Webhook" {
		out.Webhook = h.webhook
	} else {
		out.Declared = h.declared
	}
	return out
}

func (h *header) spec(c *object.Cursor, key string) {
	switch key {
	case "group":
		h.group = c.Text()
	case "names":
		h.names = readNames(c)
	case "scope":
		h.namespaced = c.Text() == "Namespaced"
	case "preserveUnknownFields":
		h.preserve = c.Bool()
	case "conversion":
		c.Members(func(key string) {
			switch key {
			case "strategy":
				h.strategy = c.Text()
			case "webhook":
				h.webhook = c.Raw()
			}
		})
	case "versions":
		c.Elements(func(int) {
			v := versionHeader{}
			c.Members(func(key string) { v.read(c, key) })
			h.versions = append(h.versions, v)
		})
	}
}

func (h *header) status(c *object.Cursor, key string) {
	switch key {
	case "acceptedNames":
		h.accepted = readNames(c)
	case "conditions":
		c.Elements(func(int) {
			var condition, status string
			c.Members(func(key string) {
				switch key {
				case "type":
					condition = c.Text()
				case "status":
					status = c.Text()
				}
			})
			switch condition {
			case "Established":
				h.established = status == "True"
			case "Terminating":
				h.terminating = h.terminating || status == "True"
			case StorageMigrating:
				h.migrating = status == "True"
			case WebhookReachable:
				h.unreachable = status == "False"
			}
		})
	}
}

func readNames(c *object.Cursor) (n Names) {
	c.Members(func(key string) {
		switch key {
		case "plural":
			n.Plural = c.Text()
		case "singular":
			n.Singular = c.Text()
		case "kind":
			n.Kind = c.Text()
		case "listKind":
			n.ListKind = c.Text()
		case "shortNames":
			n.ShortNames = c.Texts()
		case "categories":
			n.Categories = c.Texts()
		}
	})
	return n
}

func (v *versionHeader) read(c *object.Cursor, key string) {
	switch key {
	case "name":
		v.name = c.Text()
	case "served":
		v.served = c.Bool()
	case "storage":
		v.storage = c.Bool()
	case "deprecated":
		v.deprecated = c.Bool()
	case "deprecationWarning":
		v.hasWarning = c.Kind() == '"'
		v.warning = c.Text()
	case "schema":
		c.Members(func(key string) {
			if key == "openAPIV3Schema" && c.Kind() == '{' {
				v.schema = c.Raw()
			}
		})
	case "subresources":
		c.Members(func(key string) { v.subresource(c, key) })
	case "additionalPrinterColumns":
		v.columns = readPrinterColumns(c)
	case "selectableFields":
		c.Elements(func(int) {
			c.Members(func(key string) {
				if key == "jsonPath" {
					v.selectable = append(v.selectable, c.Text())
				}
			})
		})
	}
}

func (v *versionHeader) subresource(c *object.Cursor, key string) {
	if c.Kind() != '{' {
		return
	}
	switch key {
	case "status":
		v.status = true
	case "scale":
		v.scale = &Scale{}
		c.Members(func(key string) {
			switch key {
			case "specReplicasPath":
				v.scale.SpecReplicas = fieldNames(c.Text())
			case "statusReplicasPath":
				v.scale.StatusReplicas = fieldNames(c.Text())
			case "labelSelectorPath":
				v.scale.LabelSelector = fieldNames(c.Text())
			}
		})
	}
}

// fieldNames splits a simple JSONPath (".spec.replicas"), as upstream does for scale paths:
// at every dot.
func fieldNames(path string) []string {
	path = strings.TrimPrefix(path, ".")
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}
