package conversion

import (
	"context"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// declaredKind returns the Definition of a CRD with the versions v1, the storage version, and v1beta1. The
// arguments define the schema of spec in each version.
func declaredKind(t testing.TB, annotation, v1, v1beta1 string) *resource.Definition {
	t.Helper()
	crd := `{"metadata": {"name": "crontabs.example.com"},
"spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "crontabs", "kind": "CronTab"},
	"conversion": {"strategy": "None"}, "versions": []}}`
	tree, _, err := object.DecodeJSON([]byte(crd))
	if err != nil {
		t.Fatal(err)
	}
	object.Metadata(tree)["annotations"] = object.Tree{resource.ConversionAnnotation: annotation}
	var versions []any
	for i, fields := range []string{v1, v1beta1} {
		v, _, err := object.DecodeYAML([]byte("schema: {openAPIV3Schema: {type: object, properties: {spec: {type: " +
			"object, " + fields + "}}}}"))
		if err != nil {
			t.Fatal(err, fields)
		}
		v["name"], v["served"], v["storage"] = []string{"v1", "v1beta1"}[i], true, i == 0
		versions = append(versions, v)
	}
	tree["spec"].(object.Tree)["versions"] = versions
	d := definition.FromCRD(&storage.Record{Value: object.Pack(tree, 0).JSON()})
	if d == nil {
		t.Fatal("no definition")
	}
	return d
}

const (
	hostAndPort = `required: [host, port], properties: {host: {type: string, maxLength: 253}, port: {type: ` +
		`integer}, cron: {type: string}}`
	hostPort = `properties: {hostPort: {type: string, maxLength: 300}, cron: {type: string}}`
	both     = `
- from: v1beta1
  to: v1
  fields:
  - {path: .spec.host, value: "self.spec.hostPort.split(':')[0]"}
  - {path: .spec.port, value: "int(self.spec.hostPort.split(':')[1])"}
- from: v1
  to: v1beta1
  fields:
  - {path: .spec.hostPort, value: "self.spec.host + ':' + string(self.spec.port)"}
`
)

func TestDeclaredCheck(t *testing.T) {
	way := func(fields ...string) string {
		out := "- from: v1beta1\n  to: v1\n  fields: [" + strings.Join(fields, ", ") + "]\n"
		return out + "- from: v1\n  to: v1beta1\n  fields:\n  - {path: .spec.hostPort, value: \"self.spec.host + " +
			"':' + string(self.spec.port)\"}\n"
	}
	host := `{path: .spec.host, value: "self.spec.hostPort.split(':')[0]"}`
	port := `{path: .spec.port, value: "int(self.spec.hostPort.split(':')[1])"}`
	for name, c := range map[string]struct {
		annotation, v1, v1beta1 string
		want                    []string // parts of the expected errors; empty means no error
	}{
		"good":        {both, hostAndPort, hostPort, nil},
		"no list":     {"from: v1", hostAndPort, hostPort, []string{"must be a list of {from, to"}},
		"unknown key": {"- {from: v1, to: v1beta1, feilds: []}", hostAndPort, hostPort, []string{`unknown field`}},
		"no version": {"- {from: v2, to: v1}", hostAndPort, hostPort,
			[]string{`metadata.annotations[trellis.dev/conversion][0].from: Unsupported value: "v2": supported ` +
				`values: "v1", "v1beta1"`}},
		"itself": {"- {from: v1, to: v1}", hostAndPort, hostPort,
			[]string{"must be between the storage version v1 and another version"}},
		"twice": {both + "- {from: v1, to: v1beta1}", hostAndPort, hostPort,
			[]string{`metadata.annotations[trellis.dev/conversion][2]: Duplicate value: "v1 to v1beta1"`}},
		"cel": {way(host, `{path: .spec.port, value: "self.spec.nope"}`), hostAndPort, hostPort,
			[]string{`[0].fields[1].value: Invalid value: "self.spec.nope": compilation failed: ERROR: ` +
				`<input>:1:10: undefined field 'nope'`}},
		"no oldSelf": {way(host, `{path: .spec.port, value: "oldSelf.spec.port"}`), hostAndPort, hostPort,
			[]string{"undeclared reference to 'oldSelf'"}},
		"type": {way(host, `{path: .spec.port, value: "self.spec.hostPort"}`), hostAndPort, hostPort,
			[]string{`[0].fields[1].value: Invalid value: "self.spec.hostPort": the expression is of type string, ` +
				`but the field is of type integer`}},
		"no field": {way(host, `{path: .spec.prot, value: "1"}`), hostAndPort, hostPort,
			[]string{"the schema has no such field"}},
		"no path": {way(host, `{path: spec.port, value: "1"}`), hostAndPort, hostPort,
			[]string{"must be a path of field names, such as .spec.host"}},
		"metadata": {way(host, `{path: .metadata.name, value: "'x'"}`), hostAndPort, hostPort,
			[]string{"metadata, apiVersion and kind are never converted"}},
		"overlap":    {way(host, host), hostAndPort, hostPort, []string{"overlaps with .spec.host"}},
		"empty list": {"[]", hostAndPort, hostPort, []string{".spec.hostPort", ".spec.host", ".spec.port"}},
		"one way": {"- {from: v1beta1, to: v1, fields: [" + host + ", " + port + "]}", hostAndPort, hostPort, []string{
			`".spec.host": lost in the conversion from v1 to v1beta1: the field is not in the target version, and no ` +
				`expression reads it`, `".spec.port": lost`}},
		"half read": {way(host), hostAndPort, hostPort, []string{`".spec.hostPort": lost`,
			`".spec.port": lost in the conversion from v1 to v1beta1: the value changes in a round trip: `}},
		"not there": {both, strings.Replace(hostAndPort, "required: [host, port], ", "", 1), hostPort,
			[]string{`".spec.port": lost in the conversion from v1 to v1beta1: in an object ` +
				`without .spec.host, the value changes in a round trip: {"spec":{"cron":"aB3","port":4}} is ` +
				`converted to {"spec":{"cron":"aB3"}}`}},
		"has()": {way(host, `{path: .spec.port, value: "has(self.spec.hostPort) ? 1 : 2"}`), hostAndPort, hostPort,
			[]string{`".spec.hostPort": lost`, `".spec.port": lost`}},
		"carried type": {"[]", "properties: {a: {type: integer}}", "properties: {a: {type: string}}", []string{
			`".spec.a": lost in the conversion from v1beta1 to v1: the value is of type string, but the ` +
				`target version requires the type integer`, `".spec.a": lost in the conversion from v1 to v1beta1`}},
		"number": {"[]", "properties: {a: {type: number}}", "properties: {a: {type: integer}}",
			[]string{`: the value is of type number, but the target version requires the type integer`}},
		"null": {"[]", "properties: {a: {type: string, nullable: true}}", "properties: {a: {type: string}}",
			[]string{`from v1 to v1beta1: the value can be null`}},
		"unknown": {"[]", "x-kubernetes-preserve-unknown-fields: true", "properties: {a: {type: string}}",
			[]string{`".spec": lost in the conversion from v1 to v1beta1: the value can have unknown fields`}},
		"map": {"[]", "additionalProperties: {type: string}", "properties: {a: {type: string}}",
			[]string{`".spec[*]": lost in the conversion from v1 to v1beta1`}},
		"items": {"[]", "properties: {l: {type: array, items: {type: object, properties: {x: {type: string}, " +
			"z: {type: string}}}}}", "properties: {l: {type: array, items: {type: object, properties: {x: {type: " +
			"string}}}}}", []string{`".spec.l[*].z": lost in the conversion from v1 to v1beta1`}},
		"overwritten": {`[{from: v1beta1, to: v1, fields: [{path: .spec.a, value: "'x'"}]}]`,
			"properties: {a: {type: string}}", "properties: {a: {type: string}}",
			[]string{`".spec.a": lost in the conversion from v1beta1 to v1: the field is replaced by an expression ` +
				`that does not read it`}},
		"narrowed": {`[{from: v1beta1, to: v1, fields: [{path: .spec.a, value: "self.spec.a.lowerAscii()"}]}]`,
			"properties: {a: {type: string, maxLength: 9}}", "properties: {a: {type: string, maxLength: 9}}",
			[]string{`".spec.a": lost`, `".spec.a": lost`}},
		"moved": {`
- from: v1beta1
  to: v1
  fields:
  - {path: .spec.template.spec, value: self.spec.pod}
- from: v1
  to: v1beta1
  fields:
  - {path: .spec.pod, value: 'self.?spec.template.spec'}
`, "properties: {template: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: " +
			"true}}}}", "properties: {pod: {type: object, x-kubernetes-preserve-unknown-fields: true}}", nil},
		"list of objects": {`
- from: v1beta1
  to: v1
  fields:
  - {path: .spec.ports, value: "self.spec.ports.map(p, {'port': p.number, ?'name': p.?name})"}
- from: v1
  to: v1beta1
  fields:
  - {path: .spec.ports, value: "self.spec.ports.map(p, {'number': p.port, ?'name': p.?name})"}
`, "properties: {ports: {type: array, maxItems: 10, items: {type: object, required: [port], properties: {port: " +
			"{type: integer}, name: {type: string, maxLength: 9}}}}}",
			"properties: {ports: {type: array, maxItems: 10, items: {type: object, required: [number], properties: " +
				"{number: {type: integer}, name: {type: string, maxLength: 9}}}}}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := CheckDeclared(t.Context(), declaredKind(t, c.annotation, c.v1, c.v1beta1))
			if len(errs) != len(c.want) {
				t.Fatalf("%v, want %q", errs, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(errs[i].Error(), want) {
					t.Errorf("%v, want %q", errs[i], want)
				}
			}
		})
	}
}

func objectAt(t testing.TB, text string) object.Tree {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte("{apiVersion: example.com/v1beta1, kind: CronTab, metadata: {name: x, " +
		"namespace: default, annotations: {a: b}}, " + text + "}"))
	if err != nil {
		t.Fatal(err)
	}
	tree, _, err := object.DecodeJSON(js)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestDeclared(t *testing.T) {
	d := declaredKind(t, both, hostAndPort, hostPort)
	v1, v1beta1 := d.Versions[0], d.Versions[1]
	if Trivial(v1, v1beta1) || Trivial(v1beta1, v1) || Trivial(nil, v1beta1) || !Trivial(nil, v1) || !Trivial(v1, v1) {
		t.Error("Trivial returned the wrong result")
	}
	in := objectAt(t, `spec: {hostPort: "localhost:1234", cron: x}`)
	before := object.Copy(in)
	out, err := convert(t.Context(), in, v1beta1, v1)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(object.AppendJSON(nil, out)),
		`{"apiVersion":"example.com/v1","kind":"CronTab","metadata":{"annotations":{"a":"b"},"name":"x",`+
			`"namespace":"default"},"spec":{"cron":"x","host":"localhost","port":1234}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !object.Equal(in, before) {
		t.Error("the object was modified")
	}
	back, err := convert(t.Context(), out, v1, v1beta1)
	if err != nil || !object.Equal(back, before) {
		t.Errorf("%v, %v", back, err)
	}
	none, err := convert(t.Context(), objectAt(t, `spec: {cron: x}`), v1beta1, v1)
	if spec := none["spec"].(object.Tree); err != nil || len(spec) != 1 || spec["cron"] != "x" {
		t.Errorf("%v, %v", none, err)
	}
	_, err = convert(t.Context(), objectAt(t, `spec: {hostPort: localhost}`), v1beta1, v1)
	if want := `convert CronTab "default/x" from example.com/v1beta1 to example.com/v1: .spec.port: index out of ` +
		`bounds: 1`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err = convert(t.Context(), objectAt(t, `spec: 1`), v1beta1, v1); err == nil {
		t.Error("a spec of a wrong type was converted")
	}
}

func TestDeclaredBroken(t *testing.T) {
	d := declaredKind(t, "nonsense", hostAndPort, hostPort)
	_, err := convert(t.Context(), objectAt(t, `spec: {hostPort: "a:1"}`), d.Versions[1], d.Versions[0])
	if err == nil || !strings.Contains(err.Error(),
		"annotation trellis.dev/conversion of the CustomResourceDefinition: ") {
		t.Error(err)
	}
}

func TestDeclaredBudget(t *testing.T) {
	list := `properties: {l: {type: array, items: {type: integer}}}`
	d := declaredKind(t, `[{from: v1beta1, to: v1, fields: [{path: .spec.l, value: "self.spec.l.filter(a, `+
		`self.spec.l.all(b, self.spec.l.all(c, a + b + c > 0)))"}]}]`, list, list)
	in := objectAt(t, `spec: {l: []}`)
	var l []any
	for range 1000 {
		l = append(l, int64(1))
	}
	in["spec"].(object.Tree)["l"] = l
	if _, err := convert(t.Context(), in, d.Versions[1], d.Versions[0]); err == nil ||
		!strings.Contains(err.Error(), "cost limit exceeded") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := convert(ctx, in, d.Versions[1], d.Versions[0]); err == nil {
		t.Error("a canceled request was converted")
	}
	costs, _ := CheckDeclared(t.Context(), d)
	if len(costs) != 1 || costs[0].Cost < 10_000_000 {
		t.Error(costs)
	}
}
