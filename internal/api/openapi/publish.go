package openapi

import "github.com/trellis-k8s/trellis/internal/object"

const (
	objectMeta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	listMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
	typeMeta   = "io.k8s.apimachinery.pkg.apis.meta.v1.TypeMeta"

	apiConventions     = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	embeddedAPIVersion = "apiVersion defines the versioned schema of this representation of an object. " +
		"More info: " + apiConventions + "#resources"
	embeddedKind = "kind is a string value representing the type of this object. In CamelCase. " +
		"More info: " + apiConventions + "#types-kinds"
)

// edition is a version of OpenAPI.
type edition int

const (
	v2 edition = 2
	v3 edition = 3
)

// refPrefix returns the prefix of references to schemas in a document.
func (e edition) refPrefix() string {
	if e == v2 {
		return "#/definitions/"
	}
	return "#/components/schemas/"
}

// appendRef appends a reference to a schema. If model is "", it appends the schema of a string.
func (e edition) appendRef(dst []byte, model string) []byte {
	if model == "" {
		return append(dst, `{"type":"string"}`...)
	}
	dst = append(dst, `{"$ref":`...)
	dst = object.AppendString(dst, e.refPrefix()+model)
	return append(dst, '}')
}

// appendDescribedRef appends a reference with its own description, for which v3 needs allOf.
func (e edition) appendDescribedRef(dst []byte, model, description string) []byte {
	if e == v2 {
		dst = append(dst, `{"$ref":`...)
		dst = object.AppendString(dst, e.refPrefix()+model)
	} else {
		dst = append(dst, `{"allOf":[`...)
		dst = e.appendRef(dst, model)
		dst = append(dst, ']')
	}
	dst = append(dst, `,"description":`...)
	dst = object.AppendString(dst, description)
	return append(dst, '}')
}

func appendStringType(dst []byte, description string) []byte {
	dst = append(dst, `{"description":`...)
	dst = object.AppendString(dst, description)
	return append(dst, `,"type":"string"}`...)
}

// members appends the members of one JSON object.
type members struct {
	dst        []byte
	hasMembers bool
}

// key starts a member. The caller appends its value to dst.
func (m *members) key(name string) {
	if m.hasMembers {
		m.dst = append(m.dst, ',')
	}
	m.hasMembers = true
	m.dst = append(m.dst, '"')
	m.dst = append(m.dst, name...)
	m.dst = append(m.dst, `":`...)
}

func (m *members) raw(name, value string) {
	m.key(name)
	m.dst = append(m.dst, value...)
}
