package robustness_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// isScalar reports whether t is encoded as one value. Such a type can be a struct or a slice in Go.
func isScalar(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[metav1.Duration](),
		reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString]():
		return true
	}
	_, custom := reflect.PointerTo(t).MethodByName("UnmarshalJSON")
	return custom && t.Kind() != reflect.Slice || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// collectionField is a list or map field at any depth of a Go type.
type collectionField struct {
	indices []int // indices of struct fields on the path; pointers, lists and maps on the path have none
	name    string
	owner   string // name of the Go type and its field
}

// maxRecursion is the number of times that a type may contain itself on the path to a field. The schema of a CRD is
// such a type.
const maxRecursion = 1

// collectionFields returns all list and map fields of t, and those in their items.
func collectionFields(t reflect.Type) (out []collectionField) {
	seen := map[reflect.Type]int{}
	var visit func(t reflect.Type, p collectionField)
	visit = func(t reflect.Type, p collectionField) {
		for {
			if isScalar(t) {
				return
			}
			switch t.Kind() {
			case reflect.Slice, reflect.Map:
				// server-side apply has separate limits and tests
				if t.Elem() == reflect.TypeFor[metav1.ManagedFieldsEntry]() {
					return
				}
				out = append(out, p)
				p.name += "[*]"
				t = t.Elem()
				continue
			case reflect.Pointer:
				t = t.Elem()
				continue
			}
			break
		}
		if t.Kind() != reflect.Struct || seen[t] > maxRecursion {
			return
		}
		seen[t]++
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.PkgPath != "" || name == "-" {
				continue
			}
			next := collectionField{append(slices.Clone(p.indices), i), p.name, t.String() + "." + f.Name}
			if !strings.Contains(options, "inline") && name != "" {
				next.name = strings.TrimPrefix(p.name+"."+name, ".")
			}
			visit(f.Type, next)
		}
		seen[t]--
	}
	visit(t, collectionField{})
	return out
}

// visit calls f with the list or map at p in obj. It creates missing pointers, items and entries on the path.
func (p collectionField) visit(obj reflect.Value, f func(reflect.Value)) {
	visitPath(obj, p.indices, f)
}

// visitPath follows the field indices from v and calls f with the value at the end.
func visitPath(v reflect.Value, steps []int, f func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		visitPath(v.Elem(), steps, f)
		return
	case reflect.Slice:
		if len(steps) == 0 {
			break
		}
		if v.Len() == 0 {
			v.Set(reflect.Append(v, newFilled(v.Type().Elem(), "", 0)))
		}
		visitPath(v.Index(0), steps, f)
		return
	case reflect.Map:
		if len(steps) == 0 {
			break
		}
		key, item := newFilled(v.Type().Key(), "", 0), reflect.New(v.Type().Elem()).Elem()
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		} else if keys := v.MapKeys(); len(keys) > 0 {
			key = keys[0]
			item.Set(v.MapIndex(key))
		}
		visitPath(item, steps, f)
		v.SetMapIndex(key, item)
		return
	}
	if len(steps) == 0 {
		f(v)
		return
	}
	visitPath(v.Field(steps[0]), steps[1:], f)
}

// variant is a way to fill the items that are added.
type variant string

const (
	empty    variant = "empty"    // items are zero values
	equal    variant = "equal"    // all items are the same, and every string and pointer is set
	distinct variant = "distinct" // items differ in names and keys, and most are valid
)

var variants = []variant{distinct, equal, empty}

// grow replaces a list or map with one of n items. Keys of maps always differ.
func grow(v reflect.Value, name string, kind variant, n int) {
	item := func(i int) reflect.Value {
		switch kind {
		case empty:
			return reflect.Zero(v.Type().Elem())
		case equal:
			out := reflect.New(v.Type().Elem()).Elem()
			fill(out, name, 1, true)
			return out
		}
		return newFilled(v.Type().Elem(), name, i)
	}
	if v.Kind() == reflect.Map {
		m := reflect.MakeMapWithSize(v.Type(), n)
		for i := range n {
			m.SetMapIndex(newFilled(v.Type().Key(), "", i), item(i))
		}
		v.Set(m)
		return
	}
	s := reflect.MakeSlice(v.Type(), n, n)
	for i := range n {
		s.Index(i).Set(item(i))
	}
	v.Set(s)
}

// newFilled returns a value of type t that fill has set for a field with the given name.
func newFilled(t reflect.Type, name string, i int) reflect.Value {
	v := reflect.New(t).Elem()
	fill(v, name, i, false)
	return v
}

// fill sets v and its fields to values that most fields with the given name accept. If all is set, it also sets
// pointers and strings of enumerated types.
func fill(v reflect.Value, name string, i int, all bool) {
	switch value := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*value = *resource.NewQuantity(int64(i+1), resource.DecimalSI)
		return
	case *intstr.IntOrString:
		*value = intstr.FromInt32(int32(i%60000 + 1))
		return
	}
	if isScalar(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		if text, known := valid(name, i); known || all || v.Type() == reflect.TypeFor[string]() || name == "" {
			v.SetString(text)
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(i%60000 + 1))
	case reflect.Slice: // for lists of lists of strings
		if v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.Append(v, newFilled(v.Type().Elem(), name, i)))
		}
	case reflect.Pointer:
		if all && v.Type().Elem().Kind() != reflect.Struct {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), name, i, all)
		}
	case reflect.Struct:
		for f := range v.NumField() {
			if v.Type().Field(f).PkgPath == "" {
				fill(v.Field(f), strings.ToLower(v.Type().Field(f).Name), i, all)
			}
		}
	}
}

// valid returns the i-th value for a string field with the given name. known reports whether the value is also
// valid if the field permits only a few values.
func valid(name string, i int) (value string, known bool) {
	switch {
	case name == "operator":
		return "Exists", true
	case name == "effect":
		return "NoSchedule", true
	case name == "status":
		return "True", true
	case name == "conditionType" || name == "type":
		return fmt.Sprint("A", i), true
	case strings.HasSuffix(name, "ip"), strings.HasSuffix(name, "ips"), name == "addresses":
		return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), false
	case strings.HasSuffix(name, "cidr"), strings.HasSuffix(name, "cidrs"):
		return fmt.Sprintf("%d.%d.%d.0/24", i>>16&255+1, i>>8&255, i&255), false
	case strings.HasSuffix(name, "path"):
		return fmt.Sprint("/a", i), false
	case name == "finalizers":
		return fmt.Sprint("example.com/a", i), false
	case name == "expression":
		return fmt.Sprint(i, " > 0"), false
	}
	return fmt.Sprint("a", i), false
}
