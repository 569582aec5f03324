package upstream

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
)

// kinds can be selected by upstream's fields; the names that clients use are those of their endpoint.
func TestSelectableFields(t *testing.T) {
	known := map[string][]string{
		"configmaps":                 {"metadata.name", "metadata.namespace"},
		"deployments":                {"metadata.name", "metadata.namespace"},
		"nodes":                      {"metadata.name", "spec.unschedulable"},
		"secrets":                    {"metadata.name", "metadata.namespace", "type"},
		"jobs":                       {"metadata.name", "metadata.namespace", "status.successful"},
		"certificatesigningrequests": {"metadata.name", "spec.signerName"},
		"pods": {"metadata.name", "metadata.namespace", "spec.hostNetwork", "spec.nodeName", "spec.restartPolicy",
			"spec.schedulerName", "spec.serviceAccountName", "status.nominatedNodeName", "status.phase", "status.podIP"},
	}
	for _, k := range Kinds(Config{}) {
		names, err := k.FieldNames()
		if err != nil {
			t.Fatal(err)
		}
		if want, ok := known[k.Names.Plural]; ok && !slices.Equal(names, want) {
			t.Errorf("%s: got %v, want %v", k.Names.Plural, names, want)
		}
	}
}

func TestSelector(t *testing.T) {
	for _, c := range []struct{ plural, version, selector, want, err string }{
		{"pods", "v1", "spec.nodeName=m,spec.host=x", "spec.nodeName=x,spec.nodeName=m", ""},
		{"pods", "v1", "spec.color=red", "", "field label not supported: spec.color"},
		{"events", "v1", "involvedObject.kind=Pod", "involvedObject.kind=Pod", ""},
		{"events", "events.k8s.io/v1", "regarding.kind=Pod,reportingController=c", "involvedObject.kind=Pod,reportingComponent=c", ""},
		{"namespaces", "v1", "name=a", "", "field label not supported: name"},
		{"deployments", "apps/v1", "spec.replicas=1", "", `"spec.replicas" is not a known field selector: only "metadata.name", "metadata.namespace"`},
	} {
		for _, k := range Kinds(Config{}) {
			for _, e := range k.Endpoints {
				if k.Names.Plural != c.plural || e.GroupVersion.String() != c.version {
					continue
				}
				got, err := e.Selector(fields.ParseSelectorOrDie(c.selector))
				if text(err) != c.err {
					t.Errorf("%s: got error %q, want %q", c.selector, text(err), c.err)
				}
				if err == nil && got.String() != c.want {
					t.Errorf("%s: got %s, want %s", c.selector, got, c.want)
				}
			}
		}
	}
}

// an object's fields have the values that selectors are compared with.
func TestFields(t *testing.T) {
	for _, s := range samples(t) {
		ours := &steps{t: t, endpoint: s.endpoint}
		obj := ours.read(s.json(t))
		set, err := s.endpoint.Kind.Fields(obj)
		if err != nil {
			t.Fatal(err)
		}
		want := fields.Set{"metadata.name": obj.GetName()}
		switch s.name {
		case "v1-Pod":
			want = fields.Set{"spec.nodeName": "m", "status.podIP": "10.1.1.1", "spec.hostNetwork": "false"}
		case "events.k8s.io-v1-Event":
			want = fields.Set{"involvedObject.name": "p", "reportingComponent": "a.io/b", "source": "a.io/b"}
		case "v1-Namespace":
			want = fields.Set{"name": "a", "status.phase": "Active"}
		}
		for name, value := range want {
			if set[name] != value {
				t.Errorf("%s: %s is %q, want %q", s.name, name, set[name], value)
			}
		}
	}
}
