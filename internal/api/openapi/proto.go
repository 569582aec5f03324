package openapi

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// transcoder writes an OpenAPI document as the protobuf of
// github.com/google/gnostic-models, from its JSON and in one pass: gnostic's own way goes
// by a YAML tree of the whole document.
type transcoder struct {
	root     protoreflect.MessageDescriptor
	messages map[protoreflect.FullName]*message
}

// message is what the transcoder knows of a message.
type message struct {
	fields map[string]protoreflect.FieldDescriptor // by JSON name
	rest   protoreflect.FieldDescriptor            // repeated Named..., for names that are not known
	vendor protoreflect.FieldDescriptor            // repeated NamedAny, for x-...
	choose chooser                                 // for a message that is one of several
}

// newTranscoder makes one for documents of an edition.
func newTranscoder(e edition) *transcoder {
	root := (&openapi_v3.Document{}).ProtoReflect().Descriptor()
	if e == v2 {
		root = (&openapi_v2.Document{}).ProtoReflect().Descriptor()
	}
	return &transcoder{root: root, messages: map[protoreflect.FullName]*message{}}
}

// encode returns the protobuf of a document.
func (t *transcoder) encode(document []byte) ([]byte, error) {
	c := &cursor{data: document}
	out, err := t.object(make([]byte, 0, len(document)), c, t.root)
	if err != nil {
		return nil, fmt.Errorf("encode the document as protobuf: %w", err)
	}
	return out, nil
}

// message looks up or makes the plan of a message.
func (t *transcoder) message(d protoreflect.MessageDescriptor) *message {
	if m := t.messages[d.FullName()]; m != nil {
		return m
	}
	m := &message{fields: map[string]protoreflect.FieldDescriptor{}}
	t.messages[d.FullName()] = m
	if d.Oneofs().Len() > 0 {
		m.choose = chooserOf(d.Name())
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch name := string(f.Name()); {
		case name == "vendor_extension" || name == "specification_extension":
			m.vendor = f
		case f.IsList() && f.Kind() == protoreflect.MessageKind && strings.HasPrefix(string(f.Message().Name()), "Named"):
			m.rest = f
		case name == "_ref":
			m.fields["$ref"] = f
		default:
			m.fields[f.JSONName()] = f
		}
	}
	return m
}

// object writes the JSON object at c as the fields of d.
func (t *transcoder) object(dst []byte, c *cursor, d protoreflect.MessageDescriptor) ([]byte, error) {
	m := t.message(d)
	err := c.object(func(key []byte) error {
		name, err := unquote(key)
		if err != nil {
			return err
		}
		switch f := m.fields[name]; {
		case f != nil:
			dst, err = t.field(dst, c, f)
		case m.vendor != nil && strings.HasPrefix(name, "x-"):
			dst, err = t.named(dst, c, m.vendor, name)
		case m.rest != nil:
			dst, err = t.named(dst, c, m.rest, name)
		default:
			_, err = c.skip()
		}
		return err
	})
	return dst, err
}

// named writes one entry of a map: a message of a name and a value.
func (t *transcoder) named(dst []byte, c *cursor, f protoreflect.FieldDescriptor, name string) ([]byte, error) {
	return nested(dst, f.Number(), func(dst []byte) ([]byte, error) {
		dst = protowire.AppendTag(dst, 1, protowire.BytesType)
		dst = protowire.AppendString(dst, name)
		return t.value(dst, c, f.Message().Fields().ByNumber(2))
	})
}

// nested writes a field whose content is written by content.
func nested(dst []byte, number protoreflect.FieldNumber, content func([]byte) ([]byte, error)) ([]byte, error) {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	start := len(dst)
	dst, err := content(dst)
	if err != nil {
		return nil, err
	}
	var prefix [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(prefix[:], uint64(len(dst)-start))
	return slices.Insert(dst, start, prefix[:n]...), nil
}

// field writes the value at c as f; a list as one field for each item.
func (t *transcoder) field(dst []byte, c *cursor, f protoreflect.FieldDescriptor) ([]byte, error) {
	if !f.IsList() {
		return t.value(dst, c, f)
	}
	if c.peek() != '[' {
		return t.value(dst, c, f)
	}
	err := c.array(func() (err error) {
		dst, err = t.value(dst, c, f)
		return err
	})
	return dst, err
}

// value writes one value.
func (t *transcoder) value(dst []byte, c *cursor, f protoreflect.FieldDescriptor) ([]byte, error) {
	if f.Kind() == protoreflect.MessageKind {
		return nested(dst, f.Number(), func(dst []byte) ([]byte, error) { return t.content(dst, c, f.Message()) })
	}
	raw, err := c.skip()
	if err != nil {
		return nil, err
	}
	switch f.Kind() {
	case protoreflect.StringKind:
		s, err := unquote(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.FullName(), err)
		}
		return protowire.AppendString(protowire.AppendTag(dst, f.Number(), protowire.BytesType), s), nil
	case protoreflect.BoolKind:
		if string(raw) != "true" && f.ContainingOneof() == nil {
			return dst, nil
		}
		return protowire.AppendVarint(protowire.AppendTag(dst, f.Number(), protowire.VarintType), protowire.EncodeBool(string(raw) == "true")), nil
	}
	return appendNumber(dst, string(raw), f)
}

