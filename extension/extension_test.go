package extension

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/testserver"
)

// manifest is the manifest of the kind Boat. Its versions are v1alpha1 and the storage version v1.
const manifest = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.sails, statusReplicasPath: .status.sails}}
    selectableFields: [{jsonPath: .spec.color}]
    schema: &schema
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {color: {type: string}, sails: {type: integer, maximum: 9}, name: {type: string}, title: {type: string}}}
          status: {type: object, properties: {sails: {type: integer}}}
  - {name: v1alpha1, served: true, storage: false, schema: *schema, selectableFields: [{jsonPath: .spec.color}]}
`

var boats = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boats"}

// env is an extension server behind a main server, with the administrator's client.
type env struct {
	*testing.T
	main   *testserver.Server
	server *Server
	admin  *rest.Config
	boats  dynamic.ResourceInterface
}

func start(t *testing.T, kinds ...Kind) *env {
	t.Helper()
	main := testserver.Start(t)
	s, err := Start(t.Context(), Config{Kinds: kinds, Kubeconfig: main.Kubeconfig, retry: &wait.Backoff{Steps: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	admin := rest.CopyConfig(main.Config)
	admin.Host, admin.CAData = s.URL(), s.CA()
	e := &env{T: t, main: main, server: s, admin: admin,
		boats: dynamic.NewForConfigOrDie(admin).Resource(boats).Namespace("default")}
	e.until(func() bool { // the ConfigMap with the client CAs may be written after the start
		_, err := e.boats.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return e
}

func (e *env) until(is func() bool) {
	e.Helper()
	if err := wait.PollUntilContextTimeout(e.Context(), 5*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return is(), nil }); err != nil {
		e.Fatal(err)
	}
}

func (e *env) create(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return e.boats.Create(e.Context(), o, metav1.CreateOptions{})
}

func boat(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Boat",
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

func text(o *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

// TestDependencies checks that the package does not depend on k8s.io/kubernetes or the generic API server.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(line, "k8s.io/kubernetes") || line == "k8s.io/apiserver/pkg/server" {
			t.Error(line)
		}
	}
}

// TestInvalidManifests checks the errors for manifests that are not valid CustomResourceDefinitions.
func TestInvalidManifests(t *testing.T) {
	change := func(old, new string) Kind {
		return Kind{Manifest: []byte(strings.Replace(manifest, old, new, 1))}
	}
	twice := Kind{Manifest: []byte(manifest)}
	convert := func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured, error) { return o, nil }
	for _, c := range []struct {
		kinds []Kind
		want  string
	}{
		{[]Kind{change("scope:", "scoop:")}, `unknown field "scoop"`},
		{[]Kind{change("apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1")}, "want a CustomResourceDefinition"},
		{[]Kind{change("type: integer", "type: number, x-kubernetes-list-type: set")}, "x-kubernetes-list-type"},
		{[]Kind{change("boats.example.com", "ships.example.com")}, `must be spec.names.plural+"."+spec.group`},
		{[]Kind{change("  scope:", "  conversion: {strategy: Webhook}\n  scope:")},
			"use the function Convert instead of a webhook"},
		{[]Kind{change("{name: boats.example.com}",
			`{name: boats.example.com, annotations: {trellis.dev/conversion: "x("}}`)}, "trellis.dev/conversion"},
		{[]Kind{{Manifest: []byte(strings.Replace(manifest, "{name: boats.example.com}",
			`{name: boats.example.com, annotations: {trellis.dev/conversion: "x"}}`, 1)), Convert: convert}},
			"are mutually exclusive"},
		{[]Kind{twice, twice}, "two kinds"},
		{[]Kind{{Manifest: []byte(manifest), Subresources: []Subresource{{Name: "sink"}}}},
			"boats/sink: decode the manifest of a kind"},
	} {
		if _, err := Start(t.Context(), Config{Kinds: c.kinds}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestKind checks features of the manifest: selectable fields, /status, /scale, validation, pruning and strict field
// validation.
func TestKind(t *testing.T) {
	e := start(t, Kind{Manifest: []byte(manifest)})
	ctx := t.Context()
	for _, color := range []string{"red", "blue"} {
		if _, err := e.create(boat(color, map[string]any{"color": color, "sails": int64(2)})); err != nil {
			t.Fatal(err)
		}
	}
	list, err := e.boats.List(ctx, metav1.ListOptions{FieldSelector: "spec.color=red"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%v %v", list, err)
	}
	if _, err := e.create(boat("fast", map[string]any{"sails": int64(10)})); !apierrors.IsInvalid(err) {
		t.Error(err)
	}
	o, err := e.boats.Patch(ctx, "red", types.MergePatchType, []byte(`{"status":{"sails":1}}`), metav1.PatchOptions{},
		"status")
	if n, _, _ := unstructured.NestedInt64(o.Object, "status", "sails"); err != nil || n != 1 {
		t.Errorf("%v %v", o, err)
	}
	scale, err := e.boats.Patch(ctx, "red", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`),
		metav1.PatchOptions{}, "scale")
	if err != nil || scale.GetKind() != "Scale" {
		t.Errorf("%v %v", scale, err)
	}
	if o, err = e.boats.Get(ctx, "red", metav1.GetOptions{}); err != nil || o.GetGeneration() != 2 {
		t.Errorf("%v %v", o, err)
	}
	unknown := boat("odd", map[string]any{"wheels": int64(1)})
	if _, err := e.boats.Create(ctx, unknown,
		metav1.CreateOptions{FieldValidation: "Strict"}); !apierrors.IsBadRequest(err) {
		t.Error(err)
	}
	if o, err = e.create(unknown); err != nil || len(o.Object["spec"].(map[string]any)) > 0 {
		t.Errorf("%v %v: not pruned", o, err)
	}
	if err := e.boats.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

