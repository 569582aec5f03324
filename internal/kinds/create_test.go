package kinds_test

import (
	"context"
	"encoding/json"
	"testing"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// beforeCreate returns the error with which upstream's store rejects a new object, or nil.
func beforeCreate(t *testing.T, v *resource.Version, text string) error {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	obj, err := v.Type.Load(js)
	if err != nil {
		t.Fatal(err)
	}
	obj.SetUID("uid")
	obj.SetCreationTimestamp(metav1.Now())
	gv, namespace := v.GroupVersion, obj.GetNamespace()
	ctx := apirequest.WithUser(apirequest.WithNamespace(context.Background(), namespace), tester)
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: gv.Group, APIVersion: gv.Version, Namespace: namespace,
		Resource: v.Definition.Names.Plural,
	})
	s := v.Definition.Strategy
	if s.Prepare != nil {
		if err := s.Prepare(ctx, obj, nil); err != nil {
			return err
		}
	}
	return rest.BeforeCreate(s.Main, ctx, obj)
}

// TestCreateErrorsEqualUpstream checks that the errors for invalid objects equal upstream's.
func TestCreateErrorsEqualUpstream(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			body := s.with(t, func(o map[string]any) {
				for key := range o {
					if key != "apiVersion" && key != "kind" && key != "metadata" {
						delete(o, key)
					}
				}
				o["metadata"].(map[string]any)["name"] = "Not/Valid"
			})
			v := c.version(s.apiVersion, s.kind)
			want := beforeCreate(t, v, body)
			if _, err := c.create(v, body); err == nil || want == nil || err.Error() != want.Error() {
				t.Errorf("got  %v\nwant %v", err, want)
			}
		})
	}
}

// TestZeroConfig checks that strategies return errors if the Config is empty. Then nothing is authorized and no other
// objects exist.
func TestZeroConfig(t *testing.T) {
	params := map[string]any{"apiVersion": "example.com/v1", "kind": "Param"}
	ref := map[string]any{"name": "x", "parameterNotFoundAction": "Deny"}
	for _, q := range []struct {
		sample string
		change func(spec map[string]any)
		want   string
	}{
		{"admissionregistration.k8s.io-v1-ValidatingAdmissionPolicy", func(spec map[string]any) {
			spec["paramKind"] = params
		}, "spec.paramKind: Forbidden"},
		{"admissionregistration.k8s.io-v1-MutatingAdmissionPolicy", func(spec map[string]any) {
			spec["paramKind"] = params
		}, "spec.paramKind: Forbidden"},
		{"admissionregistration.k8s.io-v1-ValidatingAdmissionPolicyBinding", func(spec map[string]any) {
			spec["paramRef"] = ref
		}, "spec.paramRef: Forbidden: unable to get policy p"},
		{"admissionregistration.k8s.io-v1-MutatingAdmissionPolicyBinding", func(spec map[string]any) {
			spec["paramRef"] = ref
		}, "spec.paramRef: Forbidden: unable to get policy p"},
		{"resource.k8s.io-v1-ResourceClaim", func(spec map[string]any) {
			request := spec["devices"].(map[string]any)["requests"].([]any)[0].(map[string]any)
			request["exactly"].(map[string]any)["adminAccess"] = true
		}, "adminAccess"},
	} {
		s, c := findSample(t, q.sample), serveCluster(t, kinds.Config{})
		c.user = plainUser // not tester, because strategies skip authorization for its group system:masters
		_, err := c.create(c.version(s.apiVersion, s.kind),
			s.with(t, func(o map[string]any) { q.change(o["spec"].(map[string]any)) }))
		expectError(t, err, q.want)
	}
}

// TestStrategiesUseRequest checks that strategies can read the user of a request, and that the warnings of strategies
// reach the client.
func TestStrategiesUseRequest(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	s := findSample(t, "certificates.k8s.io-v1-CertificateSigningRequest")
	var o struct{ Spec struct{ Username string } }
	if err := json.Unmarshal(c.mustCreate(c.version(s.apiVersion, s.kind), s.object, s.text), &o); err != nil ||
		o.Spec.Username != "tester" {
		t.Errorf("got %v, error %v, want the user tester", o, err)
	}
	s = findSample(t, "v1-Pod")
	c.mustCreate(c.version(s.apiVersion, s.kind), s.object, s.with(t, func(o map[string]any) {
		o["spec"].(map[string]any)["nodeSelector"] = map[string]any{"beta.kubernetes.io/os": "linux"}
	}))
	if !contains(c.warnings, "beta.kubernetes.io/os") {
		t.Errorf("got warnings %q, want one about beta.kubernetes.io/os", c.warnings)
	}
}
