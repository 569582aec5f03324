package crdvalidation

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// FromTree does the same as Read for a CRD that was decoded by its Go type. The CRD shares values with t, so t must
// not change while the CRD is used. Most of a CRD consists of schemas. FromTree reads them directly from the tree,
// because encoding and decoding would create three copies.
func FromTree(t object.Tree) (CRD, error) {
	shell, versions, ok := withoutSchemas(withoutManagedFields(t))
	if !ok {
		return Read(object.AppendJSON(nil, t))
	}
	crd, err := Read(object.AppendJSON(nil, shell))
	if err != nil {
		return CRD{}, err
	}
	crd.read = &schemaJSON{versions: make([][]byte, len(versions))}
	found := make([]*apiextensions.CustomResourceValidation, len(versions))
	same := true
	for i, v := range versions {
		validation, text, err := validationOf(v)
		if err != nil {
			return CRD{}, err
		}
		found[i], crd.read.versions[i] = validation, text
		same = same && (validation == nil) == (found[0] == nil) &&
			// treats empty as missing
			(bytes.Equal(text, crd.read.versions[0]) || apiequality.Semantic.DeepEqual(validation, found[0]))
	}
	if len(versions) > 0 {
		crd.read.top = crd.read.versions[0]
	}
	for i, validation := range found {
		if same { // in the internal form, a schema that all versions share is at the top
			crd.Spec.Validation = validation
			break
		}
		crd.Spec.Versions[i].Schema = validation
	}
	return crd, nil
}

func withoutManagedFields(t object.Tree) object.Tree {
	metadata, _ := t["metadata"].(object.Tree)
	if metadata["managedFields"] == nil {
		return t
	}
	t, metadata = maps.Clone(t), maps.Clone(metadata)
	delete(metadata, "managedFields")
	t["metadata"] = metadata
	return t
}

// withoutSchemas returns a copy of t without the schemas of its versions, and the versions with their schemas. It
// returns false if a schema is not an object.
func withoutSchemas(t object.Tree) (shell object.Tree, versions []object.Tree, ok bool) {
	shell = maps.Clone(t)
	spec, _ := t["spec"].(object.Tree)
	list, _ := spec["versions"].([]any)
	if len(list) == 0 {
		return shell, nil, true
	}
	spec, list = maps.Clone(spec), slices.Clone(list)
	for i := range list {
		v, _ := list[i].(object.Tree)
		versions = append(versions, v)
		if v["schema"] != nil {
			if !isSchemaObject(v["schema"]) {
				return nil, nil, false
			}
			v = maps.Clone(v)
			delete(v, "schema")
			list[i] = v
		}
	}
	spec["versions"], shell["spec"] = list, spec
	return shell, versions, true
}

func isSchemaObject(v any) bool {
	validation, ok := v.(object.Tree)
	if !ok {
		return false
	}
	for key, v := range validation {
		_, isTree := v.(object.Tree)
		if ok = ok && key == "openAPIV3Schema" && isTree; !ok {
			return false
		}
	}
	return true
}

// validationOf returns the schema of a version of a CRD, decoded and as JSON.
func validationOf(version object.Tree) (*apiextensions.CustomResourceValidation, []byte, error) {
	validation, ok := version["schema"].(object.Tree)
	if !ok {
		return nil, nil, nil
	}
	from, ok := validation["openAPIV3Schema"].(object.Tree)
	if !ok {
		return &apiextensions.CustomResourceValidation{}, nil, nil
	}
	text := object.AppendJSON(nil, from)
	out := &schema{}
	if readSchema(from, out) {
		return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: out}, text, nil
	}
	out, err := readAnySchema(text)
	return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: out}, text, err
}

// readAnySchema decodes any schema by upstream's types.
func readAnySchema(text []byte) (*schema, error) {
	var v1 apiextensionsv1.JSONSchemaProps
	out := &schema{}
	err := kjson.UnmarshalCaseSensitivePreserveInts(text, &v1)
	if err == nil {
		err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, out, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("decode a schema: %w", err)
	}
	return out, nil
}

// readSchema decodes a schema into out. It returns false for a schema with keywords or values that structural
// schemas do not have. The caller then uses readAnySchema.
func readSchema(from object.Tree, out *schema) bool {
	return readFields(from, reflect.ValueOf(out).Elem(), schemaFields)
}

