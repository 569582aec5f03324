package resource

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// fromTree converts a tree to the Go type. The result equals the result of decoding the JSON of t. strict holds the
// unknown fields. The error equals that of encoding/json.
func (g *GoType) fromTree(t object.Tree) (obj runtime.Object, strict []error, err error) {
	obj = g.New()
	v := reflect.ValueOf(obj).Elem()
	if setValue(v, t, value.TypeReflectEntryOf(v.Type())) {
		return obj, nil, nil
	}
	obj = g.New()
	strict, err = kjson.UnmarshalStrict(object.AppendJSON(nil, t), obj)
	return obj, strict, err
}

// setValue sets v to a value of a tree. v must have its zero value. entry is the cache entry of v's type. setValue
// reports whether the value fits exactly. It returns false for unknown fields, wrong types and numbers out of
// range. The caller then uses the JSON decoder, which finds the cause.
func setValue(v reflect.Value, in any, entry *value.TypeReflectCacheEntry) bool {
	if entry.CanConvertFromUnstructured() {
		return unmarshal(v.Addr().Interface().(json.Unmarshaler), in)
	}
	if in == nil {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return setValue(v.Elem(), in, value.TypeReflectEntryOf(v.Type().Elem()))
	case reflect.Struct:
		t, ok := in.(object.Tree)
		return ok && setStruct(v, t, entry)
	case reflect.Map:
		t, ok := in.(object.Tree)
		return ok && setMap(v, t)
	case reflect.Slice:
		return setSlice(v, in)
	}
	return setScalar(v, in)
}

func unmarshal(to json.Unmarshaler, in any) bool {
	text, isText := in.(string)
	if t, ok := to.(*metav1.Time); ok && isText { // by far the most frequent case
		parsed, err := time.Parse(time.RFC3339, text)
		t.Time = parsed.Local()
		return err == nil
	}
	return to.UnmarshalJSON(object.AppendJSON(nil, in)) == nil
}

func setScalar(v reflect.Value, in any) bool {
	switch in := in.(type) {
	case string:
		if v.Kind() == reflect.String {
			v.SetString(in)
			return true
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(in)
			return true
		}
	case int64:
		if v.CanInt() && !v.OverflowInt(in) {
			v.SetInt(in)
			return true
		}
	}
	return false
}

func setStruct(v reflect.Value, t object.Tree, entry *value.TypeReflectCacheEntry) bool {
	fields := entry.Fields()
	for key, in := range t {
		f := fields[key]
		if f == nil || !setValue(f.GetFrom(v), in, f.TypeEntry) {
			return false
		}
	}
	return true
}

func setMap(v reflect.Value, t object.Tree) bool {
	v.Set(reflect.MakeMapWithSize(v.Type(), len(t)))
	elem := v.Type().Elem()
	entry := value.TypeReflectEntryOf(elem)
	texts, _ := v.Interface().(map[string]string)
	for key, in := range t {
		if text, ok := in.(string); ok && texts != nil {
			texts[key] = text
			continue
		}
		out := reflect.New(elem).Elem()
		if !setValue(out, in, entry) {
			return false
		}
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), out)
	}
	return true
}

func setSlice(v reflect.Value, in any) bool {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		text, ok := in.(string)
		data, err := base64.StdEncoding.DecodeString(text)
		v.SetBytes(data)
		return ok && err == nil
	}
	list, ok := in.([]any)
	v.Set(reflect.MakeSlice(v.Type(), len(list), len(list)))
	entry := value.TypeReflectEntryOf(v.Type().Elem())
	for i, in := range list {
		ok = ok && setValue(v.Index(i), in, entry)
	}
	return ok
}