// TestHooks checks that Admit and Validate are called for each write. Their objects are at the storage version, and
// their errors become responses.
func TestHooks(t *testing.T) {
	var calls []string
	k := Kind{Manifest: []byte(manifest)}
	k.Admit = func(_ context.Context, r *Request) error {
		calls = append(calls, fmt.Sprint("admit ", r.Operation, r.Subresource, r.Old != nil, r.New != nil,
			r.User.GetName(), r.DryRun))
		if r.Operation == Delete {
			return errors.New("boats last")
		}
		if r.New.GetAPIVersion() != "example.com/v1" {
			t.Errorf("at %s", r.New.GetAPIVersion())
		}
		r.Warn("wet")
		r.New.SetLabels(map[string]string{"afloat": "yes"})
		return nil
	}
	k.Validate = func(_ context.Context, r *Request) error {
		calls = append(calls, fmt.Sprint("validate ", r.Operation, r.Old != nil, r.New != nil))
		if r.Operation != Delete && text(r.New, "spec", "color") == "invisible" {
			path := field.NewPath("spec")
			return field.ErrorList{field.Forbidden(path.Child("color"), "cannot be seen"),
				field.Required(path.Child("name"), "")}.ToAggregate()
		}
		if r.New != nil && r.New.GetLabels()["afloat"] != "yes" {
			t.Errorf("Validate does not get the changes of Admit: %v", r.New)
		}
		return nil
	}
	e := start(t, k)
	ctx := t.Context()
	o, err := e.boats.Create(ctx, boat("b", nil), metav1.CreateOptions{DryRun: []string{"All"}})
	if err != nil || o.GetLabels()["afloat"] != "yes" {
		t.Fatal(o, err)
	}
	v1alpha1 := boat("b", map[string]any{"color": "red"})
	v1alpha1.SetAPIVersion("example.com/v1alpha1")
	older := dynamic.NewForConfigOrDie(e.admin).Resource(boats.GroupResource().WithVersion("v1alpha1")).
		Namespace("default")
	if o, err = older.Create(ctx, v1alpha1, metav1.CreateOptions{}); err != nil ||
		o.GetAPIVersion() != "example.com/v1alpha1" {
		t.Fatal(o, err)
	}
	patch := []byte(`{"spec":{"color":"invisible"}}`)
	_, err = e.boats.Patch(ctx, "b", types.MergePatchType, patch, metav1.PatchOptions{})
	const want = `Boat.example.com "b" is invalid: [spec.color: Forbidden: cannot be seen, spec.name: Required value]`
	if !apierrors.IsInvalid(err) || err.Error() != want {
		t.Error(err)
	}
	if _, err := e.boats.Patch(ctx, "b", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{},
		"scale"); err != nil {
		t.Error(err)
	}
	if err := e.boats.Delete(ctx, "b", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) ||
		err.Error() != `boats.example.com "b" is forbidden: boats last` {
		t.Error(err)
	}
	got, wanted := strings.Join(calls, "\n"), strings.Join([]string{
		"admit CREATEfalse true kubernetes-admin true", "validate CREATEfalse true",
		"admit CREATEfalse true kubernetes-admin false", "validate CREATEfalse true",
		"admit UPDATEtrue true kubernetes-admin false", "validate UPDATEtrue true",
		"admit UPDATEscaletrue true kubernetes-admin false", "validate UPDATEtrue true",
		"admit DELETEtrue false kubernetes-admin false",
	}, "\n")
	if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(wanted, " ", "") {
		t.Errorf("got calls\n%s\nwant\n%s", got, wanted)
	}
}

