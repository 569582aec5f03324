package builtin

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// line is what discovery, kubectl and etcd see of a kind.
func line(v *resource.Version) string {
	d := v.Definition
	s := fmt.Sprintf("%s %s %s %s %v ns=%t %v %s", v.APIVersion, d.Names.Kind, d.Names.Plural, d.Names.Singular, d.Names.ShortNames, d.Namespaced, strings.Join(d.Verbs, ","), d.Prefix)
	if v.Status {
		s += " status"
	}
	for _, sub := range v.Subresources {
		s += fmt.Sprintf(" %s%v", sub.Name, sub.Verbs)
	}
	if d.Behavior.UnconditionalUpdate {
		s += " unconditional"
	}
	if d.Behavior.CreateOnUpdate {
		s += " createOnUpdate"
	}
	return s
}

// CRD-049: what kube-apiserver v1.37 announces of these kinds, and where it stores them.
func TestTable(t *testing.T) {
	const all = "create,delete,deletecollection,get,list,patch,update,watch"
	want := map[string]bool{
		"v1 ConfigMap configmaps configmap [cm] ns=true " + all + " /registry/configmaps/ unconditional":                                                                                       true,
		"v1 Endpoints endpoints endpoints [ep] ns=true " + all + " /registry/services/endpoints/ unconditional createOnUpdate":                                                                 true,
		"v1 Service services service [svc] ns=true " + all + " /registry/services/specs/ status unconditional createOnUpdate":                                                                  true,
		"discovery.k8s.io/v1 EndpointSlice endpointslices endpointslice [] ns=true " + all + " /registry/endpointslices/ unconditional":                                                        true,
		"v1 Event events event [ev] ns=true " + all + " /registry/events/ unconditional createOnUpdate":                                                                                        true,
		"events.k8s.io/v1 Event events event [ev] ns=true " + all + " /registry/events/ unconditional createOnUpdate":                                                                          true,
		"v1 Namespace namespaces namespace [ns] ns=false create,delete,get,list,patch,update,watch /registry/namespaces/ status finalize[update] unconditional":                                true,
		"v1 Secret secrets secret [] ns=true " + all + " /registry/secrets/ unconditional":                                                                                                     true,
		"v1 ServiceAccount serviceaccounts serviceaccount [sa] ns=true " + all + " /registry/serviceaccounts/ unconditional":                                                                   true,
		"coordination.k8s.io/v1 Lease leases lease [] ns=true " + all + " /registry/leases/ createOnUpdate":                                                                                    true,
		"authentication.k8s.io/v1 SelfSubjectReview selfsubjectreviews selfsubjectreview [] ns=false create /registry/selfsubjectreviews/ unconditional":                                       true,
		"authorization.k8s.io/v1 SelfSubjectAccessReview selfsubjectaccessreviews selfsubjectaccessreview [] ns=false create /registry/selfsubjectaccessreviews/ unconditional":                true,
		"authorization.k8s.io/v1 SelfSubjectRulesReview selfsubjectrulesreviews selfsubjectrulesreview [] ns=false create /registry/selfsubjectrulesreviews/ unconditional":                    true,
		"storagemigration.k8s.io/v1 StorageVersionMigration storageversionmigrations storageversionmigration [] ns=false " + all + " /registry/storageversionmigrations/ status unconditional": true,
	}
	for _, v := range everyVersion() {
		if v.GroupVersion.Group == "apiextensions.k8s.io" {
			continue
		}
		if l := line(v); !want[l] {
			t.Errorf("unexpected: %s", l)
		} else {
			delete(want, l)
		}
		gvks, _, err := scheme.Scheme.ObjectKinds(v.Type.New())
		if err != nil || gvks[0] != v.GroupVersionKind() {
			t.Errorf("%v %v, want %v", gvks, err, v.GroupVersionKind())
		}
		if v.Definition.Behavior.Answer != nil {
			continue
		}
		gvks, _, err = scheme.Scheme.ObjectKinds(v.Type.NewList())
		if err != nil || gvks[0] != v.GroupVersion.WithKind(v.Definition.Names.ListKind) {
			t.Errorf("list: %v %v", gvks, err)
		}
	}
	for l := range want {
		t.Errorf("missing: %s", l)
	}
}

