package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v2"
)

const (
	yamlPrefix = "yaml: "
	// maxYAMLBytes limits the size to which the aliases of a YAML document may expand. The parser limits only the
	// number of nodes, and each node may be a huge string.
	maxYAMLBytes = 64 << 20
)

var (
	errYAMLSize  = errors.New("yaml: document contains excessive aliasing")
	errYAMLDepth = errors.New("exceeded max depth")
)

// DecodeYAML decodes YAML as DecodeJSON decodes JSON. It follows sigs.k8s.io/yaml: YAML 1.1, keys become strings,
// and documents after the first are ignored. Repeated YAML keys give one entry of duplicates, which is the parser's
// whole message.
//
// An error of the YAML parser is returned in the form of yaml.YAMLToJSON. Upstream adds the prefix "error
// converting YAML to JSON: " when it decodes an apply patch. The error for a document that is not a mapping is a
// *json.UnmarshalTypeError.
func DecodeYAML(data []byte) (t Tree, duplicates []string, err error) {
	var doc any
	if err := yaml.UnmarshalStrict(data, &doc); err != nil {
		doc = nil
		if lenient := yaml.Unmarshal(data, &doc); lenient != nil {
			return nil, nil, lenient
		}
		duplicates = []string{err.Error()}
	}
	c := yamlConverter{budget: maxYAMLBytes}
	v, err := c.value(doc, 0)
	if err != nil {
		return nil, nil, err
	}
	switch v := v.(type) {
	case Tree:
		return v, duplicates, nil
	case nil:
		return Tree{}, duplicates, nil
	default:
		_, _, err := decodeWithUpstream(AppendJSON(nil, v))
		return nil, nil, err
	}
}

// yamlConverter converts the YAML parser's output to the value that DecodeJSON returns for the same document in
// JSON.
type yamlConverter struct {
	budget int // remaining bytes of maxYAMLBytes
}

func (c *yamlConverter) value(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errYAMLDepth
	}
	if c.budget -= 8; c.budget < 0 {
		return nil, errYAMLSize
	}
	switch v := v.(type) {
	case nil, bool, int64:
		return v, nil
	case int:
		return int64(v), nil
	case uint64:
		return float64(v), nil
	case float64:
		return yamlFloat(v)
	case string:
		return c.text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = c.value(v[i], depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[any]any:
		return c.mapping(v, depth)
	default:
		return yamlOther(v)
	}
}

func (c *yamlConverter) text(s string) (string, error) {
	if c.budget -= len(s); c.budget < 0 {
		return "", errYAMLSize
	}
	if utf8.ValidString(s) {
		return s, nil
	}
	// Only !!binary can contain invalid UTF-8. Each invalid byte becomes one U+FFFD, as in JSON.
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String(), nil
}

func (c *yamlConverter) mapping(m map[any]any, depth int) (Tree, error) {
	out := make(Tree, len(m))
	for k := range m {
		if _, ok := k.(string); ok {
			continue
		}
		var err error
		if m, err = stringKeys(m); err != nil {
			return nil, err
		}
		break
	}
	for k, v := range m {
		key, err := c.text(k.(string))
		if err != nil {
			return nil, err
		}
		if out[key], err = c.value(v, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// stringKeys converts all keys to strings. Different keys, such as 0 and 0.0, may become the same string.
// stringKeys then always keeps the same one of them, so that the result is deterministic. Upstream keeps an
// arbitrary one.
func stringKeys(m map[any]any) (map[any]any, error) {
	from := make(map[string]any, len(m))
	for k, v := range m {
		key, err := yamlKey(k, v)
		if err != nil {
			return nil, err
		}
		if other, taken := from[key]; !taken || fmt.Sprintf("%T %v", k, k) > fmt.Sprintf("%T %v", other, other) {
			from[key] = k
		}
	}
	out := make(map[any]any, len(from))
	for key, k := range from {
		out[key] = m[k]
	}
	return out, nil
}

// yamlKey converts a scalar key to a string as sigs.k8s.io/yaml does.
func yamlKey(k, v any) (string, error) {
	switch k := k.(type) {
	case string:
		return k, nil
	case int:
		return strconv.Itoa(k), nil
	case int64:
		return strconv.FormatInt(k, 10), nil
	case bool:
		return strconv.FormatBool(k), nil
	case float64:
		switch s := strconv.FormatFloat(k, 'g', -1, 32); s {
		case "+Inf":
			return ".inf", nil
		case "-Inf":
			return "-.inf", nil
		case "NaN":
			return ".nan", nil
		default:
			return s, nil
		}
	}
	return "", fmt.Errorf("unsupported map key of type: %T, key: %+#v, value: %+#v", k, k, v)
}

// yamlFloat returns the number that DecodeJSON reads from the JSON of f. NaN and the infinities are errors.
func yamlFloat(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		_, err := json.Marshal(f)
		return nil, err
	}
	return Number(f), nil
}

// yamlOther converts a value of a type that only an explicit tag produces, such as a time.
func yamlOther(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := decoder{scanner: scanner{s: string(text)}}
	out, ok := d.value()
	if !ok {
		return nil, fmt.Errorf("unsupported value of type %T", v)
	}
	return out, nil
}
