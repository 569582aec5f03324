package openapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// builtinVersions returns the versions of all built-in kinds of a group.
func builtinVersions(group string) (out []*resource.Version) {
	for _, d := range kinds.Definitions(kinds.Config{}) {
		for _, v := range d.Versions {
			if v.GroupVersion.Group == group {
				out = append(out, v)
			}
		}
	}
	return out
}

// asTree converts a value to decoded JSON.
func asTree(t *testing.T, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, text)
}

// TestSubresourcesOfOtherKinds checks that the documents describe the body of a subresource by its own kind, as those
// of kube-apiserver v1.37.1 do. Examples are Binding, Eviction and Scale.
func TestSubresourcesOfOtherKinds(t *testing.T) {
	for _, c := range []struct{ path, method, kind, model, id, description string }{
		{"/api/v1/namespaces/{namespace}/pods/{name}/binding", "post", "/v1/Binding", "io.k8s.api.core.v1.Binding",
			"createCoreV1NamespacedPodBinding", "create binding of a Pod"},
		{"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post", "policy/v1/Eviction",
			"io.k8s.api.policy.v1.Eviction", "createCoreV1NamespacedPodEviction", "create eviction of a Pod"},
		{"/api/v1/namespaces/{namespace}/replicationcontrollers/{name}/scale", "put", "autoscaling/v1/Scale",
			"io.k8s.api.autoscaling.v1.Scale",
			"replaceCoreV1NamespacedReplicationControllerScale",
			"replace scale of the specified ReplicationController"},
		{"/api/v1/namespaces/{namespace}/pods/{name}/status", "put", "/v1/Pod", "io.k8s.api.core.v1.Pod",
			"replaceCoreV1NamespacedPodStatus", "replace status of the specified Pod"},
	} {
		for _, e := range []edition{v2, v3} {
			d, err := newDocument(e, builtinVersions(""))
			if err != nil {
				t.Fatal(err)
			}
			doc := tree(t, d.text())
			item, _ := valueAt(doc, "paths", c.path).(map[string]any)
			op, _ := item[c.method].(map[string]any)
			schemas, content := valueAt(doc, "definitions"), op["parameters"]
			if e == v3 {
				schemas, content = valueAt(doc, "components", "schemas"), op["requestBody"]
			}
			body, err := json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(body), `"`+e.refPrefix()+c.model+`"`) || valueAt(schemas, c.model) == nil {
				t.Errorf("%s: got body %s, want %s", c.path, body, c.model)
			}
			gvk, _ := op["x-kubernetes-group-version-kind"].(map[string]any)
			if kind := fmt.Sprint(gvk["group"], "/", gvk["version"], "/", gvk["kind"]); kind != c.kind ||
				op["operationId"] != c.id || op["description"] != c.description {
				t.Errorf("%s: got kind %s, operation %v, description %v, want %s, %s, %s",
					c.path, kind, op["operationId"], op["description"], c.kind, c.id, c.description)
			}
			name := "name of the " + c.kind[strings.LastIndex(c.kind, "/")+1:]
			if params, err := json.Marshal(item["parameters"]); err != nil || !strings.Contains(string(params), name) {
				t.Errorf("%s: got parameters %s, want a %s", c.path, params, name)
			}
		}
	}
}

// valueAt returns the value at a path of a decoded JSON value. It returns nil if the path does not exist.
func valueAt(v any, path ...string) any {
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// TestOperationsOfBuiltinKinds checks that two details are the same as in kube-apiserver's documents. These are a
// delete that returns the object, and the Scale of a built-in kind.
func TestOperationsOfBuiltinKinds(t *testing.T) {
	pathsOf := func(group, kind string) []pathItem {
		for _, v := range builtinVersions(group) {
			if v.Definition.Names.Kind == kind {
				o := newOptions()
				return o.paths(kindOf(v))
			}
		}
		t.Fatalf("kind %s does not exist", kind)
		return nil
	}
	for _, p := range pathsOf("storage.k8s.io", "CSIDriver") {
		for _, op := range p.operations {
			if op.action == "delete" && op.responses[0].model != "the model" {
				t.Errorf("delete of a CSIDriver: got response %s, want the object", op.responses[0].model)
			}
		}
	}
	found := false
	for _, p := range pathsOf("apps", "Deployment") {
		if strings.HasSuffix(p.path, "/scale") {
			found = true
			if got := p.operations[0].gvk; got != autoscalingv1.SchemeGroupVersion.WithKind("Scale") ||
				!slices.ContainsFunc(p.params, nameOfScale) {
				t.Errorf("%s: got kind %v, parameters %v, want Scale", p.path, got, p.params)
			}
		}
	}
	if !found {
		t.Error("Deployment has no path /scale")
	}
}

// kindOf returns the kind of a version, with a fixed name of its model.
func kindOf(v *resource.Version) kind {
	return kind{Version: v, model: "the model", verbs: v.Definition.Verbs}
}

func nameOfScale(p param) bool { return p.description == "name of the Scale" }
