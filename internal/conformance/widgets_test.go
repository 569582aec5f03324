package conformance_test

import (
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// widgets is a CRD that uses most features of CRDs.
const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.conformance.example.com}
spec:
  group: conformance.example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    deprecated: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.pods}}
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Size, type: integer, jsonPath: .spec.size, priority: 1}
    - {name: Since, type: date, jsonPath: .spec.since}
    - {name: Items, type: string, jsonPath: ".spec.items[*].name"}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [color]
            x-kubernetes-validations:
            - {rule: "!has(self.min) || self.min <= self.size", message: min is above size, fieldPath: .min}
            - {rule: "self.color == oldSelf.color || self.color != 'black'", messageExpression: "'no ' + self.color", reason: FieldValueForbidden}
            properties:
              color: {type: string, enum: [red, green, black], default: red}
              size: {type: integer, format: int32, minimum: 0, maximum: 100, default: 1}
              min: {type: integer}
              since: {type: string, format: date-time}
              ratio: {type: number, multipleOf: 0.5, exclusiveMinimum: true, minimum: 0}
              name: {type: string, minLength: 2, maxLength: 5, pattern: '^[a-z]*$'}
              port: {x-kubernetes-int-or-string: true}
              note: {type: string, nullable: true}
              free: {type: object, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, items: {type: string}, x-kubernetes-list-type: set, maxItems: 4}
              items:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, value: {type: string, default: none}}}
              limits: {type: object, additionalProperties: {type: integer}, minProperties: 1, maxProperties: 3}
              either: {type: object, properties: {a: {type: string}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b]}]}
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {size: {type: integer}, pods: {type: string}}}
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const widgetsPath = "/apis/conformance.example.com/v1/namespaces/conformance/widgets"

const widget = `{"apiVersion":"conformance.example.com/v1","kind":"Widget","metadata":{"name":"w","labels":{"a":"b"}},"spec":{"color":"green","size":3,"tags":["x","y"],"items":[{"name":"one"}],"limits":{"cpu":1}}}`

// widgetPatches lists patches of a widget. Most of them make it invalid.
var widgetPatches = []string{
	`{"spec":{"color":"blue"}}`, `{"spec":{"color":null}}`, `{"spec":{"color":7}}`, `{"spec":{"color":"black"}}`,
	`{"spec":null}`, `{"spec":"x"}`, `{"spec":{"size":101}}`, `{"spec":{"size":-1}}`,
	`{"spec":{"size":1.5}}`, `{"spec":{"size":1.0}}`, `{"spec":{"size":"1"}}`, `{"spec":{"size":3000000000}}`,
	`{"spec":{"min":4}}`, `{"spec":{"since":"today"}}`, `{"spec":{"since":"2026-01-02T03:04:05Z"}}`,
	`{"spec":{"ratio":0}}`, `{"spec":{"ratio":0.3}}`, `{"spec":{"ratio":1}}`, `{"spec":{"name":"a"}}`,
	`{"spec":{"name":"abcdef"}}`, `{"spec":{"name":"A1"}}`, `{"spec":{"port":"x"}}`, `{"spec":{"port":1.5}}`,
	`{"spec":{"port":true}}`,
	`{"spec":{"note":null}}`, `{"spec":{"free":{"a":{"b":1}}}}`, `{"spec":{"free":7}}`, `{"spec":{"tags":["x","x"]}}`,
	`{"spec":{"tags":["1","2","3","4","5"]}}`, `{"spec":{"tags":[1,null]}}`, `{"spec":{"tags":"x"}}`,
	`{"spec":{"items":[{"name":"a"},{"name":"a"}]}}`, `{"spec":{"items":[{}]}}`,
	`{"spec":{"items":[{"name":"a","value":null}]}}`, `{"spec":{"items":[{"name":"a","extra":null}]}}`,
	`{"spec":{"limits":{}}}`, `{"spec":{"limits":{"cpu":null}}}`,
	`{"spec":{"limits":{"cpu":"1"}}}`, `{"spec":{"limits":{"a":1,"b":2,"c":3}}}`, `{"spec":{"either":{}}}`,
	`{"spec":{"either":{"a":"x","b":"y"}}}`, `{"spec":{"either":{"a":"x"}}}`, `{"spec":{"template":{}}}`,
	`{"spec":{"template":{"apiVersion":"v1","kind":"Pod"}}}`,
	`{"spec":{"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"A B","labels":{"a b":"c"},"extra":1}}}}`,
	`{"spec":{"unknown":{"x":1}}}`, `{"unknown":{"a":1}}`,
	`{"status":{"size":1}}`, `{"metadata":{"extra":1}}`, `{"metadata":{"labels":{"a b":"c"}}}`,
	`{"metadata":{"labels":7}}`, `{"metadata":{"finalizers":["x"]}}`, `{"metadata":{"generation":7}}`,
	`{"metadata":{"managedFields":[]}}`,
	`{"apiVersion":"conformance.example.com/v1beta1"}`, `{"apiVersion":"v1"}`, `{"kind":"Other"}`,
	`{"apiVersion":null}`, `{"kind":null}`,
}

