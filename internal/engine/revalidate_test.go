package engine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// hostReader reads Hosts at v1. It is a fixture in a synctest bubble, which has a fake clock.
type hostReader struct {
	*fixture
	webhook *fakeWebhook
	v1      verb.Target
}

// inBubble runs a test with n Hosts in a synctest bubble.
func inBubble(t *testing.T, n int, run func(r hostReader)) {
	if strings.HasPrefix(os.Getenv(storagetest.EnvVar), "http") {
		t.Skip("a synctest bubble has no network, which etcd needs")
	}
	synctest.Test(t, func(t *testing.T) {
		f, c, _, now := newHostsFixture(t, n)
		f.Engine.Now = time.Now
		run(hostReader{f, c, now})
	})
}

// convertedBy reads the first Host and returns the ID of the webhook that has converted it.
func (r hostReader) convertedBy() string {
	r.Helper()
	one := r.target("example.com", "v1", "hosts", "default")
	one.Name = "h0000"
	by, _ := valueAt(r.get(one), "metadata.labels.by").(string)
	return by
}

// calls returns the number of webhook calls and the number of their objects, both since the last use of this
// function.
func (r hostReader) calls() [2]int64 {
	synctest.Wait()
	return [2]int64{r.webhook.calls.Swap(0), r.webhook.objects.Swap(0)}
}

// hostsWebhook is the JSON at spec.conversion.webhook in hostsCRD.
const hostsWebhook = `{"clientConfig":{"url":"https://h/"},"conversionReviewVersions":["v1"]}`

// TestCRDChangeInvalidatesConversions checks that a change of spec.conversion in a CRD drops the cached
// conversions, even if a later change undoes it. Other changes of the CRD do not drop them (CNV-073).
func TestCRDChangeInvalidatesConversions(t *testing.T) {
	none := strings.Replace(hostsCRD, `"strategy":"Webhook"`, `"strategy":"None"`, 1)
	for name, c := range map[string]struct {
		crds []string
		want string
	}{
		"another URL":       {[]string{strings.Replace(hostsCRD, "https://h/", "https://other/", 1)}, "1"},
		"none and back":     {[]string{none, hostsCRD}, "1"},
		"deleted and back":  {[]string{"", hostsCRD}, "1"},
		"labels of the CRD": {[]string{strings.Replace(hostsCRD, `"uid":`, `"labels":{"a":"b"},"uid":`, 1)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r hostReader) {
				r.Engine.Generation = func(webhook string) uint64 { return uint64(len(webhook)) }
				equal(t, "before", r.convertedBy(), "")
				r.webhook.id.Store(1)
				equal(t, "cached", r.convertedBy(), "")
				for _, crd := range c.crds {
					if crd == "" {
						r.deleteCRD("hosts.example.com")
						continue
					}
					r.writeCRD(crd)
				}
				equal(t, "after", r.convertedBy(), c.want)
				r.calls()
				r.list(r.v1, read.ListOptions{}) // a request that uses the earlier CRD
				r.calls()
				r.convertedBy()
				equal(t, "calls", r.calls(), [2]int64{0, 0})
			})
		})
	}
}

// TestServiceChangeInvalidatesConversions checks that cached conversions are dropped when the backends of the
// webhook's Service change (CNV-040).
func TestServiceChangeInvalidatesConversions(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		var number atomic.Uint64
		r.Engine.Generation = func(webhook string) uint64 {
			equal(t, "webhook", webhook, hostsWebhook)
			return number.Load()
		}
		r.convertedBy()
		r.webhook.id.Store(1)
		equal(t, "cached", r.convertedBy(), "")
		number.Add(1)
		equal(t, "after", r.convertedBy(), "1")
		r.calls()
		equal(t, "cached", r.convertedBy(), "1")
		equal(t, "calls", r.calls(), [2]int64{0, 0})
	})
}

// TestPeriodicRevalidation checks that a sample of the cached conversions is converted again every 30 seconds while
// the kind is read. No reader waits for it. The reader that starts a check gets the cached conversion, and the next
// reader gets the new conversion (CNV-006).
func TestPeriodicRevalidation(t *testing.T) {
	inBubble(t, 100, func(r hostReader) {
		r.list(r.v1, read.ListOptions{})
		r.convertedBy()
		r.calls()
		<-time.After(29 * time.Second)
		r.convertedBy()
		equal(t, "calls before 30 seconds", r.calls(), [2]int64{0, 0})
		<-time.After(time.Second)
		r.convertedBy()
		r.convertedBy()
		equal(t, "calls after 30 seconds", r.calls(), [2]int64{1, 20})
		<-time.After(29 * time.Second)
		r.list(r.v1, read.ListOptions{})
		equal(t, "calls", r.calls(), [2]int64{0, 0})
		<-time.After(5 * time.Minute)
		equal(t, "calls without reads", r.calls(), [2]int64{0, 0})

		r.webhook.id.Store(1)
		r.webhook.enter = make(chan struct{})
		equal(t, "reader that triggers the revalidation", r.convertedBy(), "")
		r.webhook.enter <- struct{}{}
		r.webhook.enter = nil
		equal(t, "objects of the sample", r.calls(), [2]int64{1, 20})
		equal(t, "next reader", r.convertedBy(), "1")
		r.list(r.v1, read.ListOptions{})
		equal(t, "calls after the cache has been dropped", r.calls(), [2]int64{2, 100})
	})
}

