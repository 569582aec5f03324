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
	webhook         string // raw JSON of spec.conversion.webhook
	declared        string // raw JSON of the annotation ConversionAnnotation
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
	columns                     []PrinterColumn
	selectable                  []string
}

// readCRDHeader reads the JSON of a stored CRD. Damaged JSON leaves fields empty.
func readCRDHeader(js []byte) *crdHeader {
	h := &crdHeader{}
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

func (h *crdHeader) metadata(c *object.Cursor, key string) {
	switch key {
	case "deletionTimestamp":
		h.terminating = c.Text() != ""
	case "annotations":
		c.Members(func(key string) {
			if key == resource.ConversionAnnotation {
				h.declared = c.Raw()
			}
		})
	}
}

func (h *crdHeader) conversion() (out resource.Conversion) {
	if h.strategy == "Webhook" {
		out.Webhook = h.webhook
	} else {
		out.Declared = h.declared
	}
	return out
}

func (h *crdHeader) spec(c *object.Cursor, key string) {
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

func (h *crdHeader) status(c *object.Cursor, key string) {
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
			case resource.StorageMigrating:
				h.migrating = status == "True"
			case resource.WebhookReachable:
				h.unreachable = status == "False"
			}
		})
	}
}

func readNames(c *object.Cursor) (n resource.Names) {
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
		v.scale = &resource.Scale{ByPath: true}
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

// fieldNames splits a simple JSONPath, such as ".spec.replicas", at every dot. Upstream does the same for scale
// paths.
func fieldNames(path string) []string {
	path = strings.TrimPrefix(path, ".")
	if path == "" {
		return nil
	}
	return strings.Split(path, ".")
}