// testWidgets compares valid and invalid writes of widgets, their subresources and their Tables.
func testWidgets(t *testing.T, p *pair) {
	const all = widgetsPath
	p.do(t, "POST "+all, "", widget)
	p.markRevision()
	for _, patch := range widgetPatches {
		for _, validation := range []string{"Ignore", "Warn", "Strict"} {
			p.do(t, "PATCH "+all+"/w?dryRun=All&fieldValidation="+validation, asMerge, patch)
		}
		body := mergePatched(t, widget, patch)
		p.do(t, "POST "+all+"?dryRun=All", "", modified(body, func(_, m object) { m["name"] = "new" }))
		p.do(t, "PUT "+all+"/w?dryRun=All&fieldValidation=Warn", "", text(body))
		p.do(t, "PATCH "+all+"/w?dryRun=All&fieldManager=other", asApply, text(body))
	}
	p.do(t, "POST "+all+"?fieldValidation=Strict", asYAML, widget+"\n")
	p.do(t, "POST "+all+"?fieldValidation=Strict&dryRun=All", asYAML,
		"apiVersion: conformance.example.com/v1\nkind: Widget\nmetadata: {name: y}\n"+
			"spec: {color: red, color: green, x: 1}\n")
	for _, q := range []string{"spec.color%3Dgreen", "spec.color!%3Dgreen", "spec.size%3D3",
		"metadata.name%3Dw,spec.color%3Dgreen"} {
		p.get(t, all+"?fieldSelector="+q)
	}
	for _, body := range []string{
		`{"status":{"size":2,"pods":"a=b"}}`, `{"status":{"size":"x"}}`, `{"status":{"pods":7}}`,
		`{"spec":{"size":7},"status":{"size":3}}`, `{"metadata":{"labels":{"c":"d"}}}`, `{"status":null}`,
	} {
		p.do(t, "PATCH "+all+"/w/status", asMerge, body)
		p.get(t, all+"/w/scale")
	}
	for _, body := range []string{`{"spec":{"replicas":5}}`, `{"spec":{"replicas":500}}`, `{"spec":{"replicas":-1}}`,
		`{"spec":{"replicas":"x"}}`, `{"spec":null}`, `{"metadata":{"resourceVersion":"1"}}`,
		`{"metadata":{"name":"x"}}`} {
		p.do(t, "PATCH "+all+"/w/scale", asMerge, body)
	}
	p.do(t, "PUT "+all+"/w/scale", "", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"w","namespace":"conformance"},"spec":{"replicas":6}}`)
	p.do(t, "PUT "+all+"/w/scale", "", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"x"},"spec":{"replicas":6}}`)
	p.do(t, "PUT "+all+"/w/scale", "", widget)
	p.table(t, all+"/w/scale")
	p.table(t, all)
	p.get(t, "/apis/conformance.example.com/v1beta1/namespaces/conformance/widgets/w")
	p.get(t, "/apis/conformance.example.com/v1/widgets")
	p.get(t, "/apis/conformance.example.com/v1/widgets/w")
	p.get(t, "/apis/conformance.example.com/v2/widgets")
	p.do(t, "PATCH "+all+"/w", asStrategic, `{}`)
	p.do(t, "DELETE /apis/conformance.example.com/v1/widgets", "", "")
	p.watch(t, all, "w", 3)
	p.do(t, "DELETE "+all, "", "")
}

