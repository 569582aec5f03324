package kinds

import (
	"reflect"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// TestPrefixesAndUpdates checks the storage prefixes of kinds, and for which kinds a PUT may create an object or omit
// the resourceVersion. Both equal kube-apiserver's.
func TestPrefixesAndUpdates(t *testing.T) {
	for _, c := range []struct {
		group, plural, prefix         string
		createOnUpdate, unconditional bool
	}{
		{"", "configmaps", "configmaps", false, true}, {"", "services", "services/specs", true, true},
		{"", "endpoints", "services/endpoints", true, true}, {"", "events", "events", true, true},
		{"", "nodes", "minions", false, true}, {"", "replicationcontrollers", "controllers", false, true},
		{"coordination.k8s.io", "leases", "leases", true, false},
		{"discovery.k8s.io", "endpointslices", "endpointslices", false, true},
		{"networking.k8s.io", "ingresses", "ingress", false, true}, {"networking.k8s.io", "ipaddresses", "ipaddresses",
			false, true},
	} {
		d := find(t, c.group, c.plural).Definition
		if d.Prefix != "/registry/"+c.prefix+"/" || d.Behavior.CreateOnUpdate != c.createOnUpdate ||
			d.Behavior.UnconditionalUpdate != c.unconditional {
			t.Errorf("%s: got prefix %s, create on update %v, unconditional update %v", c.plural, d.Prefix,
				d.Behavior.CreateOnUpdate, d.Behavior.UnconditionalUpdate)
		}
	}
}

// TestEveryKindIsComplete checks that each kind can be encoded in protobuf and parsed for managed fields, and that its
// columns are complete (CRD-057, CRD-068).
func TestEveryKindIsComplete(t *testing.T) {
	for _, v := range allVersions() {
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
				t.Errorf("%s: incomplete column %+v", name, c)
			}
			if c.Cell != nil {
				c.Cell(object.Tree{}) // must not panic
			}
		}
	}
}

// TestEventConversion checks that all fields of an Event are converted between its two groups in both directions.
func TestEventConversion(t *testing.T) {
	at, micro := metav1.NewTime(time.Unix(1_700_000_000, 0).UTC()),
		metav1.NewMicroTime(time.Unix(1_700_000_000, 123_000).UTC())
	ref := corev1.ObjectReference{Kind: "Pod", Name: "p", UID: "u"}
	for _, c := range []struct {
		core corev1.Event
		new  eventsv1.Event
	}{
		{},
		{
			corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: ref, Reason: "r", Message: "m",
				Source:         corev1.EventSource{Component: "c", Host: "h"},
				FirstTimestamp: at, LastTimestamp: at, Count: 2, Type: "Normal", EventTime: micro,
				Series: &corev1.EventSeries{Count: 3, LastObservedTime: micro},
				Action: "a", Related: &ref, ReportingController: "rc", ReportingInstance: "ri",
			},
			eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: "e"}, Regarding: ref, Reason: "r", Note: "m",
				DeprecatedSource:         corev1.EventSource{Component: "c", Host: "h"},
				DeprecatedFirstTimestamp: at, DeprecatedLastTimestamp: at, DeprecatedCount: 2, Type: "Normal",
				EventTime: micro, Series: &eventsv1.EventSeries{Count: 3, LastObservedTime: micro},
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
			t.Errorf("got error %v\ngot  %v\nwant %v", err, got, core)
		}
		if got, err := v.ConvertFrom(core); err != nil || !reflect.DeepEqual(got, other) {
			t.Errorf("got error %v\ngot  %v\nwant %v", err, got, other)
		}
	}
}

// BenchmarkDefinitions measures the cost of creating the built-in kinds when a server starts.
func BenchmarkDefinitions(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		runtime.KeepAlive(Definitions(Config{}))
	}
}
