package resource

import (
	"encoding/base64"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/trellis-k8s/trellis/internal/object"
)

// This file replaces apimachinery's UnstructuredConverter. That converter makes the maps of a tree large enough for
// all fields of a struct, but most fields of an object are not set.

// ToTree converts an object of a Go type to the tree of its JSON. The tree shares no memory that can be modified
// with obj.
func ToTree(obj runtime.Object) (object.Tree, error) {
	v := reflect.ValueOf(obj).Elem()
	t, err := valueTree(v, value.TypeReflectEntryOf(v.Type()))
	if err != nil {
		return nil, fmt.Errorf("resource: convert %T to tree: %w", obj, err)
	}
	return t.(object.Tree), nil // the tree of a struct is an object.Tree
}

// valueTree returns v as a value of a tree. entry is the cache entry of v's type.
func valueTree(v reflect.Value, entry *value.TypeReflectCacheEntry) (any, error) {
	if entry.CanConvertToUnstructured() {
		out, err := entry.ToUnstructured(v)
		return object.NormalizeNumbers(out), err
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return object.NormalizeNumbers(v.Float()), nil
	case reflect.Struct:
		return structTree(v, entry)
	}
	if v.Kind() != reflect.Array && v.IsNil() {
		return nil, nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		return valueTree(v.Elem(), value.TypeReflectEntryOf(v.Type().Elem()))
	case reflect.Map:
		return mapTree(v)
	case reflect.Slice:
		return sliceTree(v)
	}
	return nil, fmt.Errorf("no tree for Go type %v", v.Type())
}

func structTree(v reflect.Value, entry *value.TypeReflectCacheEntry) (any, error) {
	var buffer [16]*value.FieldCacheEntry
	present := buffer[:0]
	for _, f := range entry.OrderedFields() {
		if !f.CanOmit(f.GetFrom(v)) {
			present = append(present, f)
		}
	}
	t := make(object.Tree, len(present))
	for _, f := range present {
		out, err := valueTree(f.GetFrom(v), f.TypeEntry)
		if err != nil {
			return nil, err
		}
		t[f.JsonName] = out
	}
	return t, nil
}

func mapTree(v reflect.Value) (any, error) {
	t := make(object.Tree, v.Len())
	if texts, ok := v.Interface().(map[string]string); ok {
		for key, text := range texts {
			t[key] = text
		}
		return t, nil
	}
	entry := value.TypeReflectEntryOf(v.Type().Elem())
	for key, in := range v.Seq2() {
		addressable := reflect.New(in.Type()).Elem() // pointer methods need an addressable value
		addressable.Set(in)
		out, err := valueTree(addressable, entry)
		if err != nil {
			return nil, err
		}
		t[key.String()] = out
	}
	return t, nil
}

func sliceTree(v reflect.Value) (any, error) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return base64.StdEncoding.EncodeToString(v.Bytes()), nil
	}
	list := make([]any, v.Len())
	entry := value.TypeReflectEntryOf(v.Type().Elem())
	for i := range list {
		out, err := valueTree(v.Index(i), entry)
		if err != nil {
			return nil, err
		}
		list[i] = out
	}
	return list, nil
}
