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

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// hostReader is a world with Hosts that are read at v1, in a bubble whose clock it goes by.
type hostReader struct {
	*fixture
	webhook *fakeWebhook
	v1      Target
}

func inBubble(t *testing.T, n int, run func(r hostReader)) {
	if strings.HasPrefix(os.Getenv(storagetest.Variable), "http") {
		t.Skip("a bubble has no network, and etcd is behind one")
	}
	synctest.Test(t, func(t *testing.T) {
		f, c, _, now := newHostsFixture(t, n)
		f.Engine.Now = time.Now
		run(hostReader{f, c, now})
	})
}

// convertedBy says which webhook has converted the first Host, as it is read now.
func (r hostReader) convertedBy() string {
	r.Helper()
	one := r.target("example.com", "v1", "hosts", "default")
	one.Name = "h0000"
	by, _ := valueAt(r.get(one), "metadata.labels.by").(string)
	return by
}

// calls returns how many calls there have been since the last time, with how many objects.
func (r hostReader) calls() [2]int64 {
	synctest.Wait()
	return [2]int64{r.webhook.calls.Swap(0), r.webhook.objects.Swap(0)}
}

// hostsWebhook is what hostsCRD has at spec.conversion.webhook.
const hostsWebhook = `{"clientConfig":{"url":"https://h/"},"conversionReviewVersions":["v1"]}`

// CNV-073: what a webhook has made ends with the conversion of the CRD, even where that comes back; not with another change.
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
				equal(t, "kept", r.convertedBy(), "")
				for _, crd := range c.crds {
					if crd == "" {
						r.deleteCRD("hosts.example.com")
						continue
					}
					r.writeCRD(crd)
				}
				equal(t, "after", r.convertedBy(), c.want)
				r.calls()
				r.list(r.v1, ListOptions{}) // a request that goes by the CRD as it was
				r.calls()
				r.convertedBy()
				equal(t, "calls", r.calls(), [2]int64{0, 0})
			})
		})
	}
}

// CNV-040: nor does it outlive those who stood behind the webhook's Service.
func TestServiceChangeInvalidatesConversions(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		var number atomic.Uint64
		r.Engine.Generation = func(webhook string) uint64 {
			equal(t, "webhook", webhook, hostsWebhook)
			return number.Load()
		}
		r.convertedBy()
		r.webhook.id.Store(1)
		equal(t, "kept", r.convertedBy(), "")
		number.Add(1)
		equal(t, "after", r.convertedBy(), "1")
		r.calls()
		equal(t, "kept", r.convertedBy(), "1")
		equal(t, "calls", r.calls(), [2]int64{0, 0})
	})
}

// CNV-006: while a kind is read its webhook is asked again each half minute, with a sample, and no reader waits for that.
// Who finds out still gets the old answer, who comes then gets the new one.
func TestPeriodicRevalidation(t *testing.T) {
	inBubble(t, 100, func(r hostReader) {
		r.list(r.v1, ListOptions{})
		r.convertedBy()
		r.calls()
		<-time.After(29 * time.Second)
		r.convertedBy()
		equal(t, "calls before its time", r.calls(), [2]int64{0, 0})
		<-time.After(time.Second)
		r.convertedBy()
		r.convertedBy()
		equal(t, "calls when it is time", r.calls(), [2]int64{1, sampleObjects})
		<-time.After(29 * time.Second)
		r.list(r.v1, ListOptions{})
		equal(t, "calls", r.calls(), [2]int64{0, 0})
		<-time.After(5 * time.Minute)
		equal(t, "calls while nobody reads", r.calls(), [2]int64{0, 0})

		r.webhook.id.Store(1)
		r.webhook.enter = make(chan struct{})
		equal(t, "the reader that finds out", r.convertedBy(), "")
		r.webhook.enter <- struct{}{}
		r.webhook.enter = nil
		equal(t, "objects of the sample", r.calls(), [2]int64{1, sampleObjects})
		equal(t, "the next reader", r.convertedBy(), "1")
		r.list(r.v1, ListOptions{})
		equal(t, "all are dropped", r.calls(), [2]int64{2, 100})
	})
}

// The sample is what was read last, so that who looks at one object hears of it.
func TestSampleIsMostRecentlyRead(t *testing.T) {
	inBubble(t, 100, func(r hostReader) {
		one := r.v1
		one.Name = "h0000"
		r.list(r.v1, ListOptions{})
		r.get(one)
		<-time.After(time.Minute)
		var asked []string
		convert := r.Webhook
		r.Webhook = func(ctx context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
			for _, o := range objects {
				asked = append(asked, object.Name(o))
			}
			return convert(ctx, to, objects)
		}
		r.get(one)
		r.calls()
		equal(t, "asked for", []any{len(asked), asked[0], asked[1]}, []any{sampleObjects, "h0000", "h0099"})
	})
}

// What is kept of the past is of no matter, nor is what no webhook has converted.
func TestSampleExcludesUnconverted(t *testing.T) {
	inBubble(t, 2, func(r hostReader) {
		old, one := r.target("example.com", "v1beta1", "hosts", "default"), r.v1
		old.Name, one.Name = "h0001", "h0001"
		r.list(r.v1, ListOptions{})
		r.mustPatch(old, mergePatch, `{"spec":{"hostPort":"changed:1"}}`)
		<-time.After(time.Minute)
		r.convertedBy()
		r.calls()
		r.convertedBy()
		equal(t, "calls for one that is kept", r.calls(), [2]int64{0, 0})

		crd := strings.NewReplacer(`"storage":true`, `"storage":false`, `"storage":false`, `"storage":true`).Replace(hostsCRD)
		r.writeCRD(crd)
		for i := range sampleObjects {
			r.mustCreate(r.target("example.com", "v1", "hosts", "default"), fmt.Sprintf(`{"metadata":{"name":"new%d"},"spec":{"host":"n","port":"1"}}`, i))
		}
		r.writeCRD(strings.Replace(crd, `"default":"tcp"`, `"default":"udp"`, 1))
		now := r.target("example.com", "v1", "hosts", "default")
		r.list(now, ListOptions{})
		r.calls()
		<-time.After(time.Minute)
		r.list(now, ListOptions{})
		equal(t, "calls for those stored at another version", r.calls(), [2]int64{1, 2})
	})
}

