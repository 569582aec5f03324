// Package weight computes how much memory a request body takes while a write works on it, from the bytes of the body and the
// Go type that they are decoded into. It must not import other packages of this module.
package weight

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

// A write holds an object in several forms at once: the decoded one with the slices that it outgrew, the internal form, the tree
// of its JSON, the fields that its managers own, and the bytes to store. TestWeightsCoverWrites compares these constants with
// the memory that writes take.
const (
	// structFactor is how many times the size of a Go value its Go forms take.
	structFactor = 3
	// mapWeight and itemWeight are the memory of a map and of a value in a tree.
	mapWeight, itemWeight = 400, 100
	// memberWeight is what an item of a list or map takes in addition: it may be owned by itself, and have errors of its own.
	memberWeight = 1000
	// keyWeight is what a value of a map of no known type takes in addition, with its key.
	keyWeight = 300
	// textFactor is how many times its size the body takes by its bytes alone.
	textFactor = 4
)

// Table holds the weights of a type and all types in it. It is immutable.
type Table struct {
	top      *field
	envelope *node
	most     int64 // weight of the heaviest value within
}

// node is a Go type as the encodings address its parts. Of a scalar it is nil.
type node struct {
	byNumber []*field          // fields of a protobuf message
	byName   map[string]*field // fields of a JSON object
	values   *field            // values of a map
	items    *field            // items of a list
	// object and list are what a JSON object and a JSON list decode into, where the type has its own decoder.
	object *node
	list   *field
}

// field is a part of a node, or an item of a list or map.
type field struct {
	each   int64 // memory of one occurrence, besides its own fields
	of     *node
	packed bool // one occurrence in protobuf may hold many numbers
}

// Of makes the Table of a struct type.
func Of(t reflect.Type) *Table {
	b := builder{}
	top := b.pointer(t)
	envelope := &node{}
	envelope.number(2, top) // runtime.Unknown.Raw
	table := &Table{top: top, envelope: envelope, most: top.each}
	for _, n := range b {
		for _, f := range n.parts() {
			table.most = max(table.most, f.each)
		}
	}
	return table
}

// parts lists the fields of n.
func (n *node) parts() []*field {
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

// number sets the field of a protobuf number.
func (n *node) number(i int, f *field) {
	for len(n.byNumber) <= i {
		n.byNumber = append(n.byNumber, nil)
	}
	n.byNumber[i] = f
}

// builder holds the nodes made so far: types may contain themselves.
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
		b.fields(n, t, true)
		if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			b.decoded(n, t)
		}
	case reflect.Map:
		n.values = b.value(t)
	case reflect.Slice:
		n.items = b.item(t)
		n.number(1, n.items) // as a message
	}
	return n
}

func compound(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Map || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
}

// fields adds the fields of a struct; numbered is false for one whose fields another has inline in JSON alone.
func (b builder) fields(n *node, t reflect.Type, numbered bool) {
	for f := range fieldsOf(t) {
		one, repeated := b.single(f.Type), (*field)(nil)
		switch {
		case !compound(f.Type):
		case f.Type.Kind() == reflect.Slice:
			repeated = b.item(f.Type)
		case f.Type.Kind() == reflect.Map:
			repeated = b.entry(f.Type)
		}
		if number, many := protobuf(f); numbered && number > 0 {
			if n.number(number, one); many && repeated != nil {
				n.number(number, repeated)
			}
		}
		name, _, inline := jsonName(f)
		if inline {
			b.fields(n, f.Type, false)
		} else if name != "" {
			n.byName[name] = one
		}
	}
}

// decoded is for a type with a JSON decoder of its own: an object becomes what a struct in it holds, a list what a list in it holds.
func (b builder) decoded(n *node, t reflect.Type) {
	n.byName = nil
	for f := range fieldsOf(t) {
		switch {
		case f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct:
			n.object = b.node(f.Type)
		case f.Type.Kind() == reflect.Slice && compound(f.Type):
			n.list = b.item(f.Type)
		}
	}
}

// single is a field that occurs once. A struct within another is a part of that one's memory.
func (b builder) single(t reflect.Type) *field {
	if t.Kind() == reflect.Pointer {
		return b.pointer(t.Elem())
	}
	return &field{of: b.node(t)}
}

func (b builder) pointer(t reflect.Type) *field {
	return &field{each: structFactor*int64(t.Size()) + tree(t), of: b.node(t)}
}

// item is an item of a list.
func (b builder) item(t reflect.Type) *field {
	f := b.pointer(t.Elem())
	f.each += memberWeight
	f.packed = f.of == nil && t.Elem().Kind() != reflect.String
	return f
}

// value is a value of a map, with its key; maps are at most half empty.
func (b builder) value(t reflect.Type) *field {
	return &field{each: memberWeight + 2*structFactor*int64(t.Key().Size()+t.Elem().Size()) + tree(t.Elem()), of: b.node(t.Elem())}
}

// entry is a value of a map as a protobuf message of key and value.
func (b builder) entry(t reflect.Type) *field {
	f, n := b.value(t), &node{}
	n.number(2, &field{of: f.of})
	return &field{each: f.each, of: n}
}

// tree is the weight of the tree of an empty value.
func tree(t reflect.Type) int64 {
	if t.Kind() == reflect.Pointer {
		return int64(t.Elem().Size()) + tree(t.Elem())
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]()) {
		return itemWeight
	}
	return mapWeight + members(t)
}

// members are the fields that the tree of an empty struct has.
func members(t reflect.Type) (n int64) {
	for f := range fieldsOf(t) {
		switch name, omitted, inline := jsonName(f); {
		case inline:
			n += members(f.Type)
		case name != "" && (!omitted || f.Type.Kind() == reflect.Struct):
			n += tree(f.Type)
		}
	}
	return n
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !yield(f) {
				return
			}
		}
	}
}

// protobuf reads the tag of a field: its number, and whether it may occur more than once.
func protobuf(f reflect.StructField) (number int, repeated bool) {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 3 {
		return 0, false
	}
	number, _ = strconv.Atoi(parts[1])
	return number, parts[2] == "rep"
}

// jsonName reads the tag of a field: its name, "" for none, whether it is left out where it is empty, and whether its own fields
// stand in its place.
func jsonName(f reflect.StructField) (name string, omitted, inline bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case name == "-":
		return "", true, false
	case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct, strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct:
		return "", false, true
	case name == "":
		name = f.Name
	}
	return name, strings.Contains(options, "omit"), false
}
