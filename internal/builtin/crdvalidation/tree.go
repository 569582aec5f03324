package crdvalidation

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// FromTree is Read for a CRD that went through its Go type. It shares values of t, which must not change while
// the CRD is used. A CRD is nearly all schema: that is read straight from the tree, for by JSON and the type of v1
// it would be three copies.
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
	alike := true
	for i, v := range versions {
		said, text, err := validationOf(v)
		if err != nil {
			return CRD{}, err
		}
		found[i], crd.read.versions[i] = said, text
		alike = alike && (said == nil) == (found[0] == nil) &&
			(bytes.Equal(text, crd.read.versions[0]) || apiequality.Semantic.DeepEqual(said, found[0])) // to which empty is absent
	}
	if len(versions) > 0 {
		crd.read.top = crd.read.versions[0]
	}
	for i, said := range found {
		if alike { // what all versions say is said at the top
			crd.Spec.Validation = said
			break
		}
		crd.Spec.Versions[i].Schema = said
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

// withoutSchemas is t without schemas, and its versions with them. It returns false for what has
// something else where schemas should be.
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
			if !holdsSchema(v["schema"]) {
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

func holdsSchema(v any) bool {
	said, ok := v.(object.Tree)
	if !ok {
		return false
	}
	for key, v := range said {
		_, isTree := v.(object.Tree)
		if ok = ok && key == "openAPIV3Schema" && isTree; !ok {
			return false
		}
	}
	return true
}

// validationOf is what a version of a CRD says of its objects, and the JSON of the schema.
func validationOf(version object.Tree) (*apiextensions.CustomResourceValidation, []byte, error) {
	said, ok := version["schema"].(object.Tree)
	if !ok {
		return nil, nil, nil
	}
	from, ok := said["openAPIV3Schema"].(object.Tree)
	if !ok {
		return &apiextensions.CustomResourceValidation{}, nil, nil
	}
	text := object.AppendJSON(nil, from)
	out := &schema{}
	if readSchema(from, out) {
		return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: out}, text, nil
	}
	out, err := readOddSchema(text)
	return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: out}, text, err
}

// readOddSchema reads any schema, by upstream's types.
func readOddSchema(text []byte) (*schema, error) {
	var v1 apiextensionsv1.JSONSchemaProps
	out := &schema{}
	err := kjson.UnmarshalCaseSensitivePreserveInts(text, &v1)
	if err == nil {
		err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, out, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("read a schema: %w", err)
	}
	return out, nil
}

// readSchema reads a schema into out. It returns false for one with keywords or values that structural schemas do
// not have, and leaves those to readOddSchema.
func readSchema(from object.Tree, out *schema) bool {
	for key, v := range from {
		if ok, known := readText(key, v, out); known {
			if !ok {
				return false
			}
			continue
		}
		if ok, known := readNumber(key, v, out); known {
			if !ok {
				return false
			}
			continue
		}
		if !readNested(key, v, out) {
			return false
		}
	}
	return true
}

// readText reads texts and switches.
func readText(key string, v any, out *schema) (ok, known bool) {
	switch key {
	case "description":
		out.Description, ok = v.(string)
	case "type":
		out.Type, ok = v.(string)
	case "format":
		out.Format, ok = v.(string)
	case "title":
		out.Title, ok = v.(string)
	case "pattern":
		out.Pattern, ok = v.(string)
	case "nullable":
		out.Nullable, ok = v.(bool)
	case "exclusiveMaximum":
		out.ExclusiveMaximum, ok = v.(bool)
	case "exclusiveMinimum":
		out.ExclusiveMinimum, ok = v.(bool)
	case "uniqueItems":
		out.UniqueItems, ok = v.(bool)
	case "x-kubernetes-embedded-resource":
		out.XEmbeddedResource, ok = v.(bool)
	case "x-kubernetes-int-or-string":
		out.XIntOrString, ok = v.(bool)
	case "x-kubernetes-preserve-unknown-fields":
		out.XPreserveUnknownFields, ok = pointer[bool](v)
	case "x-kubernetes-list-type":
		out.XListType, ok = pointer[string](v)
	case "x-kubernetes-map-type":
		out.XMapType, ok = pointer[string](v)
	default:
		return false, false
	}
	return ok, true
}

func pointer[T any](v any) (*T, bool) {
	t, ok := v.(T)
	if !ok {
		return nil, false
	}
	return &t, true
}

