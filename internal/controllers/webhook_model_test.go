package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/testserver"
)

// webhookModel holds a CRD whose versions and conversion strategy change at random, and the expected state. At the
// same time the webhook is stopped and restarted, objects are written and migrated, and the server is restarted. The
// test does not know the progress of a running migration, so the model holds all possible states.
type webhookModel struct {
	*testing.T
	*testClient
	server  *testserver.Server
	webhook *testWebhook
	random  *rand.Rand
	steps   []string // actions of the test
	writes  int

	versions    map[string]bool // versions of the CRD and whether they are served
	storage     string
	usesWebhook bool     // the conversion strategy is Webhook
	stored      []string // possible values in status.storedVersions
	objects     map[string]*modelObject
	running     []string // migrations that may still run

	restarted time.Time // time of the last restart of the webhook
}

// modelObject holds the expected state of an object.
type modelObject struct {
	value, status string
	mayBeAt       map[string]bool // versions at which the object may be stored
}

func (s *webhookModel) record(format string, args ...any) {
	s.steps = append(s.steps, fmt.Sprintf(format, args...))
}

func (s *webhookModel) fail(format string, args ...any) {
	s.Helper()
	s.Fatalf("%s\nafter\n  %s", fmt.Sprintf(format, args...), strings.Join(s.steps, "\n  "))
}

func (s *webhookModel) pick(from []string) string { return from[s.random.IntN(len(from))] }

func (s *webhookModel) served() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.versions)), func(v string) bool { return !s.versions[v] })
}

func (s *webhookModel) resource(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}
}

// isWebhookDown reports whether err is caused by a webhook that is stopped, or was restarted less than two seconds ago.
func (s *webhookModel) isWebhookDown(err error) bool {
	return err != nil && s.usesWebhook && (s.webhook.stopped.Load() || time.Since(s.restarted) < 2*time.Second) &&
		apierrors.IsInternalError(err) &&
		strings.Contains(err.Error(), "conversion webhook for")
}

// changeCRD gives the CRD random versions and a random conversion strategy.
func (s *webhookModel) changeCRD() {
	next := map[string]bool{s.pick(allVersions): true}
	for _, v := range allVersions {
		if s.random.IntN(5) > 0 {
			next[v] = next[v] || s.random.IntN(3) > 0
		}
	}
	storage, remote := s.pick(slices.Sorted(maps.Keys(next))), s.random.IntN(3) > 0
	s.record("change to %v, stored at %s, webhook %v", next, storage, remote)
	var versions []any
	for _, v := range allVersions {
		if served, has := next[v]; has {
			spec := version(v, served, v == storage)
			spec["subresources"] = map[string]any{"status": map[string]any{}}
			versions = append(versions, spec)
		}
	}
	conversion := map[string]any{"strategy": "None", "webhook": nil}
	if remote {
		conversion = s.webhook.conversion()
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": versions, "conversion": conversion}})
	if err != nil {
		s.Fatal(err)
	}
	_, err = s.at(crds, "").Patch(s.Context(), widgetCRD, types.MergePatchType, patch, metav1.PatchOptions{})
	missing := slices.ContainsFunc(s.stored, func(v string) bool { _, has := next[v]; return !has })
	if err != nil {
		if !missing || !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), "must remain in spec.versions until a storage migration") {
			s.fail("change the CRD: %v", err)
		}
		return
	}
	if missing && len(s.running) == 0 {
		s.fail("the server accepted the CRD without a version at which objects are stored: %v", s.stored)
	}
	s.versions, s.storage, s.usesWebhook = next, storage, remote
	gone := func(v string) bool { _, has := next[v]; return !has }
	s.stored = slices.DeleteFunc(s.stored, gone)
	if !slices.Contains(s.stored, storage) {
		s.stored = append(s.stored, storage)
	}
	for _, o := range s.objects {
		maps.DeleteFunc(o.mayBeAt, func(v string, _ bool) bool { return gone(v) })
		if len(s.running) > 0 {
			o.mayBeAt[storage] = true
		}
	}
}

// write creates, changes or deletes an object, or writes its status.
func (s *webhookModel) write() {
	at, name := s.pick(s.served()), fmt.Sprint("w", s.random.IntN(8))
	client := s.at(s.resource(at), "default")
	s.writes++
	value := fmt.Sprint(s.writes)
	fields := map[string]any{at: value}
	known := s.objects[name]
	var err error
	switch n := s.random.IntN(8); {
	case known == nil:
		s.record("create %s at %s: %s", name, at, value)
		o := object("Widget", "example.com/"+at, name)
		o.Object[at] = value
		if _, err = client.Create(s.Context(), o, metav1.CreateOptions{}); err == nil {
			s.objects[name] = &modelObject{value: value}
			known = s.objects[name]
		}
	case n == 0:
		s.record("delete %s at %s", name, at)
		if err = client.Delete(s.Context(), name, metav1.DeleteOptions{}); err == nil {
			delete(s.objects, name)
			return
		}
	case n < 3:
		s.record("write the status of %s at %s: %s", name, at, value)
		patch := fmt.Appendf(nil, `{"status":{"is":%q}}`, value)
		if _, err = client.Patch(
			s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status",
		); err == nil {
			known.status = value
		}
	default:
		s.record("write %s at %s: %s", name, at, value)
		for _, v := range allVersions {
			if v != at {
				fields[v] = nil
			}
		}
		patch, _ := json.Marshal(fields)
		if _, err = client.Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
			known.value = value
		}
	}
	switch {
	case s.isWebhookDown(err):
		s.record("  failed without the webhook")
	case err != nil:
		s.fail("write: %v", err)
	default:
		known.mayBeAt = map[string]bool{s.storage: true}
	}
}

