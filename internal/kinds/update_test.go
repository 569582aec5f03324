package kinds_test

import (
	"encoding/json"
	"fmt"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// warningRecorder records warnings.
type warningRecorder []string

func (r *warningRecorder) AddWarning(_, text string) { *r = append(*r, text) }

// beforeUpdate returns the object that upstream's store would store for an update, and the warnings for the client.
func beforeUpdate(t *testing.T, v *resource.Version, sub, text string, stored []byte) (object.Tree, []string, error) {
	t.Helper()
	d := v.Definition
	live, err := d.Storage.Type.Load(stored)
	if err != nil {
		t.Fatal(err)
	}
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := v.Type.Load(js)
	if err != nil {
		t.Fatal(err)
	}
	obj.SetNamespace(live.GetNamespace())
	obj.SetResourceVersion("7")
	live.SetResourceVersion("7")
	var warnings warningRecorder
	ctx := apirequest.WithUser(apirequest.WithNamespace(warning.WithWarningRecorder(t.Context(), &warnings),
		obj.GetNamespace()), tester)
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{
		IsResourceRequest: true, Verb: "update", APIGroup: v.GroupVersion.Group, APIVersion: v.GroupVersion.Version,
		Namespace: obj.GetNamespace(), Resource: d.Names.Plural, Subresource: sub, Name: obj.GetName(),
	})
	if prepare := d.Strategy.Prepare; prepare != nil && sub == "" {
		if err := prepare(ctx, obj, live); err != nil {
			return nil, nil, err
		}
	}
	if err := rest.BeforeUpdate(d.Strategy.Update(sub), ctx, obj, live); err != nil {
		return nil, warnings, err
	}
	obj.SetResourceVersion("")
	out, err := d.Storage.Type.FromInternal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return out, warnings, nil
}

// TestUpdateEqualsUpstream checks that updates of objects and of their subresources have the same results, errors and
// warnings as updates in upstream's store.
func TestUpdateEqualsUpstream(t *testing.T) {
	label := func(o map[string]any, name string) {
		o["metadata"].(map[string]any)["labels"] = map[string]any{name: "b"}
	}
	changes := map[string]func(map[string]any){
		"label":     func(o map[string]any) { label(o, "a") },
		"bad label": func(o map[string]any) { label(o, "not valid") },
		"metadata only": func(o map[string]any) {
			for key := range o {
				if key != "apiVersion" && key != "kind" && key != "metadata" {
					delete(o, key)
				}
			}
		},
		"warning": func(o map[string]any) {
			o["metadata"].(map[string]any)["annotations"] = map[string]any{
				"scheduler.alpha.kubernetes.io/critical-pod": "", "volume.beta.kubernetes.io/storage-class": "x",
			}
		},
		"finalizer": func(o map[string]any) { o["metadata"].(map[string]any)["finalizers"] = []any{"plain"} },
	}
	for _, s := range samples(t) {
		subs := []string{""}
		for name := range serveCluster(t, kinds.Config{}).version(s.apiVersion,
			s.kind).Definition.Strategy.Subresources {
			subs = append(subs, name)
		}
		for _, sub := range subs {
			for name, change := range changes {
				t.Run(fmt.Sprintf("%s/%s/%s", s.name, sub, name), func(t *testing.T) {
					c := serveCluster(t, kinds.Config{})
					v := c.version(s.apiVersion, s.kind)
					before := c.mustCreate(v, s.object, s.text)
					body := s.with(t, change)
					want, warned, wantErr := beforeUpdate(t, v, sub, body, before)
					c.warnings = nil
					_, err := c.put(v, s.object, sub, body)
					if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(c.warnings) != fmt.Sprint(warned) {
						t.Fatalf("got  %v, warnings %q\nwant %v, warnings %q", err, c.warnings, wantErr, warned)
					}
					if want == nil {
						want = object.Tree{}
						if err := json.Unmarshal(before, &want); err != nil {
							t.Fatal(err)
						}
					}
					delete(object.Metadata(want), "managedFields")
					delete(object.Metadata(want), "uid")
					delete(object.Metadata(want), "creationTimestamp")
					sameStored(t, c.stored(v, s.object), asRead(t, v, want))
				})
			}
		}
	}
}
