package plugins

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// absent are plugins of kube-apiserver's that the table does not have, with the reason.
var absent = map[string]string{
	"NamespaceLifecycle":     "is the server's own, and always the first",
	"NamespaceAutoProvision": "comes before NamespaceLifecycle, which is always the first; deprecated",
	"ImagePolicyWebhook":     "calls a server by a client of its own",
}

// The table has every plugin of kube-apiserver's, in its order, and the same are on by default.
func TestTableIsUpstreams(t *testing.T) {
	off := options.DefaultOffAdmissionPlugins()
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
		`enable-admission-plugins plugin "X" is unknown`:                                  {Enable: []string{"X"}},
		`disable-admission-plugins plugin "X" is unknown`:                                 {Disable: []string{"X"}},
		"NamespaceLifecycle is always on":                                                 {Disable: []string{"NamespaceLifecycle"}},
		"[Priority] in enable-admission-plugins and disable-admission-plugins overlapped": {Enable: []string{"Priority"}, Disable: []string{"Priority"}},
	} {
		err := c.Check()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
