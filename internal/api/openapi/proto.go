package openapi

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/gnostic-models/compiler"
	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trellis-k8s/trellis/internal/object"
)

// transcoder writes an OpenAPI document as the protobuf of
// github.com/google/gnostic-models, from its JSON and in one pass: gnostic's own way goes
// by a YAML tree of the whole document.
type transcoder struct {
	root     protoreflect.MessageDescriptor
	messages map[protoreflect.FullName]*message
	texts    map[string]string // YAML by the JSON it says
	err      error             // what could not be written, if anything
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
	return &transcoder{root: root, messages: map[protoreflect.FullName]*message{}, texts: map[string]string{}}
}

// encode returns the protobuf of a document.
func (t *transcoder) encode(document []byte) ([]byte, error) {
	c := object.NewCursor(document)
	t.err = nil
	out := t.object(make([]byte, 0, len(document)), c, t.root)
	if c.Broken() || c.Kind() != 0 {
		t.err = errMalformed
	}
	if t.err != nil {
		return nil, fmt.Errorf("encode the document as protobuf: %w", t.err)
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
func (t *transcoder) object(dst []byte, c *object.Cursor, d protoreflect.MessageDescriptor) []byte {
	m := t.message(d)
	c.Members(func(name string) {
		switch f := m.fields[name]; {
		case f != nil:
			dst = t.field(dst, c, f)
		case m.vendor != nil && strings.HasPrefix(name, "x-"):
			dst = t.named(dst, c, m.vendor, name)
		case m.rest != nil:
			dst = t.named(dst, c, m.rest, name)
		}
	})
	return dst
}

// named writes one entry of a map: a message of a name and a value.
func (t *transcoder) named(dst []byte, c *object.Cursor, f protoreflect.FieldDescriptor, name string) []byte {
	return nested(dst, f.Number(), func(dst []byte) []byte {
		dst = protowire.AppendTag(dst, 1, protowire.BytesType)
		dst = protowire.AppendString(dst, name)
		return t.value(dst, c, f.Message().Fields().ByNumber(2))
	})
}

// nested writes a field whose content is written by content.
func nested(dst []byte, number protoreflect.FieldNumber, content func([]byte) []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	start := len(dst)
	dst = content(dst)
	var prefix [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(prefix[:], uint64(len(dst)-start))
	return slices.Insert(dst, start, prefix[:n]...)
}

// field writes the value at c as f; a list as one field for each item.
func (t *transcoder) field(dst []byte, c *object.Cursor, f protoreflect.FieldDescriptor) []byte {
	if !f.IsList() || c.Kind() != '[' {
		return t.value(dst, c, f)
	}
	c.Elements(func(int) { dst = t.value(dst, c, f) })
	return dst
}

// value writes one value.
func (t *transcoder) value(dst []byte, c *object.Cursor, f protoreflect.FieldDescriptor) []byte {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return nested(dst, f.Number(), func(dst []byte) []byte { return t.content(dst, c, f.Message()) })
	case protoreflect.StringKind:
		if c.Kind() != '"' {
			t.err = fmt.Errorf("%s: not a string", f.FullName())
		}
		return protowire.AppendString(protowire.AppendTag(dst, f.Number(), protowire.BytesType), c.Text())
	case protoreflect.BoolKind:
		b := c.Bool()
		if !b && f.ContainingOneof() == nil {
			return dst
		}
		return protowire.AppendVarint(protowire.AppendTag(dst, f.Number(), protowire.VarintType), protowire.EncodeBool(b))
	}
	return t.number(dst, c.Raw(), f)
}

// number writes a number; zero is the same as none unless it tells which of several
// a value is.
func (t *transcoder) number(dst []byte, raw string, f protoreflect.FieldDescriptor) []byte {
	whole, notWhole := strconv.ParseInt(raw, 10, 64)
	number, err := strconv.ParseFloat(raw, 64)
	switch {
	case err != nil:
		t.err = fmt.Errorf("%s: %w", f.FullName(), err)
		return dst
	case number == 0 && f.ContainingOneof() == nil:
		return dst
	case f.Kind() == protoreflect.DoubleKind:
		return protowire.AppendFixed64(protowire.AppendTag(dst, f.Number(), protowire.Fixed64Type), math.Float64bits(number))
	case notWhole != nil:
		whole = int64(number)
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, f.Number(), protowire.VarintType), uint64(whole))
}

// content writes the value at c as what stands in a message of type d.
func (t *transcoder) content(dst []byte, c *object.Cursor, d protoreflect.MessageDescriptor) []byte {
	switch d.Name() {
	case "Any":
		dst = protowire.AppendTag(dst, 2, protowire.BytesType)
		return protowire.AppendString(dst, t.yaml(c.Raw()))
	case "TypeItem", "ItemsItem", "StringArray":
		return t.field(dst, c, d.Fields().ByNumber(1))
	}
	m := t.message(d)
	if m.choose == nil {
		return t.object(dst, c, d)
	}
	if number := m.choose(*c); number != 0 {
		return t.value(dst, c, d.Fields().ByNumber(number))
	}
	c.Raw()
	return dst
}

// yaml is JSON as block YAML, made by gnostic itself: clients compare the text. The same few texts come again and again.
func (t *transcoder) yaml(js string) string {
	text, ok := t.texts[js]
	if !ok {
		text = js // where it has letters that no YAML may have
		if node, err := compiler.ReadInfoFromBytes("", []byte(js)); err == nil && len(node.Content) > 0 {
			text = string(compiler.Marshal(node.Content[0]))
		}
		t.texts[js] = text
	}
	return text
}

// chooser finds which field of a message that is one of several the value ahead goes to; 0
// for none of them.
type chooser func(ahead object.Cursor) protoreflect.FieldNumber

// chooserOf knows the messages that are one of several, in both editions.
func chooserOf(name protoreflect.Name) chooser {
	switch name {
	case "AdditionalPropertiesItem":
		return func(c object.Cursor) protoreflect.FieldNumber { return either(c.Kind() == '{', 1, 2) }
	case "DefaultType":
		return chooseDefault
	case "SchemaItem":
		return func(object.Cursor) protoreflect.FieldNumber { return 1 }
	case "SecurityDefinitionsItem":
		return func(object.Cursor) protoreflect.FieldNumber { return 2 } // an API key
	case "ParametersItem", "ResponseValue":
		return chooseReference
	case "Parameter":
		return chooseParameter(map[string]protoreflect.FieldNumber{"body": 1}, 2)
	case "NonBodyParameter":
		return chooseParameter(map[string]protoreflect.FieldNumber{"header": 1, "formData": 2, "path": 4}, 3)
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
func chooseReference(c object.Cursor) protoreflect.FieldNumber {
	return either(c.FirstKey() == "$ref", 2, 1)
}

// chooseDefault tells numbers, booleans and texts; v3 has no others.
func chooseDefault(c object.Cursor) protoreflect.FieldNumber {
	switch c.Kind() {
	case '{', '[', 'n':
		return 0
	case 't', 'f':
		return 2
	case '"':
		return 3
	}
	return 1
}

// chooseParameter tells v2's parameters by where they are.
func chooseParameter(places map[string]protoreflect.FieldNumber, otherwise protoreflect.FieldNumber) chooser {
	return func(c object.Cursor) protoreflect.FieldNumber {
		number := otherwise
		c.Members(func(key string) {
			if key == "in" {
				number = cmp.Or(places[c.Text()], otherwise)
			}
		})
		return number
	}
}