// Fields of the internal types by their JSON names.
var (
	schemaFields = fieldsByName(reflect.TypeFor[apiextensionsv1.JSONSchemaProps](), reflect.TypeFor[schema]())
	ruleFields   = fieldsByName(reflect.TypeFor[apiextensionsv1.ValidationRule](),
		reflect.TypeFor[apiextensions.ValidationRule]())
)

// fieldsByName maps the JSON names of the fields of the type named to the indices of the corresponding fields of the
// type in.
func fieldsByName(named, in reflect.Type) map[string]int {
	all := map[string]int{}
	for i := range named.NumField() {
		name, _, _ := strings.Cut(named.Field(i).Tag.Get("json"), ",")
		if f, ok := in.FieldByName(named.Field(i).Name); ok {
			all[name] = f.Index[0]
		}
	}
	return all
}

func readFields(from object.Tree, out reflect.Value, fields map[string]int) bool {
	for key, v := range from {
		i, ok := fields[key]
		if !ok || !readField(v, out.Field(i).Addr().Interface()) {
			return false
		}
	}
	return true
}

// readField decodes a value. field is a pointer to the result.
func readField(v, field any) (ok bool) {
	switch to := field.(type) {
	case *string:
		*to, ok = v.(string)
	case *bool:
		*to, ok = v.(bool)
	case **bool:
		*to, ok = pointer[bool](v)
	case **string:
		*to, ok = pointer[string](v)
	case **int64:
		*to, ok = pointer[int64](v)
	case **float64:
		*to, ok = float(v)
	case **apiextensions.JSON:
		value := apiextensions.JSON(v)
		*to, ok = &value, v != nil
	case **apiextensions.FieldValueErrorReason:
		var reason string
		reason, ok = v.(string)
		*to = (*apiextensions.FieldValueErrorReason)(&reason)
	case **schema:
		*to, ok = readOne(v)
	case **apiextensions.JSONSchemaPropsOrArray:
		*to = &apiextensions.JSONSchemaPropsOrArray{}
		(*to).Schema, ok = readOne(v)
	case **apiextensions.JSONSchemaPropsOrBool:
		*to, ok = readAdditional(v)
	case *map[string]schema:
		*to, ok = readNamed(v)
	case *[]string:
		*to, ok = readList(v, func(v any, s *string) bool { return readField(v, s) })
	case *[]apiextensions.JSON:
		*to, ok = readList(v, func(v any, j *apiextensions.JSON) bool { *j = v; return true })
	case *[]schema:
		*to, ok = readList(v, func(v any, s *schema) bool {
			t, isTree := v.(object.Tree)
			return isTree && readSchema(t, s)
		})
	case *apiextensions.ValidationRules:
		*to, ok = readList(v, func(v any, r *apiextensions.ValidationRule) bool {
			t, isTree := v.(object.Tree)
			return isTree && readFields(t, reflect.ValueOf(r).Elem(), ruleFields)
		})
	}
	return ok
}

func pointer[T any](v any) (*T, bool) {
	t, ok := v.(T)
	if !ok {
		return nil, false
	}
	return &t, true
}

func float(v any) (*float64, bool) {
	if i, ok := v.(int64); ok {
		f := float64(i)
		return &f, true
	}
	return pointer[float64](v)
}

func readOne(v any) (*schema, bool) {
	t, ok := v.(object.Tree)
	if !ok {
		return nil, false
	}
	out := &schema{}
	return out, readSchema(t, out)
}

// readList decodes each item of a list with read.
func readList[T any](v any, read func(any, *T) bool) ([]T, bool) {
	list, ok := v.([]any)
	out := make([]T, len(list))
	for i := range list {
		ok = ok && read(list[i], &out[i])
	}
	return out, ok
}

func readNamed(v any) (map[string]schema, bool) {
	t, ok := v.(object.Tree)
	out, s := make(map[string]schema, len(t)), reusableSchema(t)
	for name, v := range t {
		below, isTree := v.(object.Tree)
		if *s = (schema{}); !isTree || !readSchema(below, s) {
			return nil, false
		}
		out[name] = *s
	}
	return out, ok
}

func readAdditional(v any) (*apiextensions.JSONSchemaPropsOrBool, bool) {
	if allows, ok := v.(bool); ok {
		return &apiextensions.JSONSchemaPropsOrBool{Allows: allows}, true
	}
	s, ok := readOne(v)
	return &apiextensions.JSONSchemaPropsOrBool{Allows: true, Schema: s}, ok
}
