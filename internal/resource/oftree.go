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

// ofTree is what is read of the JSON of t; strict lists the unknown fields, and err is worded as encoding/json words it.
func (g *GoType) ofTree(t object.Tree) (obj runtime.Object, strict []error, err error) {
	obj = g.New()
	v := reflect.ValueOf(obj).Elem()
	if set(v, t, value.TypeReflectEntryOf(v.Type())) {
		return obj, nil, nil
	}
	obj = g.New()
	strict, err = kjson.UnmarshalStrict(object.AppendJSON(nil, t), obj)
	return obj, strict, err
}

// set gives v, which is zero, the value of a part of a tree; entry is that of v's type. It reports whether in fits exactly: no
// unknown field, nothing of another type or out of range. What does not, only the decoder of JSON can tell what is wrong with.
func set(v reflect.Value, in any, entry *value.TypeReflectCacheEntry) bool {
	if entry.CanConvertFromUnstructured() {
		return unmarshal(v.Addr().Interface().(json.Unmarshaler), in)
	}
	if in == nil {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return set(v.Elem(), in, value.TypeReflectEntryOf(v.Type().Elem()))
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
	if at, ok := to.(*metav1.Time); ok && isText { // the most frequent by far
		parsed, err := time.Parse(time.RFC3339, text)
		at.Time = parsed.Local()
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
		if f == nil || !set(f.GetFrom(v), in, f.TypeEntry) {
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
		if !set(out, in, entry) {
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
		ok = ok && set(v.Index(i), in, entry)
	}
	return ok
}