// migrate creates a StorageVersionMigration.
func (s *webhookModel) migrate() {
	s.writes++
	name := fmt.Sprint("m", s.writes)
	s.record("migrate: %s", name)
	svm := object("StorageVersionMigration", "storagemigration.k8s.io/v1", name)
	svm.Object["spec"] = map[string]any{"resource": map[string]any{"group": "example.com", "resource": "widgets"}}
	s.create(s.T, storageMigrations, "", svm)
	s.running = append(s.running, name)
	for _, o := range s.objects {
		o.mayBeAt[s.storage] = true
	}
}

// finishMigrations waits until all migrations have succeeded. It then checks that every object is stored at one of the
// versions in storedVersions.
func (s *webhookModel) finishMigrations() {
	if s.webhook.stopped.Load() {
		s.restartWebhook()
	}
	s.record("wait for migrations")
	for _, name := range s.running {
		until := time.Now().Add(4 * waitTimeout)
		for !succeeded(s.get(s.T, storageMigrations, "", name)) {
			if time.Now().After(until) {
				s.fail("%s does not succeed: %v", name, s.get(s.T, storageMigrations, "", name).Object["status"])
			}
			<-time.After(10 * time.Millisecond)
		}
		s.delete(s.T, storageMigrations, "", name, "")
	}
	s.running = nil
	s.stored = s.storedVersions()
	for name, o := range s.objects {
		maps.DeleteFunc(o.mayBeAt, func(v string, _ bool) bool { return !slices.Contains(s.stored, v) })
		if len(o.mayBeAt) == 0 {
			s.fail("%s is stored at none of storedVersions %v", name, s.stored)
		}
	}
	if len(s.stored) > 1 || !s.versions[s.storage] {
		return
	}
	calls := s.webhook.calls.Load()
	if _, err := s.at(s.resource(s.storage), "default").List(s.Context(), metav1.ListOptions{}); err != nil {
		s.fail("list at %s, where all objects are stored: %v", s.storage, err)
	}
	if s.webhook.calls.Load() != calls {
		s.fail("the list at %s, where all objects are stored, needed a conversion", s.storage)
	}
}

func (s *webhookModel) restartWebhook() {
	s.record("restart the webhook")
	s.webhook.restart()
	s.restarted = time.Now()
}

// awaitReadable waits until every object can be read at every served version.
func (s *webhookModel) awaitReadable() {
	for _, v := range s.served() {
		eventually(s.T, "all objects are readable at "+v, func(ctx context.Context) bool {
			_, err := s.at(s.resource(v), "default").List(ctx, metav1.ListOptions{})
			return err == nil
		})
	}
}

func (s *webhookModel) restartServer() {
	s.record("restart")
	s.server.Restart()
	s.testClient = connect(s.T, s.server)
}