// CRD-055: each kind can be written in protobuf and parsed for field ownership.
func TestEveryKindIsComplete(t *testing.T) {
	for _, v := range everyVersion() {
		name := v.APIVersion + " " + v.Definition.Names.Kind
		if _, err := resource.AppendProtobuf(nil, v.APIVersion, v.Definition.Names.Kind, v.Type.New()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := v.Parseable()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := p.FromUnstructured(object.Tree{"metadata": object.Tree{"name": "a"}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, c := range v.Columns {
			if c.Description == "" || c.Path == nil && c.Cell == nil {
				t.Errorf("%s: column %+v", name, c)
			}
			if c.Cell != nil {
				c.Cell(object.Tree{}) // must not panic
			}
		}
	}
}

// row renders the cells of an object, priorities and ages marked.
func row(v *resource.Version, obj object.Tree) string {
	var cells []string
	for _, c := range v.Columns {
		var cell any
		if c.Cell != nil {
			cell = c.Cell(obj)
		} else {
			cell = value(obj, c.Path...)
		}
		s := fmt.Sprintf("%s=%v", c.Name, cell)
		if c.Age {
			s += "~"
		}
		if c.Priority > 0 {
			s += "+"
		}
		cells = append(cells, s)
	}
	return strings.Join(cells, "|")
}

// CRD-061
func TestColumns(t *testing.T) {
	const meta = `metadata: {name: o, creationTimestamp: "2026-01-02T03:04:05Z"}`
	for _, c := range []struct{ group, plural, body, want string }{
		{"", "namespaces", `{` + meta + `, status: {phase: Active}}`, "Name=o|Status=Active|Age=2026-01-02T03:04:05Z~"},
		{"", "configmaps", `{` + meta + `, data: {a: b}, binaryData: {c: "", d: ""}}`, "Name=o|Data=3|Age=2026-01-02T03:04:05Z~"},
		{"", "secrets", `{` + meta + `, type: x/y, data: {a: ""}}`, "Name=o|Type=x/y|Data=1|Age=2026-01-02T03:04:05Z~"},
		{"", "serviceaccounts", `{` + meta + `, secrets: [{name: a}]}`, "Name=o|Age=2026-01-02T03:04:05Z~"},
		{"coordination.k8s.io", "leases", `{` + meta + `, spec: {holderIdentity: me}}`, "Name=o|Holder=me|Age=2026-01-02T03:04:05Z~"},
		{"coordination.k8s.io", "leases", `{` + meta + `}`, "Name=o|Holder=|Age=2026-01-02T03:04:05Z~"},
		{"", "events", `{` + meta + `, involvedObject: {kind: Pod, name: p, fieldPath: f}, type: Normal, reason: R, message: " m\n", source: {component: c, host: h}, count: 3, firstTimestamp: "2026-01-01T00:00:00Z", lastTimestamp: "2026-01-02T00:00:00Z"}`,
			"Last Seen=2026-01-02T00:00:00Z~|Type=Normal|Reason=R|Object=pod/p|Subobject=f+|Source=c, h+|Message=m|First Seen=2026-01-01T00:00:00Z~+|Count=3+|Name=o+"},
		{"", "events", `{` + meta + `, involvedObject: {kind: Pod}, eventTime: "2026-01-01T00:00:00.000001Z", reportingComponent: rc}`,
			"Last Seen=2026-01-01T00:00:00.000001Z~|Type=|Reason=|Object=pod|Subobject=+|Source=rc+|Message=|First Seen=2026-01-01T00:00:00.000001Z~+|Count=1+|Name=o+"},
		{"events.k8s.io", "events", `{` + meta + `, regarding: {kind: Pod, name: p, fieldPath: f}, type: Normal, reason: R, note: m, reportingController: rc, reportingInstance: ri, eventTime: "2026-01-01T00:00:00.000001Z", series: {count: 5, lastObservedTime: "2026-01-01T00:00:02.000000Z"}}`,
			"Last Seen=2026-01-01T00:00:02.000000Z~|Type=Normal|Reason=R|Object=pod/p|Subobject=f+|Source=rc, ri+|Message=m|First Seen=2026-01-01T00:00:00.000001Z~+|Count=5+|Name=o+"},
	} {
		v := find(t, c.group, c.plural)
		body, _, err := object.DecodeYAML([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		obj, _, err := v.Type.Normalize(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := row(v, obj); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// An Event means the same in both groups, whatever fields it has, and comes back unchanged.
func TestEventConversion(t *testing.T) {
	at, micro := metav1.NewTime(time.Unix(1_700_000_000, 0).UTC()), metav1.NewMicroTime(time.Unix(1_700_000_000, 123_000).UTC())
	ref := corev1.ObjectReference{Kind: "Pod", Name: "p", UID: "u"}
	for _, c := range []struct {
		core corev1.Event
		new  eventsv1.Event
	}{
		{},
		{
			corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: ref, Reason: "r", Message: "m", Source: corev1.EventSource{Component: "c", Host: "h"},
				FirstTimestamp: at, LastTimestamp: at, Count: 2, Type: "Normal", EventTime: micro, Series: &corev1.EventSeries{Count: 3, LastObservedTime: micro},
				Action: "a", Related: &ref, ReportingController: "rc", ReportingInstance: "ri",
			},
			eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: "e"}, Regarding: ref, Reason: "r", Note: "m", DeprecatedSource: corev1.EventSource{Component: "c", Host: "h"},
				DeprecatedFirstTimestamp: at, DeprecatedLastTimestamp: at, DeprecatedCount: 2, Type: "Normal", EventTime: micro, Series: &eventsv1.EventSeries{Count: 3, LastObservedTime: micro},
				Action: "a", Related: &ref, ReportingController: "rc", ReportingInstance: "ri",
			},
		},
	} {
		c.core.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		c.new.TypeMeta = metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}
		core, err := resource.ToTree(&c.core)
		if err != nil {
			t.Fatal(err)
		}
		other, err := resource.ToTree(&c.new)
		if err != nil {
			t.Fatal(err)
		}
		v := find(t, "events.k8s.io", "events")
		if got, err := v.ConvertTo(other); err != nil || !reflect.DeepEqual(got, core) {
			t.Errorf("%v\ngot  %v\nwant %v", err, got, core)
		}
		if got, err := v.ConvertFrom(core); err != nil || !reflect.DeepEqual(got, other) {
			t.Errorf("%v\ngot  %v\nwant %v", err, got, other)
		}
	}
}

// CRD-069: what kubectl auth whoami and auth can-i ask.
func TestReviews(t *testing.T) {
	c := Config{
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
		Allowed: func(_ context.Context, u user.Info, s *authorizationv1.SelfSubjectAccessReviewSpec) (bool, string) {
			return s.ResourceAttributes != nil && s.ResourceAttributes.Verb == "get", "because " + u.GetName()
		},
	}
	u := &user.DefaultInfo{Name: "eve", UID: "1", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}
	const invalid = `SelfSubjectAccessReview.authorization.k8s.io "" is invalid: `
	for _, q := range []struct{ plural, body, want string }{
		{"selfsubjectreviews", `{}`, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview","metadata":{"creationTimestamp":"2023-11-14T22:13:20Z"},"status":{"userInfo":{"extra":{"k":["v"]},"groups":["g"],"uid":"1","username":"eve"}}}`},
		{"selfsubjectaccessreviews", `{spec: {resourceAttributes: {verb: get}}}`, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","metadata":{},"spec":{"resourceAttributes":{"verb":"get"}},"status":{"allowed":true,"reason":"because eve"}}`},
		{"selfsubjectaccessreviews", `{spec: {nonResourceAttributes: {path: /}}, status: {allowed: true}}`, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","metadata":{},"spec":{"nonResourceAttributes":{"path":"/"}},"status":{"allowed":false,"reason":"because eve"}}`},
		{"selfsubjectaccessreviews", `{}`, invalid + `spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`},
		{"selfsubjectaccessreviews", `{metadata: {managedFields: [{manager: m}]}, spec: {resourceAttributes: {}, nonResourceAttributes: {path: /}}}`, invalid + `spec.nonResourceAttributes: Invalid value: {"path":"/"}: cannot be specified in combination with resourceAttributes`},
		{"selfsubjectaccessreviews", `{metadata: {name: a}, spec: {resourceAttributes: {}}}`, invalid + `metadata: Invalid value: {"name":"a"}: must be empty`},
		{"selfsubjectrulesreviews", `{}`, `no namespace on request`},
		{"selfsubjectrulesreviews", `{spec: {namespace: a}}`, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","metadata":{},"spec":{},"status":{"incomplete":true,"nonResourceRules":[],"resourceRules":[]}}`},
	} {
		for _, d := range Definitions(c) {
			if d.Names.Plural != q.plural {
				continue
			}
			body, _, err := object.DecodeYAML([]byte(q.body))
			if err != nil {
				t.Fatal(err)
			}
			out, err := d.Behavior.Answer(context.Background(), u, body)
			got := string(object.AppendJSON(nil, out))
			if err != nil {
				got = err.Error()
				if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
					t.Errorf("%T %v", err, err)
				}
			}
			if got != q.want {
				t.Errorf("%s %s\ngot  %s\nwant %s", q.plural, q.body, got, q.want)
			}
		}
	}
}

// The table must cost nothing at start.
func BenchmarkDefinitions(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		runtime.KeepAlive(Definitions(Config{}))
	}
}
