package schematest

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// right is the value, or one of the wrong ones where the generator is to make a mistake.
func right[T any](g *gen, value T, wrong ...T) T {
	if g.err() {
		return pick(g.source, wrong...)
	}
	return value
}

// crd makes a whole CRD, in each of its parts with mistakes. What was stored once may break more rules than a new one.
func (g *gen) crd() props {
	group := right(g, pick(g.source, "example.com", "example.com", "deep.example.k8s.io"), "", "nodot", "Bad_Group.com", "kubernetes.io", "other.example.com")
	md := props{"name": right(g, "foos."+group, "bars.example.com"), "uid": "u", "creationTimestamp": "2020-01-02T03:04:05Z", "resourceVersion": "1"}
	if g.once(2) {
		md["annotations"] = props{"api-approved.kubernetes.io": pick(g.source, "unapproved", "https://github.com/kubernetes/kubernetes/pull/1", "unapproved, for now", "soon", "http:// x", "")}
	}
	spec := props{"group": group, "scope": right(g, pick(g.source, "Cluster", "Namespaced"), "", "Both"), "names": g.crdNames(), "versions": g.versions()}
	if g.once(2) {
		spec["conversion"] = g.conversion()
	}
	if g.once(3) {
		spec["preserveUnknownFields"] = right(g, false, true)
	}
	status := props{"storedVersions": right(g, []any{"v1"}, []any{"v1", "v9"}, []any{}, []any{"v2", "v2"}), "conditions": nil, "acceptedNames": props{"plural": "", "kind": ""}}
	if g.once(3) {
		status["acceptedNames"] = g.crdNames()
	}
	if g.once(2) {
		status["conditions"] = []any{props{"type": "Established", "status": pick(g.source, "True", "False", "True")}}
	}
	return props{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": md, "spec": spec, "status": status}
}

func (g *gen) crdNames() props {
	names := props{"plural": right(g, "foos", "", "Foos", "bars"), "singular": right(g, "foo", "", "a.b"), "kind": right(g, "Foo", "", "Foo!", "FooList"), "listKind": right(g, "FooList", "", "Foo List")}
	if g.once(3) {
		names["shortNames"] = []any{right(g, "fo", "", "FO")}
	}
	if g.once(3) {
		names["categories"] = []any{right(g, "all", "", "a b")}
	}
	return names
}

func (g *gen) versions() []any {
	all := []any{}
	names := []string{"v1", "v1beta1", "v2"}
	for i := range 1 + g.n(3) {
		v := props{"name": right(g, names[i], "V1", "", "v1"), "served": right(g, true, false), "storage": right(g, i == 0, i > 0)}
		root := g.schemaOf(3 + g.n(12))
		if i > 0 && g.once(2) { // what all have alike is said once
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

// version fills in what the schema root, which it may leave out, has around it.
func (g *gen) version(v, root props) {
	v["schema"] = right(g, props{"openAPIV3Schema": root}, nil, props{})
	if g.once(5) {
		v["deprecated"], v["deprecationWarning"] = right(g, true, false), right(g, "old", "", strings.Repeat("x", 257), "a\ab", "\u00a0", "�")
	}
	if g.once(3) {
		sub := props{"status": props{}}
		if g.once(2) {
			path := func(good string) string {
				return right(g, good, "", ".", "spec.x", ".spec.x", ".metadata.x", ".status")
			}
			sub["scale"] = props{"specReplicasPath": path(".spec.replicas"), "statusReplicasPath": path(".status.replicas"), "labelSelectorPath": path(".status.selector")}
		}
		v["subresources"] = sub
	}
	if g.once(3) {
		v["additionalPrinterColumns"] = []any{props{"name": right(g, "N", ""), "type": right(g, "integer", "", "int"), "format": right(g, "int32", "odd"), "jsonPath": right(g, ".spec.n", "", "spec.n", ".")}}
	}
	if g.once(3) {
		v["selectableFields"] = g.selectable(root)
	}
	if fields, ok := root["properties"].(props); ok && g.once(12) { // more than may be
		list := []any{}
		for i := range 10 {
			name := "s" + strconv.Itoa(i)
			fields[name] = props{"type": "string"}
			list = append(list, props{"jsonPath": "." + name})
		}
		v["selectableFields"] = list[:pick(g.source, 8, 9, 10)]
	}
}

// certificate is one that says nothing true.
const certificate = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJVVENCK2FBREFnRUNBZ0VCTUFvR0NDcUdTTTQ5QkFNQ01CQXhEakFNQmdOVkJBTVRCV04wY21sek1CNFgKRFRJd01ERXdNVEF3TURBd01Gb1hEVE13TURFd01UQXdNREF3TUZvd0VERU9NQXdHQTFVRUF4TUZZM1J5YVhNdwpXVEFUQmdjcWhrak9QUUlCQmdncWhrak9QUU1CQndOQ0FBUT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="

func (g *gen) conversion() props {
	c := props{"strategy": right(g, pick(g.source, "None", "Webhook", "Webhook"), "", "Custom")}
	if c["strategy"] != "Webhook" && !g.err() {
		return c
	}
	client := props{}
	if g.once(2) {
		client["url"] = right(g, "https://a.example.com/x", "http://a.example.com", "https://u:p@a/x?q#f", "://", "")
	}
	if client["url"] == nil || g.err() {
		client["service"] = props{"name": right(g, "n", ""), "namespace": right(g, "ns", ""), "port": right(g, int64(443), 0, 70000), "path": right(g, "/a/b", "a", "/a//b", "//", "/a?b")}
	}
	if g.err() {
		delete(client, "service")
	}
	if g.once(3) {
		client["caBundle"] = pick(g.source, "bm9uZQ==", certificate, "")
	}
	hook := props{"conversionReviewVersions": right(g, []any{"v1", "v1beta1"}, []any{}, []any{"v7"}, []any{"v1", "v1"}, []any{"V1"}, []any{"V1", "v1"}), "clientConfig": client}
	c["webhook"] = right(g, hook, nil, props{"conversionReviewVersions": hook["conversionReviewVersions"]}, props{"clientConfig": client})
	return c
}

// changedCRD is the CRD with some of its parts, or its schemas, as in others.
func (g *gen) changedCRD(crd, other props) props {
	crd = copied(crd).(props)
	for _, at := range []string{"metadata", "spec", "status"} {
		part, from := crd[at].(props), other[at].(props)
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if key != "name" && g.once(6) {
				part[key] = copied(from[key])
			}
		}
	}
	for _, v := range crd["spec"].(props)["versions"].([]any) {
		from := props{}
		g.version(from, g.schemaOf(3+g.n(8)))
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if g.once(3) {
				v.(props)[key] = from[key]
			}
		}
		if s := nested[props](v, "schema", "openAPIV3Schema"); s != nil && g.err() {
			g.brokenBefore(s)
		}
	}
	return crd
}

// brokenBefore puts into a schema what a new CRD may not have, but an old one may, and then may keep.
func (g *gen) brokenBefore(s props) {
	fields, ok := s["properties"].(props)
	if !ok {
		return
	}
	str, text := props{"type": "string"}, "foo"
	ruled := props{"type": "string", "maxLength": 3, "x-kubernetes-validations": []any{props{"rule": "self.size() < 3"}}}
	mapOf := func(item props) props {
		return props{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"a"}, "items": item}
	}
	fields["old"] = copied(pick[any](g.source,
		props{"type": "odd"}, props{"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}, props{"type": "array", "items": str, "uniqueItems": true}, props{"anyOf": []any{props{"description": "x"}}}, props{"type": "object", "default": props{"unknown": text}},
		props{"type": "array", "x-kubernetes-list-type": "set", "items": props{"type": "object", "properties": props{"a": str}}},
		props{"type": "array", "x-kubernetes-list-type": "set", "items": props{"type": "array", "items": str, "x-kubernetes-list-type": "set"}},
		mapOf(str), mapOf(props{"type": "object", "properties": props{"a": props{"type": "string", "nullable": true}}}),
		mapOf(props{"type": "object", "required": []any{"a"}, "properties": props{"a": props{"type": "array", "items": str}}}),
		props{"type": "array", "x-kubernetes-list-type": pick(g.source, "set", "map"), "x-kubernetes-list-map-keys": []any{"a"}, "items": props{"type": "object", "nullable": true, "x-kubernetes-map-type": "atomic", "required": []any{"a"}, "properties": props{"a": str}}},
		props{"type": "array", "items": str, "x-kubernetes-validations": []any{props{"rule": "self.all(x, self.all(y, self.all(z, x == y || y == z)))"}}},
		props{"type": "array", "maxItems": -1, "items": ruled}, props{"type": "object", "maxProperties": -2, "additionalProperties": ruled}, props{"type": "string", "maxLength": -1, "x-kubernetes-validations": ruled["x-kubernetes-validations"]},
		props{"type": "object", "x-kubernetes-embedded-resource": true, "properties": props{"metadata": props{"type": "object", "properties": props{"a": props{"type": "object", "x-kubernetes-embedded-resource": true, "properties": props{"b": str}}}}}},
		props{"type": "string", "x-kubernetes-validations": []any{props{"rule": pick(g.source, "self.nope", "", "isSemver(self)", "self == 'a'"), "messageExpression": pick(g.source, "self", "'a' + self", "1")}}},
	))
	if g.once(4) {
		fields["metadata"] = copied(pick[any](g.source, str, props{"type": "object", "properties": props{"name": str, "generateName": str}}, props{"type": "object", "properties": props{"name": str, "labels": props{"type": "object"}}},
			props{"type": "object", "properties": props{"generateName": str}, "maxProperties": 3}, props{"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
	}
}