func readNumber(key string, v any, out *schema) (ok, known bool) {
	switch key {
	case "maximum":
		out.Maximum, ok = float(v)
	case "minimum":
		out.Minimum, ok = float(v)
	case "multipleOf":
		out.MultipleOf, ok = float(v)
	case "maxLength":
		out.MaxLength, ok = pointer[int64](v)
	case "minLength":
		out.MinLength, ok = pointer[int64](v)
	case "maxItems":
		out.MaxItems, ok = pointer[int64](v)
	case "minItems":
		out.MinItems, ok = pointer[int64](v)
	case "maxProperties":
		out.MaxProperties, ok = pointer[int64](v)
	case "minProperties":
		out.MinProperties, ok = pointer[int64](v)
	default:
		return false, false
	}
	return ok, true
}

func float(v any) (*float64, bool) {
	if i, ok := v.(int64); ok {
		f := float64(i)
		return &f, true
	}
	return pointer[float64](v)
}

// readNested reads lists, values and schemas.
func readNested(key string, v any, out *schema) (ok bool) {
	switch key {
	case "required":
		out.Required, ok = texts(v)
	case "x-kubernetes-list-map-keys":
		out.XListMapKeys, ok = texts(v)
	case "default":
		value := apiextensions.JSON(v)
		out.Default, ok = &value, v != nil
	case "example":
		value := apiextensions.JSON(v)
		out.Example, ok = &value, v != nil
	case "enum":
		var all []any
		all, ok = v.([]any)
		out.Enum = make([]apiextensions.JSON, len(all))
		for i := range all {
			out.Enum[i] = all[i]
		}
	case "items":
		var s *schema
		s, ok = readOne(v)
		out.Items = &apiextensions.JSONSchemaPropsOrArray{Schema: s}
	case "not":
		out.Not, ok = readOne(v)
	case "allOf":
		out.AllOf, ok = readList(v)
	case "anyOf":
		out.AnyOf, ok = readList(v)
	case "oneOf":
		out.OneOf, ok = readList(v)
	case "properties":
		out.Properties, ok = readNamed(v)
	case "additionalProperties":
		out.AdditionalProperties, ok = readAdditional(v)
	case "x-kubernetes-validations":
		out.XValidations, ok = readRules(v)
	}
	return ok
}

func texts(v any) ([]string, bool) {
	list, ok := v.([]any)
	out := make([]string, len(list))
	for i := range list {
		text, isText := list[i].(string)
		out[i], ok = text, ok && isText
	}
	return out, ok
}

func readOne(v any) (*schema, bool) {
	t, ok := v.(object.Tree)
	if !ok {
		return nil, false
	}
	out := &schema{}
	return out, readSchema(t, out)
}

func readList(v any) ([]schema, bool) {
	list, ok := v.([]any)
	out := make([]schema, len(list))
	for i := range list {
		t, isTree := list[i].(object.Tree)
		ok = ok && isTree && readSchema(t, &out[i])
	}
	return out, ok
}

func readNamed(v any) (map[string]schema, bool) {
	t, ok := v.(object.Tree)
	out := make(map[string]schema, len(t))
	for name, v := range t {
		below, isTree := v.(object.Tree)
		var s schema
		if !isTree || !readSchema(below, &s) {
			return nil, false
		}
		out[name] = s
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

func readRules(v any) (apiextensions.ValidationRules, bool) {
	list, ok := v.([]any)
	out := make(apiextensions.ValidationRules, len(list))
	for i := range list {
		t, isTree := list[i].(object.Tree)
		ok = ok && isTree
		for key, v := range t {
			ok = ok && readRule(key, v, &out[i])
		}
	}
	return out, ok
}

func readRule(key string, v any, out *apiextensions.ValidationRule) (ok bool) {
	switch key {
	case "rule":
		out.Rule, ok = v.(string)
	case "message":
		out.Message, ok = v.(string)
	case "messageExpression":
		out.MessageExpression, ok = v.(string)
	case "fieldPath":
		out.FieldPath, ok = v.(string)
	case "optionalOldSelf":
		out.OptionalOldSelf, ok = pointer[bool](v)
	case "reason":
		var reason string
		reason, ok = v.(string)
		out.Reason = (*apiextensions.FieldValueErrorReason)(&reason)
	}
	return ok
}
