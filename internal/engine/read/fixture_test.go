package read_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// env is an environment with the CronTab CRD and the namespaces default and other.
type env struct {
	*fixture.Env
	ctx    context.Context
	caller verb.Caller
}

const cronTabSchema = `{"type":"object","properties":{"spec":{"type":"object","properties":{
"cronSpec":{"type":"string"},"image":{"type":"string"},"replicas":{"type":"integer"},"color":{"type":"string"},
"any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
"ports":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"port":{"type":"integer"}},
"required":["name"]},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"]}}},
"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},
"phase":{"type":"string"}}}}}`

const cronTabVersion = `{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":%s},
"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
"labelSelectorPath":".status.selector"}},
"selectableFields":[{"jsonPath":".spec.color"}]}`

const cronTabCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"crontabs.stable.example.com","uid":"crd-uid","creationTimestamp":"2026-01-01T00:00:00Z"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","singular":"crontab",
"kind":"CronTab","listKind":"CronTabList"},"versions":[%s]},
"status":{"acceptedNames":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},
"conditions":[{"type":"NamesAccepted","status":"True"},{"type":"Established","status":"True"}],
"storedVersions":["v1"]}}`

// cronTabs returns the CronTab CRD with the given schemas. v1 is the storage version.
func cronTabs(v1, v2 string) string {
	return fmt.Sprintf(cronTabCRD, fmt.Sprintf(cronTabVersion, "v1", true, true, v1)+","+
		fmt.Sprintf(cronTabVersion, "v2", true, false, v2))
}

func newEnv(t testing.TB) *env {
	t.Helper()
	f := &env{fixture.Open(t, kinds.Config{EventTTL: time.Hour}), t.Context(),
		verb.Caller{User: &user.DefaultInfo{Name: "tester"}, FieldManager: "tester"}}
	for _, name := range []string{"default", "other"} {
		f.mustCreate(
			f.at("", "v1", "namespaces"),
			`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+name+`"}}`,
		)
	}
	f.writeCRD(cronTabs(cronTabSchema, cronTabSchema))
	return f
}

func decode(t testing.TB, text string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func (f *env) writeCRD(manifest string) {
	f.Helper()
	f.Put(decode(f, manifest))
	f.Catalog()
}

func (f *env) at(group, version, plural string) verb.Target {
	f.Helper()
	return verb.Target{Version: f.Catalog().Find(group, version, plural)}
}

func (f *env) cron(name string) verb.Target {
	f.Helper()
	t := f.at("stable.example.com", "v1", "crontabs")
	t.Namespace, t.Name = "default", name
	return t
}

func (f *env) head() string { return strconv.FormatInt(f.Store.Head().Revision(), 10) }

func (f *env) mustCreate(t verb.Target, text string) {
	f.Helper()
	tree := decode(f, text)
	tree["apiVersion"], tree["kind"] = t.Version.APIVersion, t.Version.Definition.Names.Kind
	if _, err := f.Create(f.ctx, t, verb.Body{Tree: tree}, f.caller); err != nil {
		f.Fatal(err)
	}
}

func (f *env) mustPatch(t verb.Target, data string) {
	f.Helper()
	p := verb.Patch{Type: types.MergePatchType, Data: []byte(data)}
	if _, _, err := f.Patch(f.ctx, t, p, f.caller); err != nil {
		f.Fatal(err)
	}
}

func (f *env) delete(t verb.Target) {
	f.Helper()
	if _, _, err := f.Delete(f.ctx, t, metav1.DeleteOptions{}, f.caller); err != nil {
		f.Fatal(err)
	}
}

func fieldSelector(t testing.TB, text string) fields.Selector {
	t.Helper()
	s, err := fields.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func labelSelector(t testing.TB, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// benchCronTab returns the manifest of a CronTab of about 1.9 KB. The label "shard" has 100 different values.
func benchCronTab(i int) string {
	return fmt.Sprintf(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"c%06d",
"labels":{"app":"bench","shard":"%d","tier":"backend"},
"annotations":{"example.com/owner":"team","example.com/note":%q}},
"spec":{"cronSpec":"*/5 * * * *","image":"registry.example.com/library/cron:1.2.3","replicas":3,"color":"red",
"ports":[{"name":"http","port":80},{"name":"https","port":443},{"name":"admin","port":8080}],"any":{"env":%s}}}`,
		i, i%100, strings.Repeat("n", 100), benchEnvironment())
}

func benchEnvironment() string {
	var b strings.Builder
	b.WriteByte('[')
	for i := range 14 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"VARIABLE_%d","value":"some value that is set %d"}`, i, i)
	}
	b.WriteByte(']')
	return b.String()
}
