package builtin

import (
	"context"
	"encoding/base64"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// find returns the endpoint of a plural in a group.
func find(t *testing.T, group, plural string) *resource.Version {
	t.Helper()
	for _, v := range everyVersion() {
		if v.GroupVersion.Group == group && v.Definition.Names.Plural == plural {
			return v
		}
	}
	t.Fatalf("no %s in group %q", plural, group)
	return nil
}

// read decodes a YAML body at v and brings it to the storage version, with
// defaults.
func read(t *testing.T, v *resource.Version, yaml string) object.Tree {
	t.Helper()
	body, _, err := object.DecodeYAML([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	obj, strict, err := v.Type.Normalize(body)
	if err != nil || len(strict) > 0 {
		t.Fatal(err, strict)
	}
	if v.ConvertTo != nil {
		if obj, err = v.ConvertTo(obj); err != nil {
			t.Fatal(err)
		}
	}
	if f := v.Definition.Behavior.Default; f != nil {
		f(obj)
	}
	return obj
}

// create says what a create of the body answers: the messages of its errors.
func create(t *testing.T, v *resource.Version, obj object.Tree) []string {
	t.Helper()
	b := v.Definition.Behavior
	if b.PrepareCreate != nil {
		if err := b.PrepareCreate(context.Background(), obj); err != nil {
			return []string{err.Error()}
		}
	}
	var messages []string
	if b.Validate != nil {
		for _, err := range b.Validate(obj) {
			messages = append(messages, err.Error())
		}
	}
	if v.Validate != nil {
		for _, err := range v.Validate(obj, obj, nil, "") {
			messages = append(messages, err.Error())
		}
	}
	return messages
}

// update is the same for a write over old through a subresource.
func update(t *testing.T, v *resource.Version, obj, old object.Tree, sub string) []string {
	t.Helper()
	b := v.Definition.Behavior
	before := object.Copy(old)
	if b.PrepareUpdate != nil {
		if err := b.PrepareUpdate(context.Background(), obj, old, sub); err != nil {
			return []string{err.Error()}
		}
	}
	var messages []string
	if b.ValidateUpdate != nil {
		for _, err := range b.ValidateUpdate(obj, old, sub) {
			messages = append(messages, err.Error())
		}
	}
	if b.Validate != nil && sub == "" {
		for _, err := range b.Validate(obj) {
			messages = append(messages, err.Error())
		}
	}
	if v.Validate != nil {
		for _, err := range v.Validate(obj, obj, old, sub) {
			messages = append(messages, err.Error())
		}
	}
	if !reflect.DeepEqual(old, before) {
		t.Error("the old object was modified")
	}
	return messages
}

func encoded(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }

const immutableText = ": Forbidden: field is immutable when `immutable` is set"

// CRD-052
func TestCreate(t *testing.T) {
	const keyRule = `: a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`
	const qualified = `name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`
	for _, c := range []struct {
		name, group, plural, body string
		want                      []string
	}{
		{"empty", "", "configmaps", `{metadata: {name: a}}`, nil},
		{"keys", "", "configmaps", `{data: {"a/b": x, "..": q, ok: z}, binaryData: {"c d": ""}}`, []string{
			`data[..]: Invalid value: "..": must not be '..'`,
			`data[a/b]: Invalid value: "a/b"` + keyRule, `binaryData[c d]: Invalid value: "c d"` + keyRule}},
		{"twice", "", "configmaps", `{data: {a: x}, binaryData: {a: ""}}`, []string{`data[a]: Invalid value: "a": duplicate of key present in binaryData`}},
		{"as large as may be", "", "configmaps", `{data: {a: ` + strings.Repeat("x", 1<<20-3) + `}, binaryData: {b: "` + encoded(3) + `"}}`, nil},
		{"too large", "", "configmaps", `{data: {a: ` + strings.Repeat("x", 1<<20-3) + `}, binaryData: {b: "` + encoded(4) + `"}}`, []string{`[]: Too long: may not be more than 1048576 bytes`}},
		{"finalizer", "", "configmaps", `{metadata: {finalizers: [mine, orphan, a.io/b]}}`, []string{
			`metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`}},

		{"empty", "", "secrets", `{}`, nil},
		{"key", "", "secrets", `{stringData: {"a/b": x}}`, []string{`data[a/b]: Invalid value: "a/b"` + keyRule}},
		{"too large", "", "secrets", `{data: {a: "` + encoded(1<<20+1) + `"}}`, []string{`data: Too long: may not be more than 1048576 bytes`}},
		{"token", "", "secrets", `{type: kubernetes.io/service-account-token}`, []string{`metadata.annotations[kubernetes.io/service-account.name]: Required value`}},
		{"good token", "", "secrets", `{type: kubernetes.io/service-account-token, metadata: {annotations: {kubernetes.io/service-account.name: x}}}`, nil},
		{"dockercfg", "", "secrets", `{type: kubernetes.io/dockercfg}`, []string{`data[.dockercfg]: Required value`}},
		{"bad dockercfg", "", "secrets", `{type: kubernetes.io/dockercfg, stringData: {.dockercfg: "{"}}`, []string{`data[.dockercfg]: Invalid value: "<secret contents redacted>": unexpected end of JSON input`}},
		{"dockerconfigjson", "", "secrets", `{type: kubernetes.io/dockerconfigjson}`, []string{`data[.dockerconfigjson]: Required value`}},
		{"good dockerconfigjson", "", "secrets", `{type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: "{}"}}`, nil},
		{"basic auth", "", "secrets", `{type: kubernetes.io/basic-auth}`, []string{`data[username]: Required value`, `data[password]: Required value`}},
		{"half basic auth", "", "secrets", `{type: kubernetes.io/basic-auth, stringData: {password: ""}}`, nil},
		{"ssh", "", "secrets", `{type: kubernetes.io/ssh-auth, data: {ssh-privatekey: ""}}`, []string{`data[ssh-privatekey]: Required value`}},
		{"tls", "", "secrets", `{type: kubernetes.io/tls, data: {tls.key: ""}}`, []string{`data[tls.crt]: Required value`}},
		{"other type", "", "secrets", `{type: example.com/any}`, nil},

		{"plain", "", "namespaces", `{metadata: {name: a}}`, nil},
		{"finalizers", "", "namespaces", `{metadata: {name: a}, spec: {finalizers: [a.io/b, mine, "a b/c"]}}`, []string{
			`spec.finalizers[1]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`,
			`spec.finalizers[2]: Invalid value: "a b/c": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`}},

		{"plain", "", "serviceaccounts", `{metadata: {name: a}}`, nil},
		{"finalizer", "", "serviceaccounts", `{metadata: {finalizers: [mine]}}`, []string{`metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`}},

		{"old", "", "events", `{metadata: {name: e, namespace: ns}, involvedObject: {namespace: ns}}`, nil},
		{"old, elsewhere", "", "events", `{metadata: {name: e, namespace: ns}, involvedObject: {namespace: other}}`, []string{`involvedObject.namespace: Invalid value: "other": does not match event.namespace`}},
		{"old, of a cluster object", "", "events", `{metadata: {name: e, namespace: default}, involvedObject: {kind: Node}}`, nil},
		{"old, of a cluster object, elsewhere", "", "events", `{metadata: {name: e, namespace: ns}, involvedObject: {kind: Node}}`, []string{`involvedObject.namespace: Invalid value: "": does not match event.namespace`}},
		{"new, bare", "", "events", `{metadata: {name: e, namespace: ns}, involvedObject: {}, eventTime: "2026-01-02T03:04:05.000000Z"}`, []string{
			`involvedObject.namespace: Invalid value: "": does not match event.namespace`, `reportingController: Required value`,
			`reportingController: Invalid value: "": name part must be non-empty`, `reportingController: Invalid value: "": ` + qualified,
			`reportingInstance: Required value`, `action: Required value`, `reason: Required value`}},
		{"new, long", "", "events", `{metadata: {name: e, namespace: default}, involvedObject: {}, eventTime: "2026-01-02T03:04:05.000000Z", reportingComponent: a, reportingInstance: i, action: a, reason: ` +
			strings.Repeat("r", 129) + `, message: ` + strings.Repeat("m", 1025) + `}`, []string{
			`reason: Invalid value: "": can have at most 128 characters`, `message: Invalid value: "": can have at most 1024 characters`}},

		{"good", "events.k8s.io", "events", `{metadata: {name: e, namespace: ns}, regarding: {namespace: ns}, eventTime: "2026-01-02T03:04:05.000000Z", reportingController: c, reportingInstance: i, action: a, reason: r, type: Normal, series: {count: 2, lastObservedTime: "2026-01-02T03:04:05.000000Z"}}`, nil},
		{"strict", "events.k8s.io", "events", `{metadata: {name: "E", namespace: ns}, regarding: {namespace: ns}, eventTime: null, deprecatedCount: 1, deprecatedSource: {host: h}, deprecatedFirstTimestamp: "2026-01-02T03:04:05Z", deprecatedLastTimestamp: "2026-01-02T03:04:05Z", series: {count: 1, lastObservedTime: null}}`, []string{
			`metadata.name: Invalid value: "E": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
			`series.count: Invalid value: "": should be at least 2`, `series.lastObservedTime: Required value`, `eventTime: Required value`, `type: Invalid value: "": has invalid value: `,
			`firstTimestamp: Invalid value: "": needs to be unset`, `lastTimestamp: Invalid value: "": needs to be unset`, `count: Invalid value: "": needs to be unset`, `source: Invalid value: "": needs to be unset`}},

		{"good", "coordination.k8s.io", "leases", `{spec: {leaseDurationSeconds: 1, leaseTransitions: 0}}`, nil},
		{"bad", "coordination.k8s.io", "leases", `{spec: {leaseDurationSeconds: 0, leaseTransitions: -1}}`, []string{
			`spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0`, `spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0`}},
		{"gated", "coordination.k8s.io", "leases", `{spec: {strategy: nonsense, preferredHolder: x}}`, nil},
	} {
		t.Run(c.plural+"/"+c.name, func(t *testing.T) {
			v := find(t, c.group, c.plural)
			if got := create(t, v, read(t, v, c.body)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// CRD-052
func TestUpdate(t *testing.T) {
	const good = `eventTime: "2026-01-02T03:04:05.000000Z", reportingController: c, reportingInstance: i, action: a, type: Normal`
	for _, c := range []struct {
		name, group, plural, sub, old, body string
		want                                []string
	}{
		{"free", "", "configmaps", "", `{data: {a: x}}`, `{data: {a: z}, immutable: true}`, nil},
		{"immutable", "", "configmaps", "", `{data: {a: x}, immutable: true}`, `{data: {a: z}, binaryData: {b: ""}}`, []string{"immutable" + immutableText, "data" + immutableText, "binaryData" + immutableText}},
		{"immutable, labels", "", "configmaps", "", `{data: {a: x}, immutable: true}`, `{metadata: {labels: {a: b}}, data: {a: x}, binaryData: {}, immutable: true}`, nil},
		{"immutable", "", "secrets", "", `{stringData: {a: x}, immutable: true}`, `{stringData: {a: z}, immutable: true}`, []string{"data" + immutableText}},
		{"same", "", "secrets", "", `{data: {a: eA==}, immutable: true}`, `{stringData: {a: x}, immutable: true}`, nil},
		{"type", "", "secrets", "", `{type: a/b}`, `{}`, []string{`type: Invalid value: "Opaque": field is immutable`}},
		{"type, keys", "", "secrets", "", `{}`, `{type: kubernetes.io/ssh-auth}`, []string{`type: Invalid value: "kubernetes.io/ssh-auth": field is immutable`, `data[ssh-privatekey]: Required value`}},

		{"keeps", "", "namespaces", "", `{metadata: {name: a}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`, `{metadata: {name: a}, spec: {finalizers: [mine]}, status: {phase: Nonsense}}`, nil},
		{"status", "", "namespaces", "status", `{metadata: {name: a}}`, `{metadata: {name: a}, status: {phase: Terminating}}`, []string{"status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"}},
		{"status of one that goes", "", "namespaces", "status", `{metadata: {name: a}}`, `{metadata: {name: a, deletionTimestamp: "2026-01-02T03:04:05Z"}, status: {phase: Active}}`, []string{"status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"}},
		{"finalize", "", "namespaces", "finalize", `{metadata: {name: a}, spec: {finalizers: [kubernetes]}}`, `{metadata: {name: a}, spec: {finalizers: [mine]}}`, []string{`spec.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`}},

		{"anything", "", "events", "", `{metadata: {namespace: ns}, involvedObject: {namespace: ns}, count: 1, reason: x}`, `{metadata: {namespace: ns}, involvedObject: {namespace: ns}, count: 2, reason: z}`, nil},
		{"series", "events.k8s.io", "events", "", `{metadata: {namespace: ns}, regarding: {namespace: ns}, reason: x, ` + good + `}`,
			`{metadata: {namespace: ns}, regarding: {namespace: ns}, reason: x, series: {count: 2, lastObservedTime: "2026-01-02T03:04:05.000000Z"}, ` + good + `}`, nil},
		{"fields", "events.k8s.io", "events", "", `{metadata: {namespace: ns}, regarding: {namespace: ns}, reason: x, note: a, ` + good + `}`,
			`{metadata: {namespace: ns}, regarding: {namespace: ns}, reason: x, note: b, series: {count: 1, lastObservedTime: null}, ` + good + `}`, []string{
				`series.count: Invalid value: "": should be at least 2`, `series.lastObservedTime: Required value`, `message: Invalid value: "b": field is immutable`}},
		{"kept gate", "coordination.k8s.io", "leases", "", `{spec: {strategy: OldestEmulationVersion}}`, `{spec: {strategy: Nonsense, preferredHolder: x}}`, []string{
			`spec.strategy.strategy: Unsupported value: "Nonsense": supported values: "OldestEmulationVersion"`}},
	} {
		t.Run(c.plural+"/"+c.name, func(t *testing.T) {
			v := find(t, c.group, c.plural)
			if got := update(t, v, read(t, v, c.body), read(t, v, c.old), c.sub); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		group, plural, good, bad string
	}{
		{"", "configmaps", "a.b-c", "A"}, {"", "namespaces", "a-b", "a.b"}, {"", "secrets", "a.b", "a_b"},
		{"", "events", "A.b_c!", "a/b"}, {"coordination.k8s.io", "leases", "a.b", "a b"}, {"", "serviceaccounts", "a.b", "-a"},
	} {
		check := find(t, c.group, c.plural).Definition.Behavior.ValidateName
		if msgs := check(c.good, false); len(msgs) > 0 {
			t.Errorf("%s: %q refused: %q", c.plural, c.good, msgs)
		}
		if msgs := check(c.bad, false); len(msgs) == 0 {
			t.Errorf("%s: %q accepted", c.plural, c.bad)
		}
	}
}

// CRD-031
func TestNamespaceLife(t *testing.T) {
	v := find(t, "", "namespaces")
	b := v.Definition.Behavior
	for _, sent := range SystemNamespaces() {
		obj := read(t, v, string(object.AppendJSON(nil, sent)))
		if errs := create(t, v, obj); len(errs) > 0 {
			t.Error(errs)
		}
		name := text(sent, "metadata", "name")
		if text(obj, "metadata", "labels", "kubernetes.io/metadata.name") != name || text(obj, "status", "phase") != "Active" || len(list(obj, "spec", "finalizers")) != 1 {
			t.Errorf("%v", obj)
		}
		if b.Deletable(obj) {
			t.Error("deletable with its finalizer")
		}
		err := b.BeforeDelete(context.Background(), obj)
		if name == "kube-node-lease" {
			if err != nil || text(obj, "status", "phase") != "Terminating" {
				t.Errorf("%v %v", err, obj)
			}
		} else if want := `namespaces "` + name + `" is forbidden: this namespace may not be deleted`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	old := read(t, v, `{metadata: {name: a}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`)
	obj := read(t, v, `{metadata: {name: a}, status: {phase: Terminating}}`)
	if errs := update(t, v, obj, old, "finalize"); len(errs) > 0 || !b.Deletable(obj) || text(obj, "status", "phase") != "Active" {
		t.Errorf("finalize: %v %v", errs, obj)
	}
	generated := read(t, v, `{metadata: {generateName: a-}}`)
	generated["metadata"].(object.Tree)["name"] = "a-xyz"
	create(t, v, generated)
	if text(generated, "metadata", "labels", "kubernetes.io/metadata.name") != "a-xyz" {
		t.Errorf("generated: %v", generated)
	}
}

func TestSecretIsFolded(t *testing.T) {
	got := read(t, find(t, "", "secrets"), `{data: {a: eA==, b: eA==}, stringData: {b: "y", c: "z"}}`)
	want := object.Tree{"metadata": object.Tree{}, "type": "Opaque", "data": object.Tree{"a": "eA==", "b": "eQ==", "c": "eg=="}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestServiceAccountKeepsNames(t *testing.T) {
	v := find(t, "", "serviceaccounts")
	obj := read(t, v, `{secrets: [{name: a, namespace: other, kind: X}], imagePullSecrets: [{name: b}]}`)
	create(t, v, obj)
	if want := []any{object.Tree{"name": "a"}}; !reflect.DeepEqual(list(obj, "secrets"), want) {
		t.Errorf("%v", obj)
	}
}

func TestWarnings(t *testing.T) {
	v := find(t, "", "secrets")
	obj := read(t, v, `{type: kubernetes.io/tls, stringData: {tls.crt: x, tls.key: "y"}}`)
	if got, want := v.Definition.Behavior.Warnings(obj, nil), []string{"tls: failed to find any PEM data in certificate input"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	v = find(t, "", "serviceaccounts")
	obj = read(t, v, `{metadata: {annotations: {kubernetes.io/enforce-mountable-secrets: "true"}}}`)
	if got := v.Definition.Behavior.Warnings(obj, nil); len(got) != 1 {
		t.Errorf("got %q", got)
	}
	if got := v.Definition.Behavior.Warnings(obj, obj); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

func TestEventTTL(t *testing.T) {
	for _, d := range Definitions(Config{EventTTL: time.Hour}) {
		if want := map[bool]int64{true: 3600}[d.Names.Kind == "Event"]; d.Behavior.TTL != want {
			t.Errorf("%s: TTL %d", d.Names.Kind, d.Behavior.TTL)
		}
	}
}
