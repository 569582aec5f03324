package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

var (
	cronTabResource   = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// notifications holds the notifications of a follower, one line each.
type notifications struct {
	testing.TB
	lines chan string
}

// feed returns a running Feed, and stops it at the end of the test.
func (f *fixture) feed() *read.Feed {
	f.Helper()
	feed := f.NewFeed()
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan error)
	go func() { done <- feed.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			f.Errorf("the feed ended with %v", err)
		}
	})
	return feed
}

// followFeed follows a kind. Each line of the result contains the revision of an event as its distance from the store's
// current revision, counted in events.
func followFeed(f *fixture, feed *read.Feed, r schema.GroupVersionResource) (*notifications, func()) {
	f.Helper()
	t, base := &notifications{f, make(chan string, 100000)}, f.countEvents(f.Store.Head().Revision())
	line := func(m *metav1.PartialObjectMetadata) string {
		revision, _ := strconv.ParseInt(m.ResourceVersion, 10, 64)
		return fmt.Sprintf("%s/%s@%+d", m.Namespace, m.Name, f.countEvents(revision)-base)
	}
	stop, ok := feed.Follow(r, func(objects []*metav1.PartialObjectMetadata, revision int64) {
		var all []string
		for _, m := range objects {
			all = append(all, line(m))
		}
		t.lines <- fmt.Sprintf("all %v@%+d", all, f.countEvents(revision)-base)
	}, func(m *metav1.PartialObjectMetadata, deleted bool) {
		text := map[bool]string{false: "changed ", true: "deleted "}[deleted] + line(m)
		if m.DeletionTimestamp != nil {
			text += " terminating"
		}
		for _, o := range m.OwnerReferences {
			text += fmt.Sprintf(" of %s/%s %s %s %t", o.APIVersion, o.Kind, o.Name, o.UID, *o.BlockOwnerDeletion)
		}
		if len(m.Finalizers) > 0 {
			text += fmt.Sprint(" ", m.Finalizers)
		}
		if m.UID == "" || m.Labels != nil || m.ManagedFields != nil {
			f.Errorf("got %+v, want a UID, and no labels or managedFields", m)
		}
		t.lines <- text
	})
	if !ok {
		f.Fatalf("Follow does not accept %v", r)
	}
	return t, stop
}

// next returns the next line, and fails the test if none arrives.
func (t *notifications) next() string {
	t.Helper()
	select {
	case line := <-t.lines:
		return line
	case <-time.After(eventTimeout):
		t.Fatal("got no notification")
		return ""
	}
}

// expect compares the next lines.
func (t *notifications) expect(lines ...string) {
	t.Helper()
	for _, want := range lines {
		if got := t.next(); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// TestFeed checks the notifications of creates, updates and deletions, the replacement of a follower, and kinds
// that cannot be followed.
func TestFeed(t *testing.T) {
	f := newFixture(t)
	feed := f.feed()
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"other"}}`)
	crons, stop := followFeed(f, feed, cronTabResource)
	crons.expect("all [default/a@-1]@+0")

	const owner = `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"other","uid":"u",` +
		`"blockOwnerDeletion":true}]`
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b","labels":{"x":"y"},"finalizers":["example.com/x"],`+owner+`}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"unseen"}}`)
	f.delete(f.cron("b"), metav1.DeleteOptions{})
	f.mustEdit(f.cron("b"), func(o object.Tree) { object.SetFinalizers(o, nil) })
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	const of = " of v1/ConfigMap other u true"
	crons.expect("changed default/b@+1"+of+" [example.com/x]", "changed default/b@+3 terminating"+of+" [example.com/x]")
	if line := crons.next(); !strings.HasPrefix(line, "deleted default/b@+4 terminating"+of) {
		t.Errorf("got %q, want the deletion of b", line)
	}
	crons.expect("deleted default/a@+5")

	maps, _ := followFeed(f, feed, configMapResource)
	maps.expect("all [default/other@-5 default/unseen@-3]@+0")
	again, _ := followFeed(f, feed, cronTabResource)
	again.expect("all []@+0")
	stop() // stops the replaced follower, and must not affect the new one
	f.mustCreate(f.cron(""), `{"metadata":{"name":"c"}}`)
	again.expect("changed default/c@+1")
	if len(crons.lines) > 0 {
		t.Errorf("the replaced follower got %q", crons.next())
	}
	for _, r := range []schema.GroupVersionResource{
		{Group: "stable.example.com", Version: "v9", Resource: "crontabs"},
		{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"},
	} {
		if _, ok := feed.Follow(r, nil, nil); ok {
			t.Errorf("Follow accepts %v", r)
		}
	}
}

