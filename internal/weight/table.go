// Package weight estimates the memory that a write uses for a request body. This estimate, in bytes, is called the
// weight of the body. It depends on the body's bytes and on the Go type that the body is decoded into. The package
// must not import other packages of this module.
package weight

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// A write holds an object in several forms at once. They are the decoded object, its slices with unused capacity, the
// internal form, the JSON tree, the sets of managed fields, and the bytes to store. TestWeightsCoverWrites compares
// these constants with the measured memory of writes.
const (
	// structFactor is the memory of all Go forms of a value, as a multiple of its size.
	structFactor = 3
	// mapWeight and itemWeight are the memory of a map and of a value in a JSON tree.
	mapWeight, itemWeight = 400, 100
	// memberWeight is the additional memory of an item of a list or map. Such an item may have its own entry in
	// managed fields and its own validation errors.
	memberWeight = 1000
	// keyWeight is the additional memory of a key and its value in a map of unknown type.
	keyWeight = 300
	// textFactor is the memory of a body's text, as a multiple of its size.
	textFactor = 4
)

// Table holds the weights of a Go type and of all types in it. It is immutable.
type Table struct {
	top      *field
	envelope *node
	heaviest int64 // weight of the heaviest single value in the type
}

// node is a Go type. It holds the parts of the type by their names in each encoding. The node of a scalar type is nil.
type node struct {
	byNumber []*field          // fields of a protobuf message
	byName   map[string]*field // fields of a JSON object
	values   *field            // values of a map
	items    *field            // items of a list
	// object and list are set only for a type with its own JSON decoder. They are the forms into which it decodes a
	// JSON object and a JSON list.
	object *node
	list   *field
}

// field is a field of a node, or an item of a list or map.
type field struct {
	memory int64 // memory of one occurrence, without the fields in it
	node   *node
	packed bool // one occurrence in protobuf may hold many numbers
}

// NewTable returns the Table of a struct type.
func NewTable(t reflect.Type) *Table {
	b := builder{}
	top := b.pointer(t)
	envelope := &node{}
	envelope.number(2, top) // runtime.Unknown.Raw
	table := &Table{top: top, envelope: envelope, heaviest: top.memory}
	for _, n := range b {
		for _, f := range n.fields() {
			table.heaviest = max(table.heaviest, f.memory)
		}
	}
	return table
}

// fields returns all fields of n.
func (n *node) fields() []*field {
	var all []*field
	for _, f := range append([]*field{n.values, n.items, n.list}, n.byNumber...) {
		if f != nil {
			all = append(all, f)
		}
	}
	for _, f := range n.byName {
		all = append(all, f)
	}
	return all
}

func (n *node) number(i int, f *field) {
	for len(n.byNumber) <= i {
		n.byNumber = append(n.byNumber, nil)
	}
	n.byNumber[i] = f
}

// builder holds the nodes built so far. The map is needed because a type may contain itself.
type builder map[reflect.Type]*node

func (b builder) node(t reflect.Type) *node {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n := b[t]; n != nil || !compound(t) {
		return n
	}
	n := &node{}
	b[t] = n
	switch t.Kind() {
	case reflect.Struct:
		n.byName = map[string]*field{}
		b.addFields(n, t, true)
		if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			b.unmarshaler(n, t)
		}
	case reflect.Map:
		n.values = b.value(t)
	case reflect.Slice:
		n.items = b.item(t)
		n.number(1, n.items) // a slice type is encoded as a message with the field 1
	}
	return n
}

func compound(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map ||
		t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
}

// addFields adds the fields of a struct to n. numbered is false for a struct that is inlined in JSON but not in
// protobuf.
func (b builder) addFields(n *node, t reflect.Type, numbered bool) {
	for f := range exportedFields(t) {
		single, repeated := b.single(f.Type), (*field)(nil)
		switch {
		case !compound(f.Type):
		case f.Type.Kind() == reflect.Slice:
			repeated = b.item(f.Type)
		case f.Type.Kind() == reflect.Map:
			repeated = b.entry(f.Type)
		}
		if number, many := protobufTag(f); numbered && number > 0 {
			if n.number(number, single); many && repeated != nil {
				n.number(number, repeated)
			}
		}
		name, _, inline := jsonTag(f)
		if inline {
			b.addFields(n, f.Type, false)
		} else if name != "" {
			n.byName[name] = single
		}
	}
}

// unmarshaler sets up n for a type with its own JSON decoder. It assumes that a JSON object decodes into a struct
// that a field of t points to, and a JSON list into a slice field of t.
func (b builder) unmarshaler(n *node, t reflect.Type) {
	n.byName = nil
	for f := range exportedFields(t) {
		switch {
		case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
			n.object = b.node(f.Type)
		case f.Type.Kind() == reflect.Slice && compound(f.Type):
			n.list = b.item(f.Type)
		}
	}
}

// single returns a field that occurs once. The memory of a nested struct is part of the outer struct's memory.
func (b builder) single(t reflect.Type) *field {
	if t.Kind() == reflect.Pointer {
		return b.pointer(t.Elem())
	}
	return &field{node: b.node(t)}
}

func (b builder) pointer(t reflect.Type) *field {
	return &field{memory: structFactor*int64(t.Size()) + emptyWeight(t), node: b.node(t)}
}

// item returns the field for an item of a list.
func (b builder) item(t reflect.Type) *field {
	f := b.pointer(t.Elem())
	f.memory += memberWeight
	f.packed = f.node == nil && t.Elem().Kind() != reflect.String
	return f
}

// value returns the field for a value of a map, together with its key. The memory of an entry is doubled, because up
// to half of a map may be unused.
func (b builder) value(t reflect.Type) *field {
	size := int64(t.Key().Size() + t.Elem().Size())
	return &field{memory: memberWeight + 2*structFactor*size + emptyWeight(t.Elem()), node: b.node(t.Elem())}
}

// entry returns the field for a map entry in protobuf, which is a message of key and value.
func (b builder) entry(t reflect.Type) *field {
	f, n := b.value(t), &node{}
	n.number(2, &field{node: f.node})
	return &field{memory: f.memory, node: n}
}

// emptyWeight returns the weight of the JSON tree of a zero value.
func emptyWeight(t reflect.Type) int64 {
	if t.Kind() == reflect.Pointer {
		return int64(t.Elem().Size()) + emptyWeight(t.Elem())
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		return itemWeight
	}
	return mapWeight + emptyFieldsWeight(t)
}

// emptyFieldsWeight returns the weight of the fields in the JSON tree of a zero struct.
func emptyFieldsWeight(t reflect.Type) (n int64) {
	for f := range exportedFields(t) {
		switch name, omitted, inline := jsonTag(f); {
		case inline:
			n += emptyFieldsWeight(f.Type)
		case name != "" && (!omitted || f.Type.Kind() == reflect.Struct):
			n += emptyWeight(f.Type)
		}
	}
	return n
}

func exportedFields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}

// protobufTag parses the protobuf tag of a field. It returns the field's number and reports whether the field is
// repeated.
func protobufTag(f reflect.StructField) (number int, repeated bool) {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 3 {
		return 0, false
	}
	number, _ = strconv.Atoi(parts[1])
	return number, parts[2] == "rep"
}

// jsonTag parses the json tag of a field. name is "" for a field that has no JSON form. omitted reports whether the
// field is omitted if it is empty. inline reports whether the field's own fields appear in its place.
func jsonTag(f reflect.StructField) (name string, omitted, inline bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case name == "-":
		return "", true, false
	case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct,
		strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct:
		return "", false, true
	case name == "":
		name = f.Name
	}
	return name, strings.Contains(options, "omit"), false
}