// touch writes an object without changing it. The write must change an object that is stored at another version.
func (s *webhookModel) touch() {
	if len(s.objects) == 0 {
		return
	}
	name, at := s.pick(slices.Sorted(maps.Keys(s.objects))), s.pick(s.served())
	o, client := s.objects[name], s.at(s.resource(at), "default")
	s.record("touch %s at %s", name, at)
	before, err := client.Get(s.Context(), name, metav1.GetOptions{})
	if err == nil {
		var after *unstructured.Unstructured
		after, err = client.Patch(s.Context(), name, types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		if err == nil && !o.mayBeAt[s.storage] && after.GetResourceVersion() == before.GetResourceVersion() {
			s.fail("%s is stored at %v and was not written at %s", name, o.mayBeAt, s.storage)
		}
	}
	switch {
	case err == nil:
		o.mayBeAt = map[string]bool{s.storage: true}
	case !s.isWebhookDown(err):
		s.fail("touch %s: %v", name, err)
	}
}

func (s *webhookModel) storedVersions() []string {
	stored, _, _ := unstructured.NestedStringSlice(s.get(s.T, crds, "", widgetCRD).Object, "status", "storedVersions")
	return stored
}

// check compares all readable objects and storedVersions with the model.
func (s *webhookModel) check() {
	stored := s.storedVersions()
	for _, v := range stored {
		if !slices.Contains(s.stored, v) {
			s.fail("got storedVersions %v, want only versions of %v", stored, s.stored)
		}
	}
	if !slices.Contains(stored, s.storage) || len(s.running) == 0 && len(stored) != len(s.stored) {
		s.fail("got storedVersions %v, want %v with %s", stored, s.stored, s.storage)
	}
	for name, o := range s.objects {
		if !slices.ContainsFunc(stored, func(v string) bool { return o.mayBeAt[v] }) {
			s.fail("%s is stored at one of %v, but storedVersions are %v", name, o.mayBeAt, stored)
		}
	}
	for _, v := range allVersions {
		list, err := s.at(s.resource(v), "default").List(s.Context(), metav1.ListOptions{})
		switch {
		case !s.versions[v]:
			if !apierrors.IsNotFound(err) {
				s.fail("list at unserved version %s: got %v, want NotFound", v, err)
			}
		case err == nil:
			s.compare(v, list)
		case !s.isWebhookDown(err):
			s.fail("list at %s: %v", v, err)
		}
	}
}

func (s *webhookModel) compare(version string, list *unstructured.UnstructuredList) {
	got := map[string]string{}
	want := map[string]string{}
	for name, o := range s.objects {
		want[name] = o.value + "/" + o.status
	}
	for _, o := range list.Items {
		var values []string
		for _, v := range allVersions {
			if value, has := o.Object[v].(string); has {
				values = append(values, value)
				if known := s.objects[o.GetName()]; v != version && s.usesWebhook && known != nil &&
					!known.mayBeAt[version] {
					s.fail(
						"%s, which is stored at %v, was not converted to %s: %v",
						o.GetName(),
						known.mayBeAt,
						version,
						o.Object,
					)
				}
			}
		}
		status, _, _ := unstructured.NestedString(o.Object, "status", "is")
		got[o.GetName()] = strings.Join(values, "+") + "/" + status
		if o.GetAPIVersion() != "example.com/"+version {
			s.fail("%s read at %s has apiVersion %s", o.GetName(), version, o.GetAPIVersion())
		}
	}
	if !maps.Equal(got, want) {
		s.fail("list at %s: got %v, want %v", version, got, want)
	}
}

// deleteAll deletes the CRD and the migrations for the next run.
func (s *webhookModel) deleteAll() {
	s.testClient.delete(s.T, crds, "", widgetCRD, "")
	s.awaitGone(s.T, crds, "", widgetCRD)
	if err := s.at(storageMigrations, "").DeleteCollection(
		s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{},
	); err != nil {
		s.Error(err)
	}
}

func (s *webhookModel) step() {
	switch n := s.random.IntN(24); {
	case n < 5:
		s.changeCRD()
	case n < 14:
		s.write()
	case n < 16:
		s.touch()
	case n < 18:
		s.migrate()
	case n < 20 && s.webhook.stopped.Load():
		s.restartWebhook()
	case n < 20:
		s.record("stop the webhook")
		s.webhook.stop()
	case n < 21:
		s.restartServer()
	case n < 22:
		s.finishMigrations()
	default:
		s.record("wait") // lets migrations make progress
		<-time.After(time.Duration(s.random.IntN(30)) * time.Millisecond)
	}
}

// TestConversionSwitches checks random sequences of version switches, strategy changes, writes, migrations, and
// restarts of the webhook and the server. While the webhook is reachable, every object must be readable at every
// served version, and storedVersions must be right. The environment variable TEST_SEEDS is the number of sequences.
// (VER-036 VER-041 VER-054 VER-056 VER-058 VER-059 CNV-059 CNV-073)
func TestConversionSwitches(t *testing.T) {
	first, seeds := uint64(0), uint64(2)
	if n, err := strconv.ParseUint(os.Getenv("TEST_SEEDS"), 10, 32); err == nil {
		seeds = n
	}
	if n, err := strconv.ParseUint(os.Getenv("TEST_FIRST_SEED"), 10, 32); err == nil {
		first = n
	}
	server := testserver.Start(t, testserver.OnDisk())
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := &webhookModel{
				T: t, testClient: connect(t, server), server: server, webhook: newTestWebhook(t),
				random: rand.New(rand.NewPCG(seed, 9)),
				versions: map[string]bool{
					"v1": true,
				}, storage: "v1", stored: []string{"v1"}, objects: map[string]*modelObject{},
			}
			first := version("v1", true, true)
			first["subresources"] = map[string]any{"status": map[string]any{}}
			s.create(t, crds, "", definition("example.com", "Widget", "Namespaced", first))
			defer s.deleteAll()
			for range 60 {
				s.step()
				s.check()
			}
			s.finishMigrations()
			s.migrate()
			s.finishMigrations()
			s.restartServer()
			s.finishMigrations() // now no conversion is cached
			s.awaitReadable()
			s.check()
			if len(s.stored) != 1 {
				s.fail("after all migrations, storedVersions are %v", s.stored)
			}
		})
	}
}
