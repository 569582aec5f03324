package openapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/trellis-k8s/trellis/internal/object"
)

// fragment is a named part of a document: its JSON, or a function that appends the JSON. The function avoids a
// second copy of a large document in memory.
type fragment struct {
	name  string
	json  []byte
	write func(dst []byte) []byte
	size  int // estimated number of bytes that write appends
}

// renderer renders operations. It caches the JSON of parameters, because few different ones occur. It is not safe
// for concurrent use.
type renderer struct {
	edition
	params map[param][]byte
	shared map[string][]byte // v2 parameters that operations refer to, by name

	scratch []byte
}

func newRenderer(e edition) *renderer {
	return &renderer{edition: e, params: map[param][]byte{}, shared: map[string][]byte{}}
}

// pathItem renders one path.
func (r *renderer) pathItem(p pathItem) (fragment, error) {
	m := &members{dst: append(r.scratch[:0], '{')}
	for _, op := range p.operations {
		m.key(op.method)
		if err := r.operation(m, op); err != nil {
			return fragment{}, err
		}
	}
	if len(p.params) > 0 {
		m.key("parameters")
		if err := r.parameters(m, p.params, nil); err != nil {
			return fragment{}, err
		}
	}
	r.scratch = append(m.dst, '}')
	return fragment{name: p.path, json: bytes.Clone(r.scratch)}, nil
}

func (r *renderer) operation(to *members, op operation) error {
	m := &members{dst: append(to.dst, '{')}
	m.text("description", op.description)
	m.text("operationId", op.id)
	m.texts("tags", []string{op.tag})
	var body []byte
	if r.edition == v2 {
		m.texts("consumes", op.consumes)
		m.texts("produces", op.produces)
		m.texts("schemes", []string{"https"})
		if op.body != "" {
			var err error
			if body, err = r.body(op); err != nil {
				return err
			}
		}
	} else if op.body != "" {
		m.key("requestBody")
		m.dst = append(m.dst, `{"content":`...)
		m.dst = r.content(m.dst, op.consumes, op.body)
		if op.bodyRequired {
			m.dst = append(m.dst, `,"required":true`...)
		}
		m.dst = append(m.dst, '}')
	}
	if len(op.params) > 0 || body != nil {
		m.key("parameters")
		if err := r.parameters(m, op.params, body); err != nil {
			return err
		}
	}
	m.key("responses")
	r.responses(m, op)
	m.text("x-kubernetes-action", op.action)
	m.key("x-kubernetes-group-version-kind")
	m.dst = appendGVK(m.dst, op.gvk)
	to.dst = append(m.dst, '}')
	return nil
}

func appendGVK(dst []byte, k schema.GroupVersionKind) []byte {
	dst = object.AppendString(append(dst, `{"group":`...), k.Group)
	dst = object.AppendString(append(dst, `,"kind":`...), k.Kind)
	dst = object.AppendString(append(dst, `,"version":`...), k.Version)
	return append(dst, '}')
}

func (m *members) text(name, value string) {
	m.key(name)
	m.dst = object.AppendString(m.dst, value)
}

func (m *members) texts(name string, values []string) {
	m.key(name)
	m.dst = append(m.dst, '[')
	for i, v := range values {
		if i > 0 {
			m.dst = append(m.dst, ',')
		}
		m.dst = object.AppendString(m.dst, v)
	}
	m.dst = append(m.dst, ']')
}

// content appends the JSON object that maps each media type to the schema, as v3 requires.
func (r *renderer) content(dst []byte, mediaTypes []string, model string) []byte {
	m := &members{dst: append(dst, '{')}
	sorted := slices.Clone(mediaTypes)
	slices.Sort(sorted)
	for _, t := range sorted {
		m.key(t)
		m.dst = append(m.dst, `{"schema":`...)
		m.dst = append(r.appendRef(m.dst, model), '}')
	}
	return append(m.dst, '}')
}

func (r *renderer) responses(to *members, op operation) {
	m := &members{dst: append(to.dst, '{')}
	for _, a := range op.responses {
		m.key(a.code)
		m.dst = object.AppendString(append(m.dst, `{"description":`...), a.description)
		if r.edition == v2 {
			m.dst = r.appendRef(append(m.dst, `,"schema":`...), a.model)
		} else {
			m.dst = r.content(append(m.dst, `,"content":`...), op.produces, a.model)
		}
		m.dst = append(m.dst, '}')
	}
	m.raw("401", `{"description":"Unauthorized"}`)
	to.dst = append(m.dst, '}')
}

// parameters appends a list of parameters, sorted by name. body is v2's parameter with the name "body", or nil.
func (r *renderer) parameters(m *members, params []param, body []byte) error {
	first := true
	put := func(text []byte) {
		if !first {
			m.dst = append(m.dst, ',')
		}
		first = false
		m.dst = append(m.dst, text...)
	}
	m.dst = append(m.dst, '[')
	for _, p := range params {
		if body != nil && p.name > "body" {
			put(body)
			body = nil
		}
		text, err := r.parameter(p)
		if err != nil {
			return err
		}
		put(text)
	}
	if body != nil {
		put(body)
	}
	m.dst = append(m.dst, ']')
	return nil
}

func (r *renderer) parameter(p param) ([]byte, error) {
	if text := r.params[p]; text != nil {
		return text, nil
	}
	text, err := r.newParameter(p)
	if err == nil {
		r.params[p] = text
	}
	return text, err
}

func (r *renderer) newParameter(p param) ([]byte, error) {
	if r.edition == v3 {
		m := &members{dst: []byte{'{'}}
		m.text("name", p.name)
		m.text("in", p.in)
		m.text("description", p.description)
		if p.in == "path" {
			m.raw("required", "true")
		}
		m.raw("schema", `{"type":"`+p.typ+`","uniqueItems":true}`)
		return append(m.dst, '}'), nil
	}
	text, err := json.Marshal(spec.Parameter{
		CommonValidations: spec.CommonValidations{UniqueItems: true},
		SimpleSchema:      spec.SimpleSchema{Type: p.typ},
		ParamProps: spec.ParamProps{
			Name: p.name, In: p.in, Description: p.description, Required: p.in == "path",
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode parameter %q: %w", p.name, err)
	}
	// Old versions of kubectl expect these parameters in the operation.
	if p.name == "name" || p.name == "fieldValidation" || p.name == "dryRun" {
		return text, nil
	}
	return r.share(p.name, text), nil
}

// share adds a v2 parameter to the shared parameters and returns a reference to it. kube-apiserver gives the
// parameter the same name.
func (r *renderer) share(name string, text []byte) []byte {
	hash := fnv.New64()
	hash.Write(text)
	name += "-" + base64.URLEncoding.EncodeToString(hash.Sum(nil)[:6])
	r.shared[name] = text
	return []byte(`{"$ref":"#/parameters/` + name + `"}`)
}

// body returns v2's parameter for the body of a request.
func (r *renderer) body(op operation) ([]byte, error) {
	key := param{name: op.body, in: "body"}
	if !op.bodyRequired {
		key.typ = "optional"
	}
	if text := r.params[key]; text != nil {
		return text, nil
	}
	text, err := json.Marshal(spec.Parameter{ParamProps: spec.ParamProps{
		Name: "body", In: "body", Required: op.bodyRequired, Schema: spec.RefSchema("#/definitions/" + op.body),
	}})
	if err != nil {
		return nil, fmt.Errorf("encode the body of %s: %w", op.id, err)
	}
	if !strings.HasPrefix(op.body, "io.k8s.apimachinery") {
		return text, nil
	}
	text = r.share("body", text)
	r.params[key] = text
	return text, nil
}
