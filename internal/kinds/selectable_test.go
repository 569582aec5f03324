package kinds_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// attributes maps plural names to upstream's functions that return the selectable fields of an object. It omits kinds
// with only the fields name and namespace.
var attributes = map[string]func(runtime.Object) (labels.Set, fields.Set, error){
	"certificatesigningrequests": certificates.GetAttrs, "configmaps": configmap.GetAttrs, "events": event.GetAttrs,
	"jobs": job.GetAttrs, "namespaces": namespace.GetAttrs, "nodes": node.GetAttrs,
	"persistentvolumeclaims": persistentvolumeclaim.GetAttrs, "persistentvolumes": persistentvolume.GetAttrs,
	"pods": pod.GetAttrs, "replicasets": replicaset.GetAttrs, "replicationcontrollers": replicationcontroller.GetAttrs,
	"resourceclaims": resourceclaim.GetAttrs, "resourceclaimtemplates": resourceclaimtemplate.GetAttrs,
	"resourceslices": resourceslice.GetAttrs, "secrets": secret.GetAttrs, "services": service.GetAttrs,
	"clustertrustbundles": bundleFields, "podcertificaterequests": requestFields, // upstream's are not exported
}

func bundleFields(o runtime.Object) (labels.Set, fields.Set, error) {
	return nil, fields.Set{"metadata.name": o.(*certificatesapi.ClusterTrustBundle).Name,
		"spec.signerName": o.(*certificatesapi.ClusterTrustBundle).Spec.SignerName}, nil
}

func requestFields(o runtime.Object) (labels.Set, fields.Set, error) {
	r := o.(*certificatesapi.PodCertificateRequest)
	return nil, fields.Set{"metadata.name": r.Name, "metadata.namespace": r.Namespace,
		"spec.signerName": r.Spec.SignerName, "spec.podName": r.Spec.PodName,
		"spec.nodeName": string(r.Spec.NodeName)}, nil
}

// selects reports whether a field selector matches an object.
func (c *cluster) selects(v *resource.Version, name string, selector fields.Selector) bool {
	c.Helper()
	list, err := c.Engine.List(c.Context(), c.at(v, "", ""),
		read.ListOptions{Fields: fields.AndSelectors(selector, fields.OneTermEqualSelector("metadata.name", name))})
	if err != nil {
		c.Errorf("%s: %v", v.APIVersion, err)
		return false
	}
	return len(list.Items) == 1
}

// sameFields compares the selectable fields of a stored object with upstream's.
func (c *cluster) sameFields(v *resource.Version, name string) {
	c.Helper()
	obj, err := v.Definition.Storage.Type.Load(c.stored(v, name))
	if err != nil {
		c.Fatal(err)
	}
	set := fields.Set{}
	if f := attributes[v.Definition.Names.Plural]; f != nil {
		if _, set, err = f(obj); err != nil {
			c.Fatal(err)
		}
	}
	compared := map[string]bool{"metadata.name": true, "metadata.namespace": true}
	for _, f := range v.SelectableFields {
		inner, _, err := legacyscheme.Scheme.ConvertFieldLabel(v.GroupVersionKind(), f.Name, "x")
		if err != nil {
			c.Errorf("%s %s: %v", v.APIVersion, v.Definition.Names.Plural, err)
			continue
		}
		value, ok := set[inner]
		if compared[inner] = true; !ok && inner != "status.podIPs" { // always empty upstream
			c.Errorf("%s %s: field %s is not selectable upstream", v.APIVersion, v.Definition.Names.Plural, inner)
		}
		if !c.selects(v, name, fields.OneTermEqualSelector(f.Name, value)) ||
			c.selects(v, name, fields.OneTermNotEqualSelector(f.Name, value)) {
			c.Errorf("%s %s %s: want the value of %s to be %q", v.APIVersion, v.Definition.Names.Plural, name,
				f.Name, value)
		}
	}
	for inner := range set {
		if _, _, err := legacyscheme.Scheme.ConvertFieldLabel(v.GroupVersionKind(), inner, "x"); err == nil &&
			!compared[inner] {
			c.Errorf("%s %s: field %s is not selectable", v.APIVersion, v.Definition.Names.Plural, inner)
		}
	}
}

// TestSelectableFields checks that the selectable fields and their values equal upstream's, for each sample and for an
// object that has only defaults.
func TestSelectableFields(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			c := serveCluster(t, kinds.Config{})
			c.TB = t
			v := c.version(s.apiVersion, s.kind)
			c.mustCreate(v, s.object, s.text)
			c.sameFields(v, s.object)
			d := v.Definition
			decoded, err := d.Storage.Type.Decode([]byte(`{"metadata":{"name":"empty"}}`))
			if err != nil {
				t.Fatal(err)
			}
			empty := decoded.Tree
			empty["apiVersion"], empty["kind"] = d.Storage.APIVersion, d.Names.Kind
			key := d.Key(c.at(v, "", "").Namespace, "empty")
			if _, err := c.Store.Commit(t.Context(),
				[]storage.Write{{Key: key, Value: object.Pack(empty, 0).JSON()}}); err != nil {
				t.Fatal(err)
			}
			c.sameFields(v, "empty")
		})
	}
}

// TestNoSelectableFieldIsMissing checks that each kind has all selectable fields that it has in upstream. It tries
// the selectable fields of all kinds on each kind. Kubelets select PodCertificateRequests by field, for example.
func TestNoSelectableFieldIsMissing(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	has, known := map[*resource.Version]map[string]bool{}, map[string]bool{}
	for d := range c.Live.Load().Definitions() {
		for _, v := range d.Versions {
			has[v] = map[string]bool{}
			for _, f := range v.SelectableFields {
				has[v][f.Name], known[f.Name] = true, true
			}
		}
	}
	for v, fields := range has {
		for name := range known {
			if _, _, err := legacyscheme.Scheme.ConvertFieldLabel(v.GroupVersionKind(), name, ""); err == nil &&
				!fields[name] {
				t.Errorf("%s %s: field %s is not selectable", v.APIVersion, v.Definition.Names.Plural, name)
			}
		}
	}
}

// TestUnknownFields checks the errors for selectors with unknown fields.
func TestUnknownFields(t *testing.T) {
	c := serveCluster(t, kinds.Config{})
	for _, q := range []struct{ apiVersion, kind, field, want string }{
		{"v1", "Pod", "spec.color", "field label not supported: spec.color"},
		{"apps/v1", "Deployment", "spec.replicas",
			`"spec.replicas" is not a known field selector: only "metadata.name", "metadata.namespace"`},
	} {
		v := c.version(q.apiVersion, q.kind)
		_, err := c.Engine.List(t.Context(), c.at(v, "", ""),
			read.ListOptions{Fields: fields.OneTermEqualSelector(q.field, "x")})
		expectError(t, err, q.want)
	}
}
