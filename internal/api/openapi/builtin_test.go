package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/trellis-k8s/trellis/internal/builtin"
	"github.com/trellis-k8s/trellis/internal/resource"
)

func builtinVersions(group string) (out []*resource.Version) {
	for _, d := range builtin.Definitions(builtin.Config{}) {
		for _, v := range d.Versions {
			if v.GroupVersion.Group == group {
				out = append(out, v)
			}
		}
	}
	return out
}

// asTree is a value as its JSON.
func asTree(t *testing.T, v any) map[string]any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, text)
}

// TestReflectionIsTheGenerator describes types, for which upstream's generated documents are at hand, by
// reflection as if they were not. What no Go type tells is left out: markers in
// comments, and with them how lists merge.
func TestReflectionIsTheGenerator(t *testing.T) {
	generated := newModels(v3).generated
	for _, object := range []any{metav1.ObjectMeta{}, metav1.Status{}, metav1.ListMeta{}, metav1.LabelSelector{}, metav1.APIResourceList{},
		autoscalingv1.Scale{}, metav1.PartialObjectMetadata{}, metav1.TableOptions{}} {
		m := newModels(v3)
		m.generated, m.kinds = nil, nil
		m.add(reflect.TypeOf(object), nil)
		for name, s := range m.out {
			want := generated[name].Schema
			if _, custom := want.Extensions[common.ExtensionV2Schema].(spec.Schema); custom || len(want.Type) == 0 {
				continue
			}
			differ(name, asTree(t, s), asTree(t, want), func(problem string) {
				// A marker on Replicas, and a type that has no SwaggerDoc.
				known := strings.Contains(problem, "ScaleSpec.properties.replicas.default") || strings.Contains(problem, "v1.Time.description")
				if !known && !strings.Contains(problem, ".x-kubernetes-") {
					t.Error(problem)
				}
			})
		}
	}
}

// markers are the fields that upstream's source marks, by package and type: "core/v1.Event".
func markers(t *testing.T, marker string, packages ...string) map[string][]string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Skipf("go list does not work here: %v", err)
	}
	out := map[string][]string{}
	for _, p := range packages {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), p, "types.go"), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if s, ok := spec.Type.(*ast.StructType); ok {
					out[p+"."+spec.Name.Name] = marked(s, marker)
				}
			}
			return true
		})
	}
	return out
}

func marked(s *ast.StructType, marker string) (names []string) {
	for _, f := range s.Fields.List {
		if f.Doc == nil || f.Tag == nil {
			continue
		}
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		for _, c := range f.Doc.List {
			if strings.TrimSpace(strings.TrimPrefix(c.Text, "//")) == marker {
				names = append(names, name)
			}
		}
	}
	return names
}

// TestRequiredFields holds what is required against the markers of upstream's
// source, which are not to be seen in a Go type.
func TestRequiredFields(t *testing.T) {
	var packages []string
	for _, d := range builtin.Definitions(builtin.Config{}) {
		for _, v := range d.Versions {
			group, _, _ := strings.Cut(cmp.Or(v.GroupVersion.Group, "core"), ".")
			if dir := group + "/" + v.GroupVersion.Version; group != "apiextensions" && !slices.Contains(packages, dir) {
				packages = append(packages, dir)
			}
		}
	}
	optional, required := markers(t, "+optional", packages...), markers(t, "+required", packages...)
	m := newModels(v3)
	for _, d := range builtin.Definitions(builtin.Config{}) {
		for _, v := range d.Versions {
			m.add(structType(v.Type.New()), nil)
		}
	}
	for name, s := range m.out {
		parts := strings.Split(strings.TrimPrefix(name, "io.k8s.api."), ".")
		key := strings.Join(parts[:len(parts)-1], "/") + "." + parts[len(parts)-1]
		for field := range s.Properties {
			is := slices.Contains(s.Required, field)
			if is && slices.Contains(optional[key], field) {
				t.Errorf("%s.%s is required and marked optional", name, field)
			}
			if !is && slices.Contains(required[key], field) {
				t.Errorf("%s.%s is optional and marked required", name, field)
			}
		}
	}
}

// What a subresource of a built-in kind takes is described as a kind of its own, as kube-apiserver v1.37.1 does.
func TestSubresourcesOfOtherKinds(t *testing.T) {
	for _, c := range []struct{ path, method, kind, model, id, description string }{
		{"/api/v1/namespaces/{namespace}/pods/{name}/binding", "post", "/v1/Binding", "io.k8s.api.core.v1.Binding", "createCoreV1NamespacedPodBinding", "create binding of a Pod"},
		{"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post", "policy/v1/Eviction", "io.k8s.api.policy.v1.Eviction", "createCoreV1NamespacedPodEviction", "create eviction of a Pod"},
		{"/api/v1/namespaces/{namespace}/replicationcontrollers/{name}/scale", "put", "autoscaling/v1/Scale", "io.k8s.api.autoscaling.v1.Scale",
			"replaceCoreV1NamespacedReplicationControllerScale", "replace scale of the specified ReplicationController"},
		{"/api/v1/namespaces/{namespace}/pods/{name}/status", "put", "/v1/Pod", "io.k8s.api.core.v1.Pod", "replaceCoreV1NamespacedPodStatus", "replace status of the specified Pod"},
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
			takes, err := json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(takes), `"`+e.refPrefix()+c.model+`"`) || valueAt(schemas, c.model) == nil {
				t.Errorf("%s takes %s", c.path, takes)
			}
			gvk, _ := op["x-kubernetes-group-version-kind"].(map[string]any)
			if kind := fmt.Sprint(gvk["group"], "/", gvk["version"], "/", gvk["kind"]); kind != c.kind || op["operationId"] != c.id || op["description"] != c.description {
				t.Errorf("%s: %s, %v, %v", c.path, kind, op["operationId"], op["description"])
			}
			name := "name of the " + c.kind[strings.LastIndex(c.kind, "/")+1:]
			if params, err := json.Marshal(item["parameters"]); err != nil || !strings.Contains(string(params), name) {
				t.Errorf("%s: %s", c.path, params)
			}
		}
	}
}

// valueAt walks down a document.
func valueAt(v any, path ...string) any {
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// What kube-apiserver's documents say of a deletion that is answered with the object, and of the Scale of a built-in kind.
func TestOperationsOfBuiltinKinds(t *testing.T) {
	at := func(group, kind string) []pathItem {
		for _, v := range builtinVersions(group) {
			if v.Definition.Names.Kind == kind {
				o := newOptions()
				return o.paths(kindOf(v))
			}
		}
		t.Fatalf("there is no %s", kind)
		return nil
	}
	for _, p := range at("storage.k8s.io", "CSIDriver") {
		for _, op := range p.operations {
			if op.action == "delete" && op.responses[0].model != "the model" {
				t.Errorf("a deletion of a CSIDriver is answered with %s", op.responses[0].model)
			}
		}
	}
	found := false
	for _, p := range at("apps", "Deployment") {
		if strings.HasSuffix(p.path, "/scale") {
			found = true
			if got := p.operations[0].gvk; got != autoscalingv1.SchemeGroupVersion.WithKind("Scale") || !slices.ContainsFunc(p.params, nameOfScale) {
				t.Errorf("%s is about %v, %v", p.path, got, p.params)
			}
		}
	}
	if !found {
		t.Error("a Deployment has no /scale")
	}
}

func kindOf(v *resource.Version) kind {
	return kind{Version: v, model: "the model", verbs: v.Definition.Verbs}
}

func nameOfScale(p param) bool { return p.description == "name of the Scale" }
