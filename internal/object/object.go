// Package object decodes, encodes and reads single API objects in JSON and YAML. It also packs objects into the
// form that is stored. It must not import packages for kinds, storage or HTTP.
package object

// Tree is a decoded object. Its values are Tree, []any, string, bool, nil, int64 and float64. An integer literal
// that fits into 64 bits becomes an int64. Any other number becomes a float64. apimachinery calls this form
// unstructured content.
type Tree = map[string]any