// mergePatched applies a merge patch to the object in text and returns the result. Null values in the patch do not
// delete fields: they become null values of the result.
func mergePatched(t *testing.T, text, patch string) object {
	t.Helper()
	var o, changes object
	for from, to := range map[string]*object{text: &o, patch: &changes} {
		if err := yaml.Unmarshal([]byte(from), to); err != nil {
			t.Fatal(err)
		}
	}
	merge(o, changes)
	return o
}

func merge(o, patch object) {
	for k, v := range patch {
		inner, isMap := v.(object)
		if was, ok := o[k].(object); ok && isMap {
			merge(was, inner)
		} else {
			o[k] = v
		}
	}
}

// testLifecycle compares widgets from their creation to their deletion.
func testLifecycle(t *testing.T, p *pair) {
	const one = widgetsPath + "/one"
	named := func(name, metadata string) string {
		return `{"apiVersion":"conformance.example.com/v1","kind":"Widget","metadata":{"name":"` + name + `"` +
			metadata + `},"spec":{"color":"red","size":3}}`
	}
	p.do(t, "POST "+widgetsPath, "", strings.Replace(named("", `,"generateName":"made-"`), `"name":"",`, "", 1))
	p.do(t, "POST "+widgetsPath, "", named("one",
		`,"finalizers":["example.com/a"],"uid":"x","creationTimestamp":"2020-01-01T00:00:00Z","generation":7,"selfLink":"/x","deletionGracePeriodSeconds":5`))
	p.markRevision()
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"labels":{"c":"d"}}}`)
	p.do(t, "PATCH "+one+"?fieldManager=other", asMerge, `{"spec":{"size":5}}`)
	p.do(t, "POST "+widgetsPath, "", named("two",
		`,"ownerReferences":[{"apiVersion":"conformance.example.com/v1","kind":"Widget","name":"one","uid":"{uid}","blockOwnerDeletion":true}]`))
	p.do(t, "DELETE "+widgetsPath+"/two", "", "") // kube-apiserver collects no garbage
	p.do(t, "POST "+widgetsPath, "", named("scaled", ""))
	p.do(t, "PATCH "+widgetsPath+"/scaled/scale", asMerge, `{"spec":{"replicas":3}}`)
	p.get(t, widgetsPath+"/scaled")
	p.do(t, "DELETE "+widgetsPath+"/scaled", "", "")
	p.do(t, "POST "+widgetsPath, "", named("three",
		`,"ownerReferences":[{"apiVersion":"a/v1","kind":"A","name":"a","uid":"a","controller":true},{"apiVersion":"a/v1","kind":"A","name":"b","uid":"b","controller":true}]`))
	for _, q := range []string{"limit=1", "limit=1&continue=x", "limit=2&labelSelector=none", "resourceVersion=0",
		"resourceVersion=0&limit=1", "resourceVersion={start}&resourceVersionMatch=Exact",
		"resourceVersion={start}&resourceVersionMatch=NotOlderThan"} {
		p.get(t, widgetsPath+"?"+q+"&fieldSelector=metadata.name%3Done")
	}
	for _, accept := range []string{asYAML, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json",
		"application/cbor", "text/html"} {
		p.send(t, request{method: http.MethodGet, path: one, accept: accept})
	}
	p.do(t, "HEAD "+one, "", "") // built-in kinds do not support HEAD
	p.do(t, "HEAD "+widgetsPath, "", "")
	p.do(t, "DELETE "+one+"?propagationPolicy=Orphan&dryRun=All", "", "")
	p.do(t, "DELETE "+one+"?propagationPolicy=Foreground&dryRun=All", "", "")
	p.do(t, "DELETE "+one, "", "")
	p.do(t, "PATCH "+one, asMerge, `{"spec":{"size":4}}`)
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`)
	p.do(t, "POST "+widgetsPath, "", named("one", ""))
	p.do(t, "PATCH "+one+"?fieldManager=a&force=true", asApply, named("one", ""))
	p.watch(t, widgetsPath, "one", 3)
	p.do(t, "PATCH "+one, asMerge, `{"metadata":{"finalizers":null}}`)
	p.get(t, one)
	p.do(t, "PUT "+one, "", named("one", ""))
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, named("one", ""))
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, named("one", `,"labels":{"a":"b"}`))
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, named("one", ""))
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, named("one", `,"uid":"x"`))
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, named("one", `,"resourceVersion":"1"`))
	p.do(t, "PATCH "+one+"/status?fieldManager=a", asApply,
		`{"apiVersion":"conformance.example.com/v1","kind":"Widget","status":{"size":1}}`)
	p.do(t, "PATCH "+one+"?fieldManager=a", asApply, strings.Replace(named("one", ""), "/v1", "/v1beta1", 1))
	for _, q := range []string{"watch=1",
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
		"watch=1&resourceVersion=0"} {
		p.send(t, request{method: http.MethodGet, events: 1,
			path: widgetsPath + "?timeoutSeconds=5&fieldSelector=metadata.name%3Done&" + q})
		p.send(t, request{method: http.MethodGet, events: 1,
			path: widgetsPath + "?timeoutSeconds=5&fieldSelector=metadata.name%3Done&" + q, accept: asTable})
	}
	p.do(t, "DELETE "+widgetsPath+"?propagationPolicy=Background&dryRun=All", "", "")
	p.do(t, "DELETE "+widgetsPath+"?fieldSelector=metadata.name%3Done", "", "")
	p.do(t, "DELETE "+widgetsPath, "", "")
}