// TestSampleIsMostRecentlyRead checks that the sample consists of the most recently read objects. So the server
// detects a change for an object that is read repeatedly.
func TestSampleIsMostRecentlyRead(t *testing.T) {
	inBubble(t, 100, func(r hostReader) {
		one := r.v1
		one.Name = "h0000"
		r.list(r.v1, read.ListOptions{})
		r.get(one)
		<-time.After(time.Minute)
		var sample []string
		convert := r.Webhook
		r.Webhook = func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
			for _, o := range objects {
				sample = append(sample, object.Name(o))
			}
			return convert(ctx, to, objects)
		}
		r.get(one)
		r.calls()
		equal(t, "sample", []any{len(sample), sample[0], sample[1]}, []any{20, "h0000", "h0099"})
	})
}

// TestSampleExcludesUnconverted checks that the sample excludes conversions of old revisions and objects that no
// webhook has converted.
func TestSampleExcludesUnconverted(t *testing.T) {
	inBubble(t, 2, func(r hostReader) {
		old, one := r.target("example.com", "v1beta1", "hosts", "default"), r.v1
		old.Name, one.Name = "h0001", "h0001"
		r.list(r.v1, read.ListOptions{})
		r.mustPatch(old, mergePatch, `{"spec":{"hostPort":"changed:1"}}`)
		<-time.After(time.Minute)
		r.convertedBy()
		r.calls()
		r.convertedBy()
		equal(t, "calls for a cached conversion", r.calls(), [2]int64{0, 0})

		crd := strings.NewReplacer(`"storage":true`, `"storage":false`, `"storage":false`,
			`"storage":true`).Replace(hostsCRD)
		r.writeCRD(crd)
		for i := range 20 {
			r.mustCreate(r.target("example.com", "v1", "hosts", "default"),
				fmt.Sprintf(`{"metadata":{"name":"new%d"},"spec":{"host":"n","port":"1"}}`, i))
		}
		r.writeCRD(strings.Replace(crd, `"default":"tcp"`, `"default":"udp"`, 1))
		now := r.target("example.com", "v1", "hosts", "default")
		r.list(now, read.ListOptions{})
		r.calls()
		<-time.After(time.Minute)
		r.list(now, read.ListOptions{})
		equal(t, "calls for objects stored at another version", r.calls(), [2]int64{1, 2})
	})
}

// TestUnreachableWebhook checks that the server retries a check if the webhook is unreachable, and serves cached
// conversions until the webhook responds. An error in the response is treated as a changed conversion.
func TestUnreachableWebhook(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.convertedBy()
		r.calls()
		<-time.After(time.Minute)
		r.webhook.down.Store(true)
		for range 10 {
			equal(t, "cached", r.convertedBy(), "")
			<-time.After(time.Second)
		}
		if calls := r.calls()[0]; calls < 9 || calls > 11 {
			t.Errorf("got %d calls in ten seconds", calls)
		}
		<-time.After(time.Minute)
		if calls := r.calls()[0]; calls > 31 {
			t.Errorf("got %d calls after the last read, want at most 31", calls)
		}
		<-time.After(time.Minute)
		equal(t, "calls without reads", r.calls(), [2]int64{0, 0})
		r.webhook.down.Store(false)
		r.webhook.refuses.Store(true)
		equal(t, "reader that triggers the revalidation", r.convertedBy(), "")
		synctest.Wait()
		one := r.v1
		one.Name = "h0000"
		if _, err := r.Get(r.ctx, one, ""); err == nil || !strings.Contains(err.Error(), "conversion rejected") {
			t.Errorf("next reader: got %v, want the webhook's error", err)
		}
	})
}

