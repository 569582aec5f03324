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
	"github.com/trellis-k8s/trellis/internal/storage"
)

// absent are plugins of kube-apiserver's that the table does not have, with the reason.
var absent = map[string]string{
	"NamespaceLifecycle":     "is the server's own, and always the first",
	"NamespaceAutoProvision": "comes before NamespaceLifecycle, which is always the first; deprecated",
	"ImagePolicyWebhook":     "calls a server by a client of its own",
}

// The table has every plugin of kube-apiserver's, in its order, and the same are on by default, except for DenyServiceExternalIPs
// (CVE-2020-8554).
func TestTableIsUpstreams(t *testing.T) {
	off := options.DefaultOffAdmissionPlugins()
	off.Delete("DenyServiceExternalIPs")
	var wanted []string
	for _, name := range options.AllOrderedPlugins {
		if absent[name] == "" {
			wanted = append(wanted, name)
		}
	}
	all, on := Names()
	if !slices.Equal(all, wanted) {
		t.Errorf("got  %s\nwant %s", strings.Join(all, " "), strings.Join(wanted, " "))
	}
	for _, name := range all {
		if slices.Contains(on, name) == off.Has(name) {
			t.Errorf("%s: on by default: %t", name, slices.Contains(on, name))
		}
	}
}

func TestCheck(t *testing.T) {
	for want, c := range map[string]Config{
		"": {Enable: []string{"NodeRestriction"}, Disable: []string{"Priority"}},
		`enable-admission-plugins plugin "X" is unknown`:  {Enable: []string{"X"}},
		`disable-admission-plugins plugin "X" is unknown`: {Disable: []string{"X"}},
		"NamespaceLifecycle is always on":                 {Disable: []string{"NamespaceLifecycle"}},
		"Priority is in both":                             {Enable: []string{"Priority"}, Disable: []string{"Priority"}},
	} {
		err := c.Check()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A write that no plugin has anything to say about costs no allocation, whatever quotas there are elsewhere.
func TestWritesOfOthersAreFree(t *testing.T) {
	for _, quotas := range [][]string{nil, {"other/a", "other/b", "others/a"}} {
		all, r := opened(t, quotas...), custom()
		if n := testing.AllocsPerRun(100, func() { pass(t, all, r) }); n != 0 {
			t.Errorf("%v allocations beside %v", n, quotas)
		}
	}
}

// What it costs in time.
func BenchmarkWritesOfOthers(b *testing.B) {
	for name, quotas := range map[string][]string{"no quota": nil, "quotas elsewhere": {"other/a", "other/b", "others/a"}} {
		b.Run(name, func(b *testing.B) {
			all, r := opened(b, quotas...), custom()
			b.ReportAllocs()
			for b.Loop() {
				pass(b, all, r)
			}
		})
	}
}

// A quota is asked about writes in its namespace, from when it is there to when the last has gone.
func TestQuotasHoldWhereTheyAre(t *testing.T) {
	states := [][]string{nil, {"default/a"}, {"default/a", "default/b", "other/a"}, {"default/b", "other/a"}, {"other/a"}, {"default/a"}, nil}
	head := snapshot()
	b := newBounds(func() *storage.Snapshot { return head })
	for _, quotas := range states {
		head = snapshot(quotas...)
		for _, namespace := range []string{"default", "other", "defaul", ""} {
			if want := slices.ContainsFunc(quotas, func(q string) bool { return strings.HasPrefix(q, namespace+"/") }); b.has(namespace) != want {
				t.Errorf("%v: %q has one: %t", quotas, namespace, !want)
			}
		}
	}
	if len(*b.counts.Load()) != 0 {
		t.Error("namespaces without quotas are remembered")
	}
}

func pass(t testing.TB, all admission.Plugins, r *admission.Request) {
	if all.Handles(r) || all.Admit(t.Context(), r) != nil || all.Validate(t.Context(), r) != nil {
		t.Fatal("a plugin has something to say")
	}
}

// opened are the plugins that are on by default, over a store that has nothing but quotas.
func opened(t testing.TB, quotas ...string) admission.Plugins {
	all, err := Open(config(t, quotas...))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// snapshot has ResourceQuotas, by NAMESPACE/NAME in their order.
func snapshot(quotas ...string) *storage.Snapshot {
	l := new(storage.Loader)
	for _, q := range quotas {
		if err := l.Add(&storage.Record{Key: "/registry/resourcequotas/" + q, Value: []byte(`{"spec":{}}`)}); err != nil {
			panic(err)
		}
	}
	return l.Snapshot(0)
}

func config(t testing.TB, quotas ...string) Config {
	kinds := resource.NewLive(nil, func(*resource.Live) []*resource.Definition { return kinds.Definitions(kinds.Config{}) })
	head := snapshot(quotas...)
	informers := Informers{Catalog: kinds.Load, Head: func() *storage.Snapshot { return head }}
	return Config{
		NodeAuthorizer: true, Informers: informers, Quotas: &Quotas{From: informers}, Client: kubernetes.NewForConfigOrDie(&rest.Config{}),
		Authorizer: authorizer.AuthorizerFunc(nil), Mapper: meta.NewDefaultRESTMapper(nil), Stop: t.Context().Done(),
	}
}

// custom is the create of a custom object.
func custom() *admission.Request {
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	v := &resource.Version{Definition: &resource.Definition{Names: resource.Names{Plural: "widgets", Kind: "Widget"}}, GroupVersion: gvr.GroupVersion()}
	return &admission.Request{Operation: admission.Create, User: &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}, Version: v, Resource: gvr, Namespace: "default", Name: "w", Write: still{}}
}

// still is a write that nobody changes.
type still struct{ admission.Write }

func (still) Replaced() int { return 0 }

// Settings that would not be heeded are refused.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	for plugin, want := range map[string]string{"MutatingAdmissionPolicy": "MutatingAdmissionPolicy has no settings here", "EventRateLimit": "", "LimitRanger": ""} {
		text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: " + plugin + ", configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, qps: 1, burst: 1}]}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config(t)
		c.File, c.Enable = file, []string{"EventRateLimit"}
		if plugin != "EventRateLimit" {
			c.Enable = nil
		}
		if _, err := Open(c); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}
