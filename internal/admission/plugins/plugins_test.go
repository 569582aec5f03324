package plugins

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// omitted are the plugins of kube-apiserver that the table omits, with the reason.
var omitted = map[string]string{
	"NamespaceLifecycle":     "implemented by this server, and always first",
	"NamespaceAutoProvision": "precedes NamespaceLifecycle, which is always first; deprecated",
	"ImagePolicyWebhook":     "calls a server with a separate client",
}

// TestTableIsUpstreams checks that the table has all plugins of kube-apiserver, in kube-apiserver's order. The same
// plugins are enabled by default, except DenyServiceExternalIPs (CVE-2020-8554).
func TestTableIsUpstreams(t *testing.T) {
	off := options.DefaultOffAdmissionPlugins()
	off.Delete("DenyServiceExternalIPs")
	var wanted []string
	for _, name := range options.AllOrderedPlugins {
		if omitted[name] == "" {
			wanted = append(wanted, name)
		}
	}
	all, enabled := Names()
	if !slices.Equal(all, wanted) {
		t.Errorf("got  %s\nwant %s", strings.Join(all, " "), strings.Join(wanted, " "))
	}
	for _, name := range all {
		if slices.Contains(enabled, name) == off.Has(name) {
			t.Errorf("%s: got enabled by default %t, want %t", name, slices.Contains(enabled, name), !off.Has(name))
		}
	}
}

func TestCheck(t *testing.T) {
	for want, c := range map[string]Options{
		"": {Enable: []string{"NodeRestriction"}, Disable: []string{"Priority"}},
		`enable-admission-plugins plugin "X" is unknown`:  {Enable: []string{"X"}},
		`disable-admission-plugins plugin "X" is unknown`: {Disable: []string{"X"}},
		"NamespaceLifecycle cannot be disabled":           {Disable: []string{"NamespaceLifecycle"}},
		"both contain Priority": {Enable: []string{"Priority"},
			Disable: []string{"Priority"}},
	} {
		err := c.Validate()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

// TestUnhandledWriteAllocatesNothing checks that a write which no plugin handles allocates nothing, even with quotas in
// other namespaces.
func TestUnhandledWriteAllocatesNothing(t *testing.T) {
	for _, quotas := range [][]string{nil, {"other/a", "other/b", "others/a"}} {
		all, r := openPlugins(t, quotas...), customRequest()
		if n := testing.AllocsPerRun(100, func() { pass(t, all, r) }); n != 0 {
			t.Errorf("got %v allocations with the quotas %v, want 0", n, quotas)
		}
	}
}

// BenchmarkUnhandledWrite measures a write that no plugin handles.
func BenchmarkUnhandledWrite(b *testing.B) {
	for name, quotas := range map[string][]string{
		"no quota": nil, "other namespaces": {"other/a", "other/b", "others/a"},
	} {
		b.Run(name, func(b *testing.B) {
			all, r := openPlugins(b, quotas...), customRequest()
			b.ReportAllocs()
			for b.Loop() {
				pass(b, all, r)
			}
		})
	}
}

// TestQuotaIndex checks that the index contains exactly the namespaces that have a ResourceQuota.
func TestQuotaIndex(t *testing.T) {
	states := [][]string{
		nil, {"default/a"}, {"default/a", "default/b", "other/a"}, {"default/b",
			"other/a"}, {"other/a"}, {"default/a"}, nil,
	}
	head := snapshot()
	b := newQuotaIndex(func() *storage.Snapshot { return head })
	for _, quotas := range states {
		head = snapshot(quotas...)
		for _, namespace := range []string{"default", "other", "defaul", ""} {
			want := slices.ContainsFunc(quotas, func(q string) bool { return strings.HasPrefix(q, namespace+"/") })
			if b.has(namespace) != want {
				t.Errorf("%v: got namespace %q in the index %t, want %t", quotas, namespace, !want, want)
			}
		}
	}
	if len(*b.counts.Load()) != 0 {
		t.Error("the index contains namespaces without quotas")
	}
}

func pass(t testing.TB, all admission.Plugins, r *admission.Request) {
	if all.Handles(r) || all.Admit(t.Context(), r) != nil || all.Validate(t.Context(), r) != nil {
		t.Fatal("a plugin handles or rejects the write")
	}
}

// openPlugins returns the default plugins with a store that contains only the given ResourceQuotas.
func openPlugins(t testing.TB, quotas ...string) admission.Plugins {
	all, err := Open(config(t, quotas...))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// snapshot returns a snapshot with ResourceQuotas. quotas are namespace/name in sorted order.
func snapshot(quotas ...string) *storage.Snapshot {
	l := new(storage.Loader)
	for _, q := range quotas {
		rec := &storage.Record{Key: "/registry/resourcequotas/" + q, Value: []byte(`{"spec":{}}`)}
		if err := l.Add(rec); err != nil {
			panic(err)
		}
	}
	return l.Snapshot(0)
}

func config(t testing.TB, quotas ...string) Config {
	kinds := catalog.NewLive(nil,
		func(*catalog.Live) []*resource.Definition { return kinds.Definitions(kinds.Config{}) })
	head := snapshot(quotas...)
	informers := Informers{Catalog: kinds.Load, Head: func() *storage.Snapshot { return head }}
	return Config{
		NodeAuthorizer: true, Informers: informers, Quotas: &Quotas{Informers: informers},
		Client:     kubernetes.NewForConfigOrDie(&rest.Config{}),
		Authorizer: authorizer.AuthorizerFunc(nil), Mapper: meta.NewDefaultRESTMapper(nil), Stop: t.Context().Done(),
	}
}

// customRequest returns a request to create a custom object.
func customRequest() *admission.Request {
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	v := &resource.Version{
		Definition:   &resource.Definition{Names: resource.Names{Plural: "widgets", Kind: "Widget"}},
		GroupVersion: gvr.GroupVersion(),
	}
	return &admission.Request{
		Operation: admission.Create, User: &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}},
		Version: v, Resource: gvr, Namespace: "default", Name: "w",
		Objects: noopWrite{}, Reporter: noopWrite{},
	}
}

// noopWrite is a write whose object no plugin replaces.
type noopWrite struct {
	admission.Objects
	admission.Reporter
}

func (noopWrite) Replaced() int { return 0 }

// TestSettings checks that a configuration is rejected for a plugin that accepts none.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	for plugin, want := range map[string]string{
		"MutatingAdmissionPolicy": "plugin MutatingAdmissionPolicy accepts no configuration", "EventRateLimit": "",
		"LimitRanger": "",
	} {
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: " + plugin +
			", configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration," +
			" limits: [{type: Server, qps: 1, burst: 1}]}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config(t)
		c.ConfigFile, c.Enable = file, []string{"EventRateLimit"}
		if plugin != "EventRateLimit" {
			c.Enable = nil
		}
		if _, err := Open(c); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}