// TestRevalidationAfterDisconnect checks that a broken connection to the webhook immediately starts a check of the
// cached conversions. The check is retried until the webhook responds (CNV-073).
func TestRevalidationAfterDisconnect(t *testing.T) {
	inBubble(t, 3, func(r hostReader) {
		r.list(r.v1, read.ListOptions{})
		r.calls()
		<-time.After(10 * time.Second)
		r.WebhookDisconnected("another")
		equal(t, "calls after a disconnect of another webhook", r.calls(), [2]int64{0, 0})
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls", r.calls(), [2]int64{1, 3})
		<-time.After(5 * time.Second)
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls after a second disconnect", r.calls(), [2]int64{1, 3})

		<-time.After(time.Minute)
		r.convertedBy()
		r.calls()
		<-time.After(time.Minute)
		r.webhook.id.Store(1)
		r.webhook.down.Store(true)
		r.WebhookDisconnected(hostsWebhook)
		<-time.After(5500 * time.Millisecond)
		equal(t, "calls while the webhook is down", r.calls()[0], 6)
		r.webhook.down.Store(false)
		<-time.After(time.Second)
		equal(t, "calls after the webhook is up", r.calls(), [2]int64{1, 3})
		equal(t, "next reader", r.convertedBy(), "1")
	})
}

// TestFrequentDisconnects checks that frequent disconnects start at most one check per second for a kind that is
// being read, and none for other kinds.
func TestFrequentDisconnects(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.convertedBy()
		r.calls()
		for range 100 {
			r.WebhookDisconnected(hostsWebhook)
			<-time.After(100 * time.Millisecond)
		}
		if calls := r.calls()[0]; calls > 12 {
			t.Errorf("got %d calls in ten seconds", calls)
		}
		<-time.After(2 * time.Minute)
		r.convertedBy()
		<-time.After(29 * time.Second)
		r.WebhookDisconnected(hostsWebhook)
		r.calls()
		<-time.After(10 * time.Second)
		r.webhook.id.Store(1)
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls without a read since the last revalidation", r.calls(), [2]int64{0, 0})
		equal(t, "reader that triggers a revalidation", r.convertedBy(), "")
		equal(t, "calls of that revalidation", r.calls(), [2]int64{1, 1})
		equal(t, "next reader", r.convertedBy(), "1")
	})
}

// TestMaxConversionAge checks that no cached conversion is served for longer than ten minutes, regardless of
// the interval and the results of the checks.
func TestMaxConversionAge(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.RevalidateInterval = time.Hour
		r.convertedBy()
		r.webhook.id.Store(1)
		<-time.After(10*time.Minute - time.Second)
		equal(t, "cached", r.convertedBy(), "")
		<-time.After(time.Second)
		equal(t, "after the maximum age", r.convertedBy(), "1")
	})
}

// TestConversionInProgress checks a conversion that is in progress when the epoch changes. The waiting requests use
// its result, but the result is not cached.
func TestConversionInProgress(t *testing.T) {
	inBubble(t, 2, func(r hostReader) {
		var number atomic.Uint64
		r.Engine.Generation = func(string) uint64 { return number.Load() }
		r.webhook.enter = make(chan struct{})
		before, after := make(chan string), make(chan string)
		go func() { before <- r.convertedBy() }()
		synctest.Wait()
		number.Add(1)
		go func() { after <- r.convertedBy() }()
		synctest.Wait()
		equal(t, "calls in progress", r.calls(), [2]int64{2, 2})
		r.webhook.enter <- struct{}{} // lets one of the two calls continue
		r.webhook.id.Store(1)
		r.webhook.enter <- struct{}{}
		<-before
		<-after
		r.webhook.enter = nil
		r.convertedBy()
		equal(t, "calls for a cached conversion", r.calls(), [2]int64{0, 0})
	})
}

// TestWriteReusesItsConversions checks that a write makes each conversion only once, even if the conversion epoch
// changes during the write.
func TestWriteReusesItsConversions(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		var number atomic.Uint64
		r.Engine.Generation = func(string) uint64 { return number.Add(1) } // a new generation for each reader
		one := r.v1
		one.Name = "h0000"
		r.calls()
		written := r.mustPatch(one, mergePatch, `{"spec":{"host":"m"}}`)
		equal(t, "written", valueAt(written, "spec.host"), "m")
		equal(t, "calls", r.calls()[0], 3)
	})
}

// TestCloseStopsRevalidation checks that at most one check calls the webhook at a time. Close cancels this call,
// and no other call follows.
func TestCloseStopsRevalidation(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.convertedBy()
		<-time.After(time.Minute)
		r.calls()
		r.webhook.enter = make(chan struct{})
		for range 10 {
			r.convertedBy()
			r.WebhookDisconnected(hostsWebhook)
		}
		equal(t, "calls", r.calls(), [2]int64{1, 1})
		r.Close()
		<-time.After(time.Minute)
		r.convertedBy()
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls after Close", r.calls(), [2]int64{0, 0})
	})
}
