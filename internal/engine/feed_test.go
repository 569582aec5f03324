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

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

var (
	cronTabResource   = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
	configMapResource = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// notifications is what a follower was told, a line each.
type notifications struct {
	testing.TB
	lines chan string
}

func (f *fixture) feed() *Feed {
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

// follow follows a kind. Revisions are told as how many changes they are after the store's of now.
func (feed *Feed) follow(f *fixture, r schema.GroupVersionResource) (*notifications, func()) {
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
		text := map[bool]string{false: "is ", true: "went "}[deleted] + line(m)
		if m.DeletionTimestamp != nil {
			text += " ends"
		}
		for _, o := range m.OwnerReferences {
			text += fmt.Sprintf(" of %s/%s %s %s %t", o.APIVersion, o.Kind, o.Name, o.UID, *o.BlockOwnerDeletion)
		}
		if len(m.Finalizers) > 0 {
			text += fmt.Sprint(" ", m.Finalizers)
		}
		if m.UID == "" || m.Labels != nil || m.ManagedFields != nil {
			f.Errorf("told of %+v", m)
		}
		t.lines <- text
	})
	if !ok {
		f.Fatalf("%v cannot be followed", r)
	}
	return t, stop
}

func (t *notifications) next() string {
	t.Helper()
	select {
	case line := <-t.lines:
		return line
	case <-time.After(eventTimeout):
		t.Fatal("nothing was told")
		return ""
	}
}

func (t *notifications) expect(lines ...string) {
	t.Helper()
	for _, want := range lines {
		if got := t.next(); got != want {
			t.Fatalf("told %q, want %q", got, want)
		}
	}
}

func TestFeed(t *testing.T) {
	f := newFixture(t)
	feed := f.feed()
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"other"}}`)
	crons, stop := feed.follow(f, cronTabResource)
	crons.expect("all [default/a@-1]@+0")

	const owner = `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"other","uid":"u","blockOwnerDeletion":true}]`
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b","labels":{"x":"y"},"finalizers":["example.com/x"],`+owner+`}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"unseen"}}`)
	f.delete(f.cron("b"), metav1.DeleteOptions{})
	f.mustEdit(f.cron("b"), func(o object.Tree) { object.SetFinalizers(o, nil) })
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	const of = " of v1/ConfigMap other u true"
	crons.expect("is default/b@+1"+of+" [example.com/x]", "is default/b@+3 ends"+of+" [example.com/x]")
	if line := crons.next(); !strings.HasPrefix(line, "went default/b@+4 ends"+of) {
		t.Errorf("told %q", line)
	}
	crons.expect("went default/a@+5")

	maps, _ := feed.follow(f, configMapResource)
	maps.expect("all [default/other@-5 default/unseen@-3]@+0")
	again, _ := feed.follow(f, cronTabResource)
	again.expect("all []@+0")
	stop() // of the one before: it changes nothing for the next
	f.mustCreate(f.cron(""), `{"metadata":{"name":"c"}}`)
	again.expect("is default/c@+1")
	if len(crons.lines) > 0 {
		t.Errorf("one that is followed no longer was told %q", crons.next())
	}
	for _, r := range []schema.GroupVersionResource{
		{Group: "stable.example.com", Version: "v9", Resource: "crontabs"},
		{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"},
	} {
		if _, ok := feed.Follow(r, nil, nil); ok {
			t.Errorf("%v can be followed", r)
		}
	}
}

// Who misses changes is told everything anew.
func TestSlowFollower(t *testing.T) {
	f := newFixture(t)
	feed := f.feed()
	held, release := make(chan struct{}, 1), make(chan struct{})
	if _, ok := feed.Follow(cronTabResource, func([]*metav1.PartialObjectMetadata, int64) {
		held <- struct{}{}
		<-release
	}, func(*metav1.PartialObjectMetadata, bool) {}); !ok {
		t.Fatal("not followed")
	}
	<-held
	listed := make(chan int, 10)
	if _, ok := feed.Follow(configMapResource, func(objects []*metav1.PartialObjectMetadata, _ int64) { listed <- len(objects) },
		func(*metav1.PartialObjectMetadata, bool) {}); !ok {
		t.Fatal("not followed")
	}
	const n = 17000
	for i := 0; i < n; i += 100 {
		var writes []storage.Write
		for j := range 100 {
			name := fmt.Sprintf("m%d", i+j)
			tree := object.Tree{"metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
			writes = append(writes, storage.Write{Key: "/registry/configmaps/default/" + name, Value: object.Pack(tree, 0).JSON()})
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
			t.Fatal("not all was told anew")
		}
	}
}

// Whenever somebody joins, what he is told adds up to what there is.
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
			if now["last"] != "" { // who is told late is told of all at once
				results <- now
			}
		}, func(m *metav1.PartialObjectMetadata, deleted bool) {
			if _, known := now[m.Name]; deleted && !known {
				t.Errorf("%s went and was not there", m.Name)
			}
			if now[m.Name] = m.ResourceVersion; deleted {
				delete(now, m.Name)
			}
			if m.Name == "last" {
				results <- now
			}
		}); !ok {
			t.Error("not followed")
		}
	}
	follow()
	for i := range 2000 {
		name := fmt.Sprint("m", r.Intn(20))
		switch r.Intn(3) {
		case 0:
			_, _ = f.create(f.configMap(""), fmt.Sprintf(`{"metadata":{"name":%q}}`, name)) // or it is there
		case 1:
			_, _ = f.update(f.configMap(name), fmt.Sprintf(`{"metadata":{"name":%q},"data":{"i":"%d"}}`, name, i)) // or it is not
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
			t.Errorf("%s is at %d, and was told of at %q", name, rec.Modified, got[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("told of %v, there are %v", got, want)
	}
}