// TestSubresource checks the function of a subresource. It gets the latest object, its change is validated like an
// update, and its errors are sent to the client.
func TestSubresource(t *testing.T) {
	k := Kind{Manifest: []byte(manifest)}
	k.Validate = func(_ context.Context, r *Request) error {
		if r.Subresource == "sink" && text(r.New, "spec", "name") == "unsinkable" &&
			text(r.New, "spec", "color") != text(r.Old, "spec", "color") {
			return field.Forbidden(field.NewPath("spec", "name"), "it is unsinkable")
		}
		return nil
	}
	var e *env
	var concurrent []byte // another writer patches the object while Do runs
	count := 0
	k.Subresources = []Subresource{{Name: "sink",
		Body: []byte(strings.NewReplacer("boats", "holes", "boat", "hole", "Boat", "Hole").Replace(manifest)),
		Do: func(ctx context.Context, o, body *unstructured.Unstructured) (*unstructured.Unstructured, error) {
			count++
			if o.GetAPIVersion() != "example.com/v1" {
				t.Errorf("the object is at %s", o.GetAPIVersion())
			}
			color := text(body, "spec", "color")
			if color == "void" {
				return nil, errors.New("no such sea")
			}
			if concurrent != nil {
				patch := concurrent
				concurrent = nil
				if _, err := e.boats.Patch(ctx, o.GetName(), types.MergePatchType, patch,
					metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
			return nil, unstructured.SetNestedField(o.Object, color, "spec", "color")
		}}}
	e = start(t, k)
	older := dynamic.NewForConfigOrDie(e.admin).Resource(boats.GroupResource().WithVersion("v1alpha1")).
		Namespace("default")
	sink := func(name, color string, o metav1.CreateOptions) error {
		hole := boat(name, map[string]any{"color": color})
		hole.SetKind("Hole")
		_, err := older.Create(t.Context(), hole, o, "sink")
		return err
	}
	for _, name := range []string{"b", "unsinkable"} {
		if _, err := e.create(boat(name, map[string]any{"name": name})); err != nil {
			t.Fatal(err)
		}
	}
	concurrent = []byte(`{"spec":{"title":"HMS"}}`)
	if err := sink("b", "blue", metav1.CreateOptions{}); err != nil || count != 2 {
		t.Errorf("%v, Do was called %d times, want 2", err, count)
	}
	if err := sink("b", "green", metav1.CreateOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	o, err := e.boats.Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil || text(o, "spec", "color") != "blue" || text(o, "spec", "title") != "HMS" || o.GetGeneration() != 3 {
		t.Errorf("%v %v", o, err)
	}
	if err := sink("unsinkable", "blue", metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "it is unsinkable") {
		t.Error(err)
	}
	if err := sink("b", "void", metav1.CreateOptions{}); apierrors.ReasonForError(err) != metav1.StatusReasonUnknown ||
		err.Error() != "no such sea" {
		t.Errorf("%v", err)
	}
	if err := sink("missing", "blue", metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	wrong := boat("b", nil)
	if _, err := e.boats.Create(t.Context(), wrong, metav1.CreateOptions{}, "sink"); !apierrors.IsInvalid(err) {
		t.Errorf("a Boat in place of a Hole: %v", err)
	}
}

// TestConvert checks that Kind.Convert converts objects between versions for reads, writes and watches.
func TestConvert(t *testing.T) {
	k := Kind{Manifest: []byte(manifest)}
	k.Convert = func(o *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
		from, into := "title", "name"
		if to == "example.com/v1" {
			from, into = into, from
		}
		if value := text(o, "spec", from); value != "" {
			unstructured.RemoveNestedField(o.Object, "spec", from)
			return o, unstructured.SetNestedField(o.Object, value, "spec", into)
		}
		return o, nil
	}
	e := start(t, k)
	ctx := t.Context()
	older := dynamic.NewForConfigOrDie(e.admin).Resource(boats.GroupResource().WithVersion("v1alpha1")).
		Namespace("default")
	events, err := older.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if _, err := e.create(boat("b", map[string]any{"title": "Rose"})); err != nil {
		t.Fatal(err)
	}
	if e := <-events.ResultChan(); text(e.Object.(*unstructured.Unstructured), "spec", "name") != "Rose" {
		t.Errorf("%v", e)
	}
	o, err := older.Patch(ctx, "b", types.MergePatchType, []byte(`{"spec":{"name":"Lily"}}`), metav1.PatchOptions{})
	if err != nil || text(o, "spec", "name") != "Lily" {
		t.Errorf("%v %v", o, err)
	}
	if o, err = e.boats.Get(ctx, "b", metav1.GetOptions{}); err != nil || text(o, "spec", "title") != "Lily" ||
		text(o, "spec", "name") != "" {
		t.Errorf("%v %v", o, err)
	}
}

// TestNamespaces checks that objects can be created only in namespaces that exist on the main server and are not
// terminating.
func TestNamespaces(t *testing.T) {
	e := start(t, Kind{Manifest: []byte(manifest)})
	ctx, core := t.Context(), kubernetes.NewForConfigOrDie(e.main.Config).CoreV1().Namespaces()
	at := func(namespace string) error {
		_, err := dynamic.NewForConfigOrDie(e.admin).Resource(boats).Namespace(namespace).Create(ctx, boat("b", nil),
			metav1.CreateOptions{})
		return err
	}
	if err := at("harbour"); !apierrors.IsNotFound(err) || err.Error() != `namespaces "harbour" not found` {
		t.Error(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "harbour", Finalizers: []string{"example.com/wait"}}}
	if _, err := core.Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := at("harbour"); err != nil { // the watch may not have delivered the namespace yet
		t.Error(err)
	}
	if err := core.Delete(ctx, "harbour", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.until(func() bool { return apierrors.HasStatusCause(at("harbour"), corev1.NamespaceTerminatingCause) })
	if _, err := core.Patch(ctx, "harbour", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestMainServerUnavailable checks requests while the main server is unavailable. Only requests of the group
// system:masters are authorized. Client certificates are still authenticated. (AGG-039)
func TestMainServerUnavailable(t *testing.T) {
	e := start(t, Kind{Manifest: []byte(manifest)})
	e.main.Stop()
	anonymous := rest.AnonymousClientConfig(e.admin)
	client, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/apis/example.com/v1/boats": http.StatusInternalServerError,
		"/livez": http.StatusOK} {
		resp, err := client.Get(e.server.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	client.CloseIdleConnections()
	if _, err := e.boats.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	elsewhere := dynamic.NewForConfigOrDie(e.admin).Resource(boats).Namespace("unknown")
	if _, err := elsewhere.Create(t.Context(), boat("b", nil),
		metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("in a namespace that the main server cannot return: %v", err)
	}
}

// TestFlags checks the command-line flags. (AGG-032)
func TestFlags(t *testing.T) {
	main := testserver.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready := &interrupter{cancel: cancel}
	dir := t.TempDir()
	args := []string{"boats", "--kubeconfig", main.Kubeconfig, "--secure-port=0", "--bind-address=127.0.0.1",
		"--data-dir", dir}
	if err := run(ctx, Config{Kinds: []Kind{{Manifest: []byte(manifest)}}}, args, ready); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(ready.String(), "serving at https://127.0.0.1:") {
		t.Error(ready.String())
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		t.Error("the data directory is empty", err)
	}
	for want, args := range map[string][]string{
		"only flags":            {"boats", "serve"},
		"unknown flag: --sails": {"boats", "--sails"},
		"does not run in a Pod": {"boats", "--secure-port=0"},
		"--client-ca-file": {"boats", "--kubeconfig", main.Kubeconfig,
			"--client-ca-file=/missing"},
		"--requestheader-client-ca-file": {"boats", "--kubeconfig", main.Kubeconfig,
			"--requestheader-client-ca-file=/missing"},
		"--tls-cert-file": {"boats", "--kubeconfig", main.Kubeconfig,
			"--tls-cert-file=/missing"},
		"client for authentication: stat /missing": {"boats", "--kubeconfig", main.Kubeconfig,
			"--authentication-kubeconfig=/missing"},
		"client for authorization: stat /elsewhere": {"boats", "--kubeconfig", main.Kubeconfig,
			"--authorization-kubeconfig=/elsewhere"},
		"invalid argument \"here\" for \"--bind-addr": {"boats", "--bind-address=here"},
	} {
		if err := run(t.Context(), Config{}, args, ready); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

// interrupter is a writer for the output of the program. It cancels the program's context at the first write.
type interrupter struct {
	bytes.Buffer
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	i.cancel()
	return i.Buffer.Write(p)
}

// TestOwnCertificateIsRenewed checks that a server that has been running for 300 days renews its own certificate, and
// that clients with the same CA trust it.
func TestOwnCertificateIsRenewed(t *testing.T) {
	main, clock := testserver.Start(t), clocktesting.NewFakeClock(time.Now().AddDate(0, 0, -300))
	s, err := Start(t.Context(), Config{Kinds: []Kind{{Manifest: []byte(manifest)}}, Kubeconfig: main.Kubeconfig,
		clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{T: t}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.CA())
	shown := func() *x509.Certificate {
		c, err := tls.Dial("tcp", s.listener.Addr().String(), &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0]
	}
	before := shown()
	clock.SetTime(time.Now())
	e.until(func() bool { return !shown().Equal(before) })
	if after := shown(); after.NotAfter.Before(time.Now().AddDate(0, 0, 364)) {
		t.Errorf("renewed until %v", after.NotAfter)
	}
}