// TestSlowFollower checks that a follower gets the whole list again if the feed has missed events.
func TestSlowFollower(t *testing.T) {
	f := newFixture(t)
	feed := f.feed()
	blocked, release := make(chan struct{}, 1), make(chan struct{})
	if _, ok := feed.Follow(cronTabResource, func([]*metav1.PartialObjectMetadata, int64) {
		blocked <- struct{}{}
		<-release
	}, func(*metav1.PartialObjectMetadata, bool) {}); !ok {
		t.Fatal("Follow does not accept the kind")
	}
	<-blocked
	listed := make(chan int, 10)
	if _, ok := feed.Follow(configMapResource, func(objects []*metav1.PartialObjectMetadata,
		_ int64) {
		listed <- len(objects)
	},
		func(*metav1.PartialObjectMetadata, bool) {}); !ok {
		t.Fatal("Follow does not accept the kind")
	}
	const n = 17000
	for i := 0; i < n; i += 100 {
		var writes []storage.Write
		for j := range 100 {
			name := fmt.Sprintf("m%d", i+j)
			tree := object.Tree{"metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
			writes = append(writes, storage.Write{Key: "/registry/configmaps/default/" + name,
				Value: object.Pack(tree, 0).JSON()})
		}
		f.commit(writes...)
	}
	close(release)
	for {
		select {
		case got := <-listed:
			if got == n {
				return
			}
		case <-time.After(eventTimeout):
			t.Fatal("the follower has not received all objects")
		}
	}
}

// TestFeedConsistency checks that a follower can compute the stored objects from its notifications, regardless of
// the revision at which it starts.
func TestFeedConsistency(t *testing.T) {
	f := newFixture(t)
	feed := f.feed()
	r := rand.New(rand.NewSource(1))
	type state = map[string]string
	results := make(chan state)
	follow := func() {
		now := state{}
		if _, ok := feed.Follow(configMapResource, func(objects []*metav1.PartialObjectMetadata, _ int64) {
			for _, m := range objects {
				now[m.Name] = m.ResourceVersion
			}
			if now["last"] != "" { // a late follower may get all objects in one list
				results <- now
			}
		}, func(m *metav1.PartialObjectMetadata, deleted bool) {
			if _, exists := now[m.Name]; deleted && !exists {
				t.Errorf("got a deletion of %s, which the follower does not have", m.Name)
			}
			if now[m.Name] = m.ResourceVersion; deleted {
				delete(now, m.Name)
			}
			if m.Name == "last" {
				results <- now
			}
		}); !ok {
			t.Error("Follow does not accept the kind")
		}
	}
	follow()
	for i := range 2000 {
		name := fmt.Sprint("m", r.Intn(20))
		switch r.Intn(3) {
		case 0:
			_, _ = f.create(f.configMap(""), fmt.Sprintf(`{"metadata":{"name":%q}}`, name)) // the object may exist
		case 1:
			// The object may not exist.
			_, _ = f.update(f.configMap(name), fmt.Sprintf(`{"metadata":{"name":%q},"data":{"i":"%d"}}`, name, i))
		default:
			_, _, _ = f.Delete(f.ctx, f.configMap(name), metav1.DeleteOptions{}, f.caller)
		}
		if i%100 == 50 {
			follow()
		}
	}
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"last"}}`)
	got, want := <-results, []string{}
	for rec := range f.Store.Head().Walk("/registry/configmaps/", "") {
		name := rec.Key[strings.LastIndexByte(rec.Key, '/')+1:]
		if want = append(want, name); got[name] != strconv.FormatInt(rec.Modified, 10) {
			t.Errorf("%s is at revision %d, the follower has %q", name, rec.Modified, got[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
