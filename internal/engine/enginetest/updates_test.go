// Package enginetest compares the server's results of writes with the results of upstream's strategies for custom
// resources. The tests are in a separate package because they import many upstream packages.
package enginetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apivalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/dynamic"
	clientrest "k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/testserver"
)

// ruledSchema is a schema with limits for the spec and the status, and a transition rule for the status.
const ruledSchema = `{"type":"object","properties":{
"spec":{"type":"object","properties":{"image":{"type":"string"},"replicas":{"type":"integer"},
"color":{"type":"string","maxLength":6}}},
"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},
"phase":{"type":"string","enum":["One","Two"],"x-kubernetes-validations":[{
"rule":"oldSelf == 'One' || self != 'One'","message":"no way back"}]}}}}}`

const ruledCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"crontabs.stable.example.com"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","kind":"CronTab"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%s},
"subresources":{%s"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
"labelSelectorPath":".status.selector"}}}]}}`

// upstreamStrategies returns upstream's strategies for the main resource and for /status.
func upstreamStrategies(t *testing.T, openAPI string, withStatus bool) map[string]rest.RESTUpdateStrategy {
	t.Helper()
	var v1 apiextensionsv1.JSONSchemaProps
	var internal apiextensions.JSONSchemaProps
	if err := json.Unmarshal([]byte(openAPI), &v1); err != nil {
		t.Fatal(err)
	}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, &internal,
		nil); err != nil {
		t.Fatal(err)
	}
	validator, _, err := apivalidation.NewSchemaValidator(&internal)
	if err != nil {
		t.Fatal(err)
	}
	statusSchema := internal.Properties["status"]
	statusValidator, _, err := apivalidation.NewSchemaValidator(&statusSchema)
	if err != nil {
		t.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		t.Fatal(err)
	}
	var status *apiextensions.CustomResourceSubresourceStatus
	if withStatus {
		status = &apiextensions.CustomResourceSubresourceStatus{}
	}
	selector := ".status.selector"
	scale := &apiextensions.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas",
		StatusReplicasPath: ".status.replicas", LabelSelectorPath: &selector}
	kind := schema.GroupVersionKind{Group: "stable.example.com", Version: "v1", Kind: "CronTab"}
	main := customresource.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), true, kind, validator,
		statusValidator, structural, status, scale, nil)
	return map[string]rest.RESTUpdateStrategy{"": main, "status": customresource.NewStatusStrategy(main)}
}

// oneOf returns one of the values at random.
func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// randomEdit changes random fields of an object, including some that a client may not change.
func randomEdit(r *rand.Rand, t object.Tree) {
	md := object.EnsureMetadata(t)
	for range 1 + r.IntN(3) {
		switch r.IntN(16) {
		case 0:
			set(t, "spec.replicas", oneOf[any](r, int64(0), int64(5), int64(-1), int64(1)<<33, int64(1)<<31,
				int64(1)<<31-1))
		case 1:
			set(t, "spec.color", oneOf[any](r, "red", "blue", "far too long"))
		case 2, 3:
			set(t, "status.phase", oneOf[any](r, "One", "Two", "Three"))
		case 4, 5:
			set(t, "status.replicas", oneOf[any](r, int64(0), int64(3), int64(-7), int64(1)<<40))
		case 6:
			set(t, "status.selector", oneOf[any](r, "a=b", "", "c in (d)"))
		case 7:
			delete(t, oneOf(r, "status", "spec"))
		case 8:
			md["labels"] = oneOf[any](r, object.Tree{"a": "b"}, object.Tree{"not valid": "x"}, object.Tree{"a": "-"})
		case 9:
			md["annotations"] = oneOf[any](r, object.Tree{"a": "b"}, object.Tree{"a/b/c": "x"})
		case 10, 11:
			finalizers := slices.Clone(object.Strings(md, "finalizers"))
			if len(finalizers) > 0 && r.IntN(2) == 0 {
				finalizers = finalizers[1:]
			} else {
				finalizers = append(finalizers, oneOf(r, "example.com/a", "example.com/b", "bare", "not/a/name",
					"dotted.name"))
			}
			object.SetFinalizers(t, slices.Compact(finalizers))
		case 12:
			md["deletionTimestamp"] = oneOf[any](r, "2020-01-01T00:00:00Z", "2036-01-01T00:00:00Z")
			if r.IntN(2) == 0 {
				delete(md, "deletionTimestamp")
			}
		case 13:
			md["deletionGracePeriodSeconds"] = oneOf[any](r, int64(0), int64(30))
			if r.IntN(2) == 0 {
				delete(md, "deletionGracePeriodSeconds")
			}
		case 14:
			md["generation"] = oneOf[any](r, int64(7), int64(1))
		default:
			md["creationTimestamp"] = oneOf[any](r, "2020-01-01T00:00:00Z", nil)
			if r.IntN(2) == 0 {
				delete(md, "uid")
			}
		}
	}
}

// TestUpdatesMatchUpstream checks that a PUT of an object or of its /status has the same result or the same error
// as upstream's strategies (SUB-003, SUB-004, SUB-005, SUB-006, SUB-007, SUB-011, SUB-012, SUB-013, SUB-034,
// SUB-039, SUB-044, SUB-046).
func TestUpdatesMatchUpstream(t *testing.T) {
	for _, withStatus := range []bool{true, false} {
		t.Run(fmt.Sprintf("status=%v", withStatus), func(t *testing.T) { compareUpdates(t, withStatus) })
	}
}

func compareUpdates(t *testing.T, withStatus bool) {
	status := ""
	if withStatus {
		status = `"status":{},`
	}
	crontabs := serve(t, fmt.Sprintf(ruledCRD, ruledSchema, status))
	strategies := upstreamStrategies(t, ruledSchema, withStatus)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 6))
	accepted, rejected := 0, 0
	for round := range 250 {
		live, err := crontabs.Create(t.Context(),
			&unstructured.Unstructured{Object: object.Tree{"apiVersion": "stable.example.com/v1", "kind": "CronTab",
				"metadata": object.Tree{"name": fmt.Sprintf("a%d", round),
					"finalizers": []any{"example.com/a"}}, "spec": object.Tree{"replicas": int64(1), "image": "i"}}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.IntN(3) == 0 {
			if err := crontabs.Delete(t.Context(), live.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			if live, err = crontabs.Get(t.Context(), live.GetName(), metav1.GetOptions{}); err != nil {
				break // without its last finalizer, the object is deleted
			}
			sub, subs := "", []string(nil)
			if withStatus && r.IntN(2) == 0 {
				sub, subs = "status", []string{"status"}
			}
			body := live.DeepCopy()
			randomEdit(r, body.Object)
			want := body.DeepCopy()
			wantErr := rest.BeforeUpdate(strategies[sub], request.WithNamespace(t.Context(), "default"), want,
				live.DeepCopy())
			got, err := crontabs.Update(t.Context(), body, metav1.UpdateOptions{}, subs...)
			update := fmt.Sprintf("seed %d, %q: %s\nto %s", seed, sub, object.AppendJSON(nil, live.Object),
				object.AppendJSON(nil, body.Object))
			if errorText(err) != errorText(wantErr) {
				t.Fatalf("%s\ngot  %v\nwant %v", update, errorText(err), errorText(wantErr))
			}
			if err != nil {
				rejected++
				continue
			}
			accepted++
			if g, w := object.AppendJSON(nil, withoutVolatileFields(got.Object)), object.AppendJSON(nil,
				withoutVolatileFields(want.Object)); string(g) != string(w) {
				t.Fatalf("%s\ngot  %s\nwant %s", update, g, w)
			}
		}
	}
	if accepted < 100 || rejected < 100 {
		t.Errorf("got %d accepted and %d rejected updates, want at least 100 of each", accepted, rejected)
	}
}

// serve starts a server with a CRD and returns a client for its objects.
func serve(t *testing.T, crd string) dynamic.ResourceInterface {
	t.Helper()
	config := clientrest.CopyConfig(testserver.Start(t).Config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(crd)); err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	if _, err := crds.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Group: "stable.example.com", Version: "v1",
		Resource: "crontabs"}).Namespace("default")
}

// set sets a value in t. path consists of two names, separated by a dot.
func set(t object.Tree, path string, value any) {
	parent, name, _ := strings.Cut(path, ".")
	child, _ := t[parent].(object.Tree)
	if child == nil {
		child = object.Tree{}
		t[parent] = child
	}
	child[name] = value
}

// errorText returns the text of an error, with its causes sorted.
func errorText(err error) string {
	var status *apierrors.StatusError
	if err == nil || !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return fmt.Sprint(err)
	}
	var causes []string
	for _, c := range status.ErrStatus.Details.Causes {
		causes = append(causes, fmt.Sprint(c.Type, " ", c.Field, " ", c.Message))
	}
	slices.Sort(causes)
	return fmt.Sprint(status.ErrStatus.Code, " ", status.ErrStatus.Reason, "\n",
		strings.Join(slices.Compact(causes), "\n"))
}

// withoutVolatileFields removes from t the metadata that every write sets, and returns t.
func withoutVolatileFields(t object.Tree) object.Tree {
	md := object.Metadata(t)
	delete(md, "managedFields")
	delete(md, "resourceVersion")
	return t
}
