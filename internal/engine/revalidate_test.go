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

// readers is a world with Hosts that are read at v1, in a bubble whose clock it goes by.
type readers struct {
	*world
	c   *converter
	now Target
}

func inBubble(t *testing.T, n int, f func(r readers)) {
	if strings.HasPrefix(os.Getenv(storagetest.Variable), "http") {
		t.Skip("a bubble has no network, and etcd is behind one")
	}
	synctest.Test(t, func(t *testing.T) {
		w, c, _, now := hosts(t, n)
		w.Engine.Now = time.Now
		f(readers{w, c, now})
	})
}

// by says which webhook has converted the first Host, as it is read now.
func (r readers) by() string {
	r.Helper()
	one := r.at("example.com", "v1", "hosts", "default")
	one.Name = "h0000"
	by, _ := valueAt(r.get(one), "metadata.labels.by").(string)
	return by
}

// calls returns how many calls there have been since the last time, with how many objects.
func (r readers) calls() [2]int64 {
	synctest.Wait()
	return [2]int64{r.c.calls.Swap(0), r.c.objects.Swap(0)}
}

// hostsWebhook is what hostsCRD has at spec.conversion.webhook.
const hostsWebhook = `{"clientConfig":{"url":"https://h/"},"conversionReviewVersions":["v1"]}`

// CNV-073: what a webhook has made ends with the conversion of the CRD, even where that comes back; not with another change.
func TestConversionsEndWithTheCRDs(t *testing.T) {
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
			inBubble(t, 1, func(r readers) {
				r.Engine.Generation = func(webhook string) uint64 { return uint64(len(webhook)) }
				equal(t, "before", r.by(), "")
				r.c.by.Store(1)
				equal(t, "kept", r.by(), "")
				for _, crd := range c.crds {
					if crd == "" {
						r.deleteCRD("hosts.example.com")
						continue
					}
					r.writeCRD(crd)
				}
				equal(t, "after", r.by(), c.want)
				r.calls()
				r.list(r.now, ListOptions{}) // a request that goes by the CRD as it was
				r.calls()
				r.by()
				equal(t, "calls", r.calls(), [2]int64{0, 0})
			})
		})
	}
}

// CNV-040: nor does it outlive those who stood behind the webhook's Service.
func TestConversionsEndWithTheService(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		var number atomic.Uint64
		r.Engine.Generation = func(webhook string) uint64 {
			equal(t, "webhook", webhook, hostsWebhook)
			return number.Load()
		}
		r.by()
		r.c.by.Store(1)
		equal(t, "kept", r.by(), "")
		number.Add(1)
		equal(t, "after", r.by(), "1")
		r.calls()
		equal(t, "kept", r.by(), "1")
		equal(t, "calls", r.calls(), [2]int64{0, 0})
	})
}

// CNV-006: while a kind is read its webhook is asked again each half minute, with a sample, and no reader waits for that.
// Who finds out still gets the old answer, who comes then gets the new one.
func TestWebhookIsAskedAgain(t *testing.T) {
	inBubble(t, 100, func(r readers) {
		r.list(r.now, ListOptions{})
		r.by()
		r.calls()
		<-time.After(29 * time.Second)
		r.by()
		equal(t, "calls before its time", r.calls(), [2]int64{0, 0})
		<-time.After(time.Second)
		r.by()
		r.by()
		equal(t, "calls when it is time", r.calls(), [2]int64{1, sampleObjects})
		<-time.After(29 * time.Second)
		r.list(r.now, ListOptions{})
		equal(t, "calls", r.calls(), [2]int64{0, 0})
		<-time.After(5 * time.Minute)
		equal(t, "calls while nobody reads", r.calls(), [2]int64{0, 0})

		r.c.by.Store(1)
		r.c.enter = make(chan struct{})
		equal(t, "the reader that finds out", r.by(), "")
		r.c.enter <- struct{}{}
		r.c.enter = nil
		equal(t, "objects of the sample", r.calls(), [2]int64{1, sampleObjects})
		equal(t, "the next reader", r.by(), "1")
		r.list(r.now, ListOptions{})
		equal(t, "all are dropped", r.calls(), [2]int64{2, 100})
	})
}