// testVersions compares changes of a CRD's versions, names and status.
func testVersions(t *testing.T, p *pair) {
	const path = crdPath + "/widgets.conformance.example.com"
	for _, patch := range []string{
		`[{"op":"replace","path":"/spec/versions/1/storage","value":true}]`,
		`[{"op":"remove","path":"/spec/versions/0"}]`,
		`[{"op":"replace","path":"/spec/versions/0/served","value":false},{"op":"replace","path":"/spec/versions/1/served","value":false}]`,
		`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`,
		`[{"op":"replace","path":"/spec/names/kind","value":"Gadget"},{"op":"replace","path":"/spec/names/listKind","value":"GadgetList"}]`,
		`[{"op":"add","path":"/spec/versions/-","value":{"name":"v1beta1","served":true,"storage":false}}]`,
		`[{"op":"add","path":"/spec/conversion","value":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v2"],"clientConfig":{"url":"http://x","service":{"name":"a","namespace":"b"}}}}}]`,
		`[{"op":"add","path":"/metadata/annotations","value":{"api-approved.kubernetes.io":"none"}}]`,
		`[{"op":"add","path":"/metadata/labels","value":{"a b":"c"}}]`,
	} {
		p.do(t, "PATCH "+path+"?dryRun=All", asJSONPatch, patch)
	}
	for _, patch := range []string{`{"status":{"storedVersions":["v1beta1"]}}`, `{"status":{"conditions":[]}}`,
		`{"spec":{"scope":"Cluster"}}`, `{"status":{"storedVersions":["v1","v1beta1"]}}`} {
		p.do(t, "PATCH "+path+"/status?dryRun=All", asMerge, patch)
	}
}
