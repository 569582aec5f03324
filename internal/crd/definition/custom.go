// Package definition compiles a CustomResourceDefinition to a resource.Definition. It reads everything but the schemas,
// which are compiled on first use.
package definition

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// CRDPrefix is the prefix of the storage keys of CustomResourceDefinitions.
const CRDPrefix = "/registry/apiextensions.k8s.io/customresourcedefinitions/"

// customVerbs holds the verbs of custom kinds in upstream's order for discovery.
var customVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}

// FromCRD compiles the record of a stored CRD to a Definition, which shares the record's bytes. It reads all fields
// except the schemas, which are compiled on first use. It returns nil for an invalid CRD that lacks a group, a
// plural or a storage version.
//
// Only an established CRD has served versions. Its names are the accepted names. A CRD that is not established has
// the names in its spec.
func FromCRD(r *storage.Record) *resource.Definition {
	js := r.Value
	h := readCRDHeader(js)
	if h.group == "" || h.names.Plural == "" {
		return nil
	}
	d := &resource.Definition{
		Group:                 h.group,
		Names:                 h.names,
		Namespaced:            h.namespaced,
		Prefix:                "/registry/" + h.group + "/" + h.names.Plural + "/",
		Verbs:                 customVerbs,
		Routing:               resource.HandlerPerKind,
		Unstructured:          true,
		Terminating:           h.terminating,
		PreserveUnknownFields: h.preserve,
		Custom: &resource.Custom{
			Key: r.Key, Revision: r.Modified,
			Migrating:             h.migrating,
			ConversionUnavailable: h.unreachable, Conversion: h.conversion(),
			SpecHash: sync.OnceValue(func() uint64 { return specHash(js, string(h.declared)) }),
			Accepted: h.accepted,
		},
	}
	if h.established && h.accepted.Plural == h.names.Plural && h.accepted.Kind != "" {
		d.Names = h.accepted
	}
	for i := range h.versions {
		v := h.version(d, &h.versions[i])
		d.Versions = append(d.Versions, v)
		if h.versions[i].storage {
			d.Storage = v
		}
	}
	if d.Storage == nil {
		return nil
	}
	slices.SortStableFunc(d.Versions, func(a, b *resource.Version) int {
		return version.CompareKubeAwareVersionStrings(b.GroupVersion.Version, a.GroupVersion.Version)
	})
	return d
}

var specSeed = maphash.MakeSeed()

func specHash(crd []byte, declared string) uint64 {
	spec, _ := object.Field(crd, "spec")
	return maphash.Bytes(specSeed, spec) ^ maphash.String(specSeed, declared)
}

func (h *crdHeader) version(d *resource.Definition, vh *versionHeader) *resource.Version {
	v := &resource.Version{
		Definition:   d,
		GroupVersion: schema.GroupVersion{Group: h.group, Version: vh.name},
		APIVersion:   h.group + "/" + vh.name,
		Served:       vh.served && h.established,
		Deprecated:   vh.deprecated,
		Columns:      defaultColumns(),
		Status:       vh.status,
		Scale:        vh.scale,
	}
	if vh.deprecated {
		v.DeprecationWarning = vh.warning
		if !vh.hasWarning {
			v.DeprecationWarning = h.defaultDeprecationWarning(d.Names.Kind, vh.name)
		}
	}
	if len(vh.columns) > 0 {
		v.Columns = compileColumns(vh.columns)
	}
	for _, path := range vh.selectable {
		field := resource.SelectableField{Name: strings.TrimPrefix(path, "."), Path: fieldNames(path)}
		v.SelectableFields = append(v.SelectableFields, field)
	}
	setSchemas(v, vh.schema, h.preserve)
	return v
}

// setSchemas sets the functions that compile the schema on first use. raw points into the record.
func setSchemas(v *resource.Version, raw string, preserveUnknownFields bool) {
	v.OpenAPIV3Schema = func() []byte {
		if raw == "" {
			return nil
		}
		return bytesOf(raw)
	}
	compiled := &compiledSchema{raw: raw, preserveUnknownFields: preserveUnknownFields}
	v.Schema = compiled.get
	v.Parseable = func() (typed.ParseableType, error) {
		s, err := compiled.get()
		if err != nil {
			return typed.ParseableType{}, err
		}
		return s.Parseable()
	}
}

// bytesOf returns s as bytes without copying. s is a part of a record's bytes. The result must not be modified.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// defaultDeprecationWarning returns the warning for a deprecated version that specifies no warning.
func (h *crdHeader) defaultDeprecationWarning(kind, name string) string {
	best := ""
	for i := range h.versions {
		v := &h.versions[i]
		if !v.served || v.deprecated || version.CompareKubeAwareVersionStrings(name, v.name) >= 0 {
			continue
		}
		if best == "" || version.CompareKubeAwareVersionStrings(best, v.name) < 0 {
			best = v.name
		}
	}
	text := h.group + "/" + name + " " + kind + " is deprecated"
	if best != "" {
		text += "; use " + h.group + "/" + best + " " + kind
	}
	return text
}