// appendNumber writes a number; zero is the same as none unless it tells which of several
// a value is.
func appendNumber(dst []byte, raw string, f protoreflect.FieldDescriptor) ([]byte, error) {
	whole, notWhole := strconv.ParseInt(raw, 10, 64)
	number, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.FullName(), err)
	}
	switch {
	case number == 0 && f.ContainingOneof() == nil:
		return dst, nil
	case f.Kind() == protoreflect.DoubleKind:
		return protowire.AppendFixed64(protowire.AppendTag(dst, f.Number(), protowire.Fixed64Type), math.Float64bits(number)), nil
	case notWhole != nil:
		whole = int64(number)
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, f.Number(), protowire.VarintType), uint64(whole)), nil
}

// content writes the value at c as what stands in a message of type d.
func (t *transcoder) content(dst []byte, c *cursor, d protoreflect.MessageDescriptor) ([]byte, error) {
	switch d.Name() {
	case "Any":
		raw, err := c.skip()
		if err != nil {
			return nil, err
		}
		dst = protowire.AppendTag(dst, 2, protowire.BytesType) // as YAML, which JSON is
		return protowire.AppendBytes(dst, raw), nil
	case "TypeItem", "ItemsItem", "StringArray":
		return t.field(dst, c, d.Fields().ByNumber(1))
	}
	m := t.message(d)
	if m.choose == nil {
		return t.object(dst, c, d)
	}
	number, err := m.choose(*c)
	if err != nil {
		return nil, err
	}
	if number == 0 {
		_, err = c.skip()
		return dst, err
	}
	return t.value(dst, c, d.Fields().ByNumber(number))
}

// chooser finds which field of a message that is one of several the value ahead goes to; 0
// for none of them.
type chooser func(ahead cursor) (protoreflect.FieldNumber, error)

// chooserOf knows the messages that are one of several, in both editions.
func chooserOf(name protoreflect.Name) chooser {
	switch name {
	case "AdditionalPropertiesItem":
		return func(c cursor) (protoreflect.FieldNumber, error) { return either(c.peek() == '{', 1, 2), nil }
	case "DefaultType":
		return chooseDefault
	case "SchemaItem":
		return func(cursor) (protoreflect.FieldNumber, error) { return 1, nil }
	case "SecurityDefinitionsItem":
		return func(cursor) (protoreflect.FieldNumber, error) { return 2, nil } // an API key
	case "ParametersItem", "ResponseValue":
		return chooseReference
	case "Parameter":
		return chooseParameter(map[string]protoreflect.FieldNumber{`"body"`: 1}, 2)
	case "NonBodyParameter":
		return chooseParameter(map[string]protoreflect.FieldNumber{`"header"`: 1, `"formData"`: 2, `"path"`: 4}, 3)
	}
	if strings.HasSuffix(string(name), "OrReference") {
		return chooseReference
	}
	return nil
}

func either(ok bool, yes, no protoreflect.FieldNumber) protoreflect.FieldNumber {
	if ok {
		return yes
	}
	return no
}

// chooseReference tells a reference by its first member, which is all that it has.
func chooseReference(c cursor) (protoreflect.FieldNumber, error) {
	if !c.accept('{') || c.peek() != '"' {
		return 1, nil
	}
	key, err := c.skip()
	return either(string(key) == `"$ref"`, 2, 1), err
}

// chooseDefault tells numbers, booleans and texts; v3 has no others.
func chooseDefault(c cursor) (protoreflect.FieldNumber, error) {
	switch c.peek() {
	case '{', '[', 'n':
		return 0, nil
	case 't', 'f':
		return 2, nil
	case '"':
		return 3, nil
	default:
		return 1, nil
	}
}

// chooseParameter tells v2's parameters by where they are.
func chooseParameter(places map[string]protoreflect.FieldNumber, otherwise protoreflect.FieldNumber) chooser {
	return func(c cursor) (number protoreflect.FieldNumber, err error) {
		number = otherwise
		err = c.object(func(key []byte) error {
			value, err := c.skip()
			if string(key) == `"in"` && places[string(value)] != 0 {
				number = places[string(value)]
			}
			return err
		})
		return number, err
	}
}