// The sample is what was read last, so that who looks at one object hears of it.
func TestSampleIsWhatIsRead(t *testing.T) {
	inBubble(t, 100, func(r readers) {
		one := r.now
		one.Name = "h0000"
		r.list(r.now, ListOptions{})
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
func TestSampleIsOfTheWebhook(t *testing.T) {
	inBubble(t, 2, func(r readers) {
		old, one := r.at("example.com", "v1beta1", "hosts", "default"), r.now
		old.Name, one.Name = "h0001", "h0001"
		r.list(r.now, ListOptions{})
		r.mustPatch(old, merging, `{"spec":{"hostPort":"changed:1"}}`)
		<-time.After(time.Minute)
		r.by()
		r.calls()
		r.by()
		equal(t, "calls for one that is kept", r.calls(), [2]int64{0, 0})

		crd := strings.NewReplacer(`"storage":true`, `"storage":false`, `"storage":false`, `"storage":true`).Replace(hostsCRD)
		r.writeCRD(crd)
		for i := range sampleObjects {
			r.mustCreate(r.at("example.com", "v1", "hosts", "default"), fmt.Sprintf(`{"metadata":{"name":"new%d"},"spec":{"host":"n","port":"1"}}`, i))
		}
		r.writeCRD(strings.Replace(crd, `"default":"tcp"`, `"default":"udp"`, 1))
		now := r.at("example.com", "v1", "hosts", "default")
		r.list(now, ListOptions{})
		r.calls()
		<-time.After(time.Minute)
		r.list(now, ListOptions{})
		equal(t, "calls for those stored at another version", r.calls(), [2]int64{1, 2})
	})
}

// A refusal is another answer; none at all is not, and what is kept is kept until there is one.
func TestWebhookThatDoesNotAnswer(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		r.by()
		r.calls()
		<-time.After(time.Minute)
		r.c.down.Store(true)
		for range 10 {
			equal(t, "kept", r.by(), "")
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
		r.c.down.Store(false)
		r.c.refuses.Store(true)
		equal(t, "the reader that finds out", r.by(), "")
		synctest.Wait()
		one := r.now
		one.Name = "h0000"
		if _, err := r.Get(r.ctx, one, ""); err == nil || !strings.Contains(err.Error(), "it refuses") {
			t.Errorf("then: %v", err)
		}
	})
}

// CNV-073: a connection that breaks has the webhook asked at once, and again until somebody answers.
func TestConnectionBreaks(t *testing.T) {
	inBubble(t, 3, func(r readers) {
		r.list(r.now, ListOptions{})
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
		r.by()
		r.calls()
		<-time.After(time.Minute)
		r.c.by.Store(1)
		r.c.down.Store(true)
		r.WebhookDisconnected(hostsWebhook)
		<-time.After(5500 * time.Millisecond)
		equal(t, "calls while it starts", r.calls()[0], 6)
		r.c.down.Store(false)
		<-time.After(time.Second)
		equal(t, "calls when it has", r.calls(), [2]int64{1, 3})
		equal(t, "the next reader", r.by(), "1")
	})
}

// A webhook whose connections break all the time is not asked for what nobody reads, and not more than once a second.
func TestConnectionsThatBreakAllTheTime(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		r.by()
		r.calls()
		for range 100 {
			r.WebhookDisconnected(hostsWebhook)
			<-time.After(100 * time.Millisecond)
		}
		if calls := r.calls()[0]; calls > 12 {
			t.Errorf("%d calls in ten seconds", calls)
		}
		<-time.After(2 * time.Minute)
		r.by()
		<-time.After(29 * time.Second)
		r.WebhookDisconnected(hostsWebhook)
		r.calls()
		<-time.After(10 * time.Second)
		r.c.by.Store(1)
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls when nobody has read since", r.calls(), [2]int64{0, 0})
		equal(t, "who reads next", r.by(), "")
		equal(t, "calls then", r.calls(), [2]int64{1, 1})
		equal(t, "who comes then", r.by(), "1")
	})
}

// However long a webhook is asked for, and whatever it says of the sample, no conversion is older than ten minutes.
func TestNoConversionIsOld(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		r.RecheckEvery = time.Hour
		r.by()
		r.c.by.Store(1)
		<-time.After(maxConversionAge - time.Second)
		equal(t, "kept", r.by(), "")
		<-time.After(time.Second)
		equal(t, "too old", r.by(), "1")
	})
}

// What was under way when a webhook was found to be another one is for those who waited for it, and for nobody after them.
func TestConversionUnderWay(t *testing.T) {
	inBubble(t, 2, func(r readers) {
		var number atomic.Uint64
		r.Engine.Generation = func(string) uint64 { return number.Load() }
		r.c.enter = make(chan struct{})
		before, after := make(chan string), make(chan string)
		go func() { before <- r.by() }()
		synctest.Wait()
		number.Add(1)
		go func() { after <- r.by() }()
		synctest.Wait()
		equal(t, "calls under way", r.calls(), [2]int64{2, 2})
		r.c.enter <- struct{}{} // one of the two
		r.c.by.Store(1)
		r.c.enter <- struct{}{}
		<-before
		<-after
		r.c.enter = nil
		r.by()
		equal(t, "one is kept", r.calls(), [2]int64{0, 0})
		kept := r.conversions.order.Front().Value.(*cachedConversion)
		equal(t, "views", []int{len(r.conversions.byKey), r.conversions.order.Len(), r.conversions.bytes}, []int{1, 1, len(kept.record.Value)})
	})
}

// A write that is under way keeps to what it knows.
func TestWritesKeepToWhatTheyKnow(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		var number atomic.Uint64
		r.Engine.Generation = func(string) uint64 { return number.Add(1) } // another one for each reader
		one := r.now
		one.Name = "h0000"
		r.calls()
		written := r.mustPatch(one, merging, `{"spec":{"host":"m"}}`)
		equal(t, "written", valueAt(written, "spec.host"), "m")
		equal(t, "calls", r.calls()[0], 3)
	})
}

// One call at a time, and none after Close, which ends the one under way.
func TestCloseEndsTheAsking(t *testing.T) {
	inBubble(t, 1, func(r readers) {
		r.by()
		<-time.After(time.Minute)
		r.calls()
		r.c.enter = make(chan struct{})
		for range 10 {
			r.by()
			r.WebhookDisconnected(hostsWebhook)
		}
		equal(t, "calls", r.calls(), [2]int64{1, 1})
		r.Close()
		<-time.After(time.Minute)
		r.by()
		r.WebhookDisconnected(hostsWebhook)
		equal(t, "calls after the end", r.calls(), [2]int64{0, 0})
	})
}