// A refusal is another answer; none at all is not, and what is kept is kept until there is one.
func TestUnreachableWebhook(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.convertedBy()
		r.calls()
		<-time.After(time.Minute)
		r.webhook.down.Store(true)
		for range 10 {
			equal(t, "kept", r.convertedBy(), "")
			<-time.After(time.Second)
		}
		if calls := r.calls()[0]; calls < 9 || calls > 11 {
			t.Errorf("%d calls in ten seconds", calls)
		}
		<-time.After(time.Minute)
		if calls := r.calls()[0]; calls > 31 {
			t.Errorf("%d calls after the last reader", calls)
		}
		<-time.After(time.Minute)
		equal(t, "calls while nobody reads", r.calls(), [2]int64{0, 0})
		r.webhook.down.Store(false)
		r.webhook.refuses.Store(true)
		equal(t, "the reader that finds out", r.convertedBy(), "")
		synctest.Wait()
		one := r.v1
		one.Name = "h0000"
		if _, err := r.Get(r.ctx, one, ""); err == nil || !strings.Contains(err.Error(), "it refuses") {
			t.Errorf("then: %v", err)
		}
	})
}

// CNV-073: a connection that breaks has the webhook asked at once, and again until somebody answers.
func TestRevalidationAfterDisconnect(t *testing.T) {
	inBubble(t, 3, func(r hostReader) {
		r.list(r.v1, ListOptions{})
		r.calls()
		<-time.After(10 * time.Second)
		r.WebhookDisconnected("another")
		equal(t, "calls where another one broke", r.calls(), [2]int64{0, 0})
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls", r.calls(), [2]int64{1, 3})
		<-time.After(5 * time.Second)
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls when another one breaks", r.calls(), [2]int64{1, 3})

		<-time.After(time.Minute)
		r.convertedBy()
		r.calls()
		<-time.After(time.Minute)
		r.webhook.id.Store(1)
		r.webhook.down.Store(true)
		r.WebhookDisconnected(hostsWebhook)
		<-time.After(5500 * time.Millisecond)
		equal(t, "calls while it starts", r.calls()[0], 6)
		r.webhook.down.Store(false)
		<-time.After(time.Second)
		equal(t, "calls when it has", r.calls(), [2]int64{1, 3})
		equal(t, "the next reader", r.convertedBy(), "1")
	})
}

// A webhook whose connections break all the time is not asked for what nobody reads, and not more than once a second.
func TestFrequentDisconnects(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.convertedBy()
		r.calls()
		for range 100 {
			r.WebhookDisconnected(hostsWebhook)
			<-time.After(100 * time.Millisecond)
		}
		if calls := r.calls()[0]; calls > 12 {
			t.Errorf("%d calls in ten seconds", calls)
		}
		<-time.After(2 * time.Minute)
		r.convertedBy()
		<-time.After(29 * time.Second)
		r.WebhookDisconnected(hostsWebhook)
		r.calls()
		<-time.After(10 * time.Second)
		r.webhook.id.Store(1)
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls when nobody has read since", r.calls(), [2]int64{0, 0})
		equal(t, "who reads next", r.convertedBy(), "")
		equal(t, "calls then", r.calls(), [2]int64{1, 1})
		equal(t, "who comes then", r.convertedBy(), "1")
	})
}

// However long a webhook is asked for, and whatever it says of the sample, no conversion is older than ten minutes.
func TestMaxConversionAge(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		r.RecheckEvery = time.Hour
		r.convertedBy()
		r.webhook.id.Store(1)
		<-time.After(maxConversionAge - time.Second)
		equal(t, "kept", r.convertedBy(), "")
		<-time.After(time.Second)
		equal(t, "too old", r.convertedBy(), "1")
	})
}

// What was under way when a webhook was found to be another one is for those who waited for it, and for nobody after them.
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
		equal(t, "calls under way", r.calls(), [2]int64{2, 2})
		r.webhook.enter <- struct{}{} // one of the two
		r.webhook.id.Store(1)
		r.webhook.enter <- struct{}{}
		<-before
		<-after
		r.webhook.enter = nil
		r.convertedBy()
		equal(t, "one is kept", r.calls(), [2]int64{0, 0})
		kept := r.conversions.order.Front().Value.(*cachedConversion)
		equal(t, "views", []int{len(r.conversions.byKey), r.conversions.order.Len(), r.conversions.bytes}, []int{1, 1, len(kept.record.Value)})
	})
}

// A write that is under way keeps to what it knows.
func TestWriteReusesItsConversions(t *testing.T) {
	inBubble(t, 1, func(r hostReader) {
		var number atomic.Uint64
		r.Engine.Generation = func(string) uint64 { return number.Add(1) } // another one for each reader
		one := r.v1
		one.Name = "h0000"
		r.calls()
		written := r.mustPatch(one, mergePatch, `{"spec":{"host":"m"}}`)
		equal(t, "written", valueAt(written, "spec.host"), "m")
		equal(t, "calls", r.calls()[0], 3)
	})
}

// One call at a time, and none after Close, which ends the one under way.
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
		equal(t, "calls after the end", r.calls(), [2]int64{0, 0})
	})
}
