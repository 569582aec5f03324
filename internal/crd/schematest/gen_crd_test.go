package schematest

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// valueOrMistake returns value. If the generator makes a mistake, it returns one of the wrong values instead.
func valueOrMistake[T any](g *gen, value T, wrong ...T) T {
	if g.mistakeHere() {
		return pick(g.source, wrong...)
	}
	return value
}

// crd returns a complete CRD that can have mistakes in each part. A stored CRD may violate more rules than a new
// one.
func (g *gen) crd() props {
	group := valueOrMistake(g, pick(g.source, "example.com", "example.com", "deep.example.k8s.io"), "", "nodot",
		"Bad_Group.com", "kubernetes.io", "other.example.com")
	md := props{"name": valueOrMistake(g, "foos."+group, "bars.example.com"), "uid": "u",
		"creationTimestamp": "2020-01-02T03:04:05Z", "resourceVersion": "1"}
	if g.oneIn(2) {
		md["annotations"] = props{"api-approved.kubernetes.io": pick(g.source, "unapproved",
			"https://github.com/kubernetes/kubernetes/pull/1", "unapproved, for now", "soon", "http:// x", "")}
	}
	spec := props{"group": group, "scope": valueOrMistake(g, pick(g.source, "Cluster", "Namespaced"), "", "Both"),
		"names": g.crdNames(), "versions": g.versions()}
	if g.oneIn(2) {
		spec["conversion"] = g.conversion()
	}
	if g.oneIn(3) {
		spec["preserveUnknownFields"] = valueOrMistake(g, false, true)
	}
	status := props{"storedVersions": valueOrMistake(g, []any{"v1"}, []any{"v1", "v9"}, []any{}, []any{"v2", "v2"}),
		"conditions": nil, "acceptedNames": props{"plural": "", "kind": ""}}
	if g.oneIn(3) {
		status["acceptedNames"] = g.crdNames()
	}
	if g.oneIn(2) {
		status["conditions"] = []any{props{"type": "Established", "status": pick(g.source, "True", "False", "True")}}
	}
	return props{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": md,
		"spec": spec, "status": status}
}

func (g *gen) crdNames() props {
	names := props{"plural": valueOrMistake(g, "foos", "", "Foos", "bars"),
		"singular": valueOrMistake(g, "foo", "", "a.b"), "kind": valueOrMistake(g, "Foo", "", "Foo!",
			"FooList"), "listKind": valueOrMistake(g, "FooList", "", "Foo List")}
	if g.oneIn(3) {
		names["shortNames"] = []any{valueOrMistake(g, "fo", "", "FO")}
	}
	if g.oneIn(3) {
		names["categories"] = []any{valueOrMistake(g, "all", "", "a b")}
	}
	return names
}

func (g *gen) versions() []any {
	all := []any{}
	names := []string{"v1", "v1beta1", "v2"}
	for i := range 1 + g.n(3) {
		v := props{"name": valueOrMistake(g, names[i], "V1", "", "v1"), "served": valueOrMistake(g, true, false),
			"storage": valueOrMistake(g, i == 0, i > 0)}
		root := g.schemaOf(3 + g.n(12))
		if i > 0 && g.oneIn(2) { // all versions have the same schema
			first := all[0].(props)
			for _, key := range []string{"schema", "subresources", "additionalPrinterColumns", "selectableFields"} {
				if first[key] != nil {
					v[key] = copied(first[key])
				}
			}
		} else {
			g.version(v, root)
		}
		all = append(all, v)
	}
	return all
}

// version adds the fields of a version to v, with the schema root or without a schema.
func (g *gen) version(v, root props) {
	v["schema"] = valueOrMistake(g, props{"openAPIV3Schema": root}, nil, props{})
	if g.oneIn(5) {
		v["deprecated"], v["deprecationWarning"] = valueOrMistake(g, true, false), valueOrMistake(g, "old", "",
			strings.Repeat("x", 257), "a\ab", "\u00a0", "�")
	}
	if g.oneIn(3) {
		sub := props{"status": props{}}
		if g.oneIn(2) {
			path := func(good string) string {
				return valueOrMistake(g, good, "", ".", "spec.x", ".spec.x", ".metadata.x", ".status")
			}
			sub["scale"] = props{"specReplicasPath": path(".spec.replicas"),
				"statusReplicasPath": path(".status.replicas"), "labelSelectorPath": path(".status.selector")}
		}
		v["subresources"] = sub
	}
	if g.oneIn(3) {
		v["additionalPrinterColumns"] = []any{props{"name": valueOrMistake(g, "N", ""),
			"type": valueOrMistake(g, "integer", "", "int"), "format": valueOrMistake(g, "int32",
				"odd"), "jsonPath": valueOrMistake(g, ".spec.n", "", "spec.n", ".")}}
	}
	if g.oneIn(3) {
		v["selectableFields"] = g.selectable(root)
	}
	if fields, ok := root["properties"].(props); ok && g.oneIn(12) { // more than the limit
		list := []any{}
		for i := range 10 {
			name := "s" + strconv.Itoa(i)
			fields[name] = props{"type": "string"}
			list = append(list, props{"jsonPath": "." + name})
		}
		v["selectableFields"] = list[:pick(g.source, 8, 9, 10)]
	}
}

// certificate is a syntactically valid certificate.
const certificate = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJVVENCK2FBREFnRUNBZ0VCTUFvR0NDcUdTTTQ5QkFNQ01CQX" +
	"hEakFNQmdOVkJBTVRCV04wY21sek1CNFgKRFRJd01ERXdNVEF3TURBd01Gb1hEVE13TURFd01UQXdNREF3TUZvd0VE" +
	"RU9NQXdHQTFVRUF4TUZZM1J5YVhNdwpXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBUT0KLS0tLS1FTk" +
	"QgQ0VSVElGSUNBVEUtLS0tLQo="

