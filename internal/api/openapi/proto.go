package openapi

import (
	"cmp"
	"encoding/binary"
	"errors"
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

// transcoder converts the JSON of an OpenAPI document to the protobuf of github.com/google/gnostic-models in one
// pass. gnostic itself builds a YAML tree of the whole document.
type transcoder struct {
	root     protoreflect.MessageDescriptor
	messages map[protoreflect.FullName]*message
	texts    map[string]string // cache of YAML texts; the key is the JSON
	err      error             // error of the last value that could not be encoded, or nil
}

// message describes a protobuf message for the transcoder.
type message struct {
	fields     map[string]protoreflect.FieldDescriptor // by JSON name
	entries    protoreflect.FieldDescriptor            // repeated Named..., for members that are not in fields
	extensions protoreflect.FieldDescriptor            // repeated NamedAny, for members named x-...
	choose     chooser                                 // set for a message with alternatives, such as Parameter
}

// newTranscoder returns a transcoder for documents of an edition.
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
		t.err = errors.New("malformed JSON")
	}
	if t.err != nil {
		return nil, fmt.Errorf("encode the document as protobuf: %w", t.err)
	}
	return out, nil
}

// message returns the description of a message. It builds the description on first use.
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
			m.extensions = f
		case f.IsList() && f.Kind() == protoreflect.MessageKind &&
			strings.HasPrefix(string(f.Message().Name()), "Named"):
			m.entries = f
		case name == "_ref":
			m.fields["$ref"] = f
		default:
			m.fields[f.JSONName()] = f
		}
	}
	return m
}

// object appends the JSON object at the cursor c as the fields of a message of type d.
func (t *transcoder) object(dst []byte, c *object.Cursor, d protoreflect.MessageDescriptor) []byte {
	m := t.message(d)
	c.Members(func(name string) {
		switch f := m.fields[name]; {
		case f != nil:
			dst = t.field(dst, c, f)
		case m.extensions != nil && strings.HasPrefix(name, "x-"):
			dst = t.named(dst, c, m.extensions, name)
		case m.entries != nil:
			dst = t.named(dst, c, m.entries, name)
		}
	})
	return dst
}

// named appends one entry of a map: a message with a name and a value.
func (t *transcoder) named(dst []byte, c *object.Cursor, f protoreflect.FieldDescriptor, name string) []byte {
	return nested(dst, f.Number(), func(dst []byte) []byte {
		dst = protowire.AppendTag(dst, 1, protowire.BytesType)
		dst = protowire.AppendString(dst, name)
		return t.value(dst, c, f.Message().Fields().ByNumber(2))
	})
}

// nested appends a length-delimited field. The function content appends the content of the field.
func nested(dst []byte, number protoreflect.FieldNumber, content func([]byte) []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	start := len(dst)
	dst = content(dst)
	var prefix [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(prefix[:], uint64(len(dst)-start))
	return slices.Insert(dst, start, prefix[:n]...)
}

// field appends the value at the cursor c as the field f. It appends one field for each item of a list.
func (t *transcoder) field(dst []byte, c *object.Cursor, f protoreflect.FieldDescriptor) []byte {
	if !f.IsList() || c.Kind() != '[' {
		return t.value(dst, c, f)
	}
	c.Elements(func(int) { dst = t.value(dst, c, f) })
	return dst
}

// value appends one value.
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
		dst = protowire.AppendTag(dst, f.Number(), protowire.VarintType)
		return protowire.AppendVarint(dst, protowire.EncodeBool(b))
	}
	return t.number(dst, c.Raw(), f)
}

// number appends a number. It omits zero, except in a oneof, where zero selects the alternative.
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
		dst = protowire.AppendTag(dst, f.Number(), protowire.Fixed64Type)
		return protowire.AppendFixed64(dst, math.Float64bits(number))
	case notWhole != nil:
		whole = int64(number)
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, f.Number(), protowire.VarintType), uint64(whole))
}

// content appends the value at the cursor c as the content of a message of type d.
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

// yaml returns js as block YAML. It uses gnostic's conversion, because clients compare the text. It caches results,
// because few different texts occur.
func (t *transcoder) yaml(js string) string {
	text, ok := t.texts[js]
	if !ok {
		text = js // used if the conversion fails
		if node, err := compiler.ReadInfoFromBytes("", []byte(js)); err == nil && len(node.Content) > 0 {
			text = string(compiler.Marshal(node.Content[0]))
		}
		t.texts[js] = text
	}
	return text
}

// chooser selects one of the alternative fields of a message. It returns the number of the field for the value at
// the cursor ahead, or 0 if no field can hold the value.
type chooser func(ahead object.Cursor) protoreflect.FieldNumber

// chooserOf returns the chooser of a message of v2 or v3, by the name of the message. It returns nil if the message
// has no alternatives.
func chooserOf(name protoreflect.Name) chooser {
	switch name {
	case "AdditionalPropertiesItem":
		return func(c object.Cursor) protoreflect.FieldNumber { return fieldIf(c.Kind() == '{', 1, 2) }
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

func fieldIf(ok bool, yes, no protoreflect.FieldNumber) protoreflect.FieldNumber {
	if ok {
		return yes
	}
	return no
}

// chooseReference recognizes a reference by the name of its first member, $ref.
func chooseReference(c object.Cursor) protoreflect.FieldNumber {
	return fieldIf(c.FirstKey() == "$ref", 2, 1)
}

// chooseDefault distinguishes numbers, booleans and strings. The message of v3 has no field for other defaults.
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

// chooseParameter selects the message of a v2 parameter by the value of "in".
func chooseParameter(numbers map[string]protoreflect.FieldNumber, fallback protoreflect.FieldNumber) chooser {
	return func(c object.Cursor) protoreflect.FieldNumber {
		number := fallback
		c.Members(func(key string) {
			if key == "in" {
				number = cmp.Or(numbers[c.Text()], fallback)
			}
		})
		return number
	}
}