func (g *gen) conversion() props {
	c := props{"strategy": valueOrMistake(g, pick(g.source, "None", "Webhook", "Webhook"), "", "Custom")}
	if c["strategy"] != "Webhook" && !g.mistakeHere() {
		return c
	}
	client := props{}
	if g.oneIn(2) {
		client["url"] = valueOrMistake(g, "https://a.example.com/x", "http://a.example.com", "https://u:p@a/x?q#f",
			"://", "")
	}
	if client["url"] == nil || g.mistakeHere() {
		client["service"] = props{"name": valueOrMistake(g, "n", ""), "namespace": valueOrMistake(g, "ns", ""),
			"port": valueOrMistake(g, int64(443), 0, 70000), "path": valueOrMistake(g, "/a/b", "a", "/a//b", "//",
				"/a?b")}
	}
	if g.mistakeHere() {
		delete(client, "service")
	}
	if g.oneIn(3) {
		client["caBundle"] = pick(g.source, "bm9uZQ==", certificate, "")
	}
	hook := props{"conversionReviewVersions": valueOrMistake(g, []any{"v1", "v1beta1"}, []any{}, []any{"v7"},
		[]any{"v1", "v1"}, []any{"V1"}, []any{"V1", "v1"}), "clientConfig": client}
	c["webhook"] = valueOrMistake(g, hook, nil, props{"conversionReviewVersions": hook["conversionReviewVersions"]},
		props{"clientConfig": client})
	return c
}

// changedCRD returns a copy of crd in which some parts are replaced by those of the CRD other.
func (g *gen) changedCRD(crd, other props) props {
	crd = copied(crd).(props)
	for _, at := range []string{"metadata", "spec", "status"} {
		part, from := crd[at].(props), other[at].(props)
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if key != "name" && g.oneIn(6) {
				part[key] = copied(from[key])
			}
		}
	}
	for _, v := range crd["spec"].(props)["versions"].([]any) {
		from := props{}
		g.version(from, g.schemaOf(3+g.n(8)))
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if g.oneIn(3) {
				v.(props)[key] = from[key]
			}
		}
		if s := nested[props](v, "schema", "openAPIV3Schema"); s != nil && g.mistakeHere() {
			g.addFormerlyValid(s)
		}
	}
	return crd
}

// addFormerlyValid adds constructs to a schema that are invalid in a new CRD but allowed in a stored one.
func (g *gen) addFormerlyValid(s props) {
	fields, ok := s["properties"].(props)
	if !ok {
		return
	}
	str, text := props{"type": "string"}, "foo"
	ruled := props{"type": "string", "maxLength": 3,
		"x-kubernetes-validations": []any{props{"rule": "self.size() < 3"}}}
	mapOf := func(item props) props {
		return props{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"a"},
			"items": item}
	}
	fields["old"] = copied(pick[any](g.source,
		props{"type": "odd"}, props{"x-kubernetes-int-or-string": true,
			"x-kubernetes-preserve-unknown-fields": true}, props{"type": "array", "items": str, "uniqueItems": true},
		props{"anyOf": []any{props{"description": "x"}}}, props{"type": "object", "default": props{"unknown": text}},
		props{"type": "array", "x-kubernetes-list-type": "set",
			"items": props{"type": "object", "properties": props{"a": str}}},
		props{"type": "array", "x-kubernetes-list-type": "set",
			"items": props{"type": "array", "items": str, "x-kubernetes-list-type": "set"}},
		mapOf(str), mapOf(props{"type": "object", "properties": props{"a": props{"type": "string", "nullable": true}}}),
		mapOf(props{"type": "object", "required": []any{"a"},
			"properties": props{"a": props{"type": "array", "items": str}}}),
		props{"type": "array", "x-kubernetes-list-type": pick(g.source, "set", "map"),
			"x-kubernetes-list-map-keys": []any{"a"}, "items": props{"type": "object", "nullable": true,
				"x-kubernetes-map-type": "atomic", "required": []any{"a"}, "properties": props{"a": str}}},
		props{"type": "array", "items": str,
			"x-kubernetes-validations": []any{props{"rule": "self.all(x, self.all(y, self.all(z, x == y || " +
				"y == z)))"}}},
		props{"type": "array", "maxItems": -1, "items": ruled}, props{"type": "object", "maxProperties": -2,
			"additionalProperties": ruled},
		props{"type": "string", "maxLength": -1, "x-kubernetes-validations": ruled["x-kubernetes-validations"]},
		props{"type": "object", "x-kubernetes-embedded-resource": true,
			"properties": props{"metadata": props{"type": "object",
				"properties": props{"a": props{"type": "object", "x-kubernetes-embedded-resource": true,
					"properties": props{"b": str}}}}}},
		props{"type": "string", "x-kubernetes-validations": []any{props{"rule": pick(g.source, "self.nope", "",
			"isSemver(self)", "self == 'a'"), "messageExpression": pick(g.source, "self", "'a' + self", "1")}}},
	))
	if g.oneIn(4) {
		fields["metadata"] = copied(pick[any](g.source, str,
			props{"type": "object", "properties": props{"name": str, "generateName": str}}, props{"type": "object",
				"properties": props{"name": str, "labels": props{"type": "object"}}},
			props{"type": "object", "properties": props{"generateName": str},
				"maxProperties": 3}, props{"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
	}
}
