package api

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A large body waits for room, a small one does not; room that was taken is given back whatever comes of the request.
func TestLargeBodiesWaitForRoom(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.RequestTimeout = 100 * time.Millisecond })
	long := strings.Repeat("x", lightBody)
	tab := func(name string) string {
		return `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"` + name + `"},"spec":{"image":"` + long + `"}}`
	}
	whole := func(after string) {
		t.Helper()
		if !h.server.bodyRoom.TryAcquire(maxHeavy) {
			t.Fatalf("after %s, something is still held", after)
		}
		h.server.bodyRoom.Release(maxHeavy)
	}
	const asYAML, asApply, asMerge = "Content-Type: application/yaml", "Content-Type: application/apply-patch+yaml", "Content-Type: application/merge-patch+json"
	large := []struct {
		code                   int
		method, path, body, as string
	}{
		{201, "POST", crontabs, tab("b"), "Content-Type: application/json"},
		{201, "POST", crontabs, "\n# " + long + "\n" + tab("c"), asYAML},
		{200, "PATCH", crontabs + "/b?fieldManager=m&force=true", tab("b"), asApply},
		{200, "PATCH", crontabs + "/b?fieldManager=m&force=true", "# " + long + "\n" + tab("b"), asApply},
		{200, "PATCH", crontabs + "/b", `{"spec":{"image":"y` + long + `"}}`, asMerge},
		{422, "PATCH", crontabs + "/b", `{"spec":{"image":["` + long + `"]}}`, asMerge},
		{400, "POST", crontabs, `{"` + long, "Content-Type: application/json"},
		{400, "DELETE", crontabs + "/b", `{"` + long, "Content-Type: application/json"},
		{200, "DELETE", crontabs + "/c", `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"],"x":"` + long + `"}`, "Content-Type: application/json"},
	}
	h.server.bodyRoom.TryAcquire(maxHeavy)
	for _, c := range large {
		h.want(http.StatusGatewayTimeout, c.method, c.path, c.body, c.as)
	}
	h.want(http.StatusOK, "PATCH", crontabs+"/a", `{"spec":{"image":"z"}}`, asMerge)
	h.want(http.StatusOK, "GET", crontabs+"/a", "")
	h.server.bodyRoom.Release(maxHeavy)
	h.server.config.RequestTimeout = time.Minute
	for _, c := range large {
		h.want(c.code, c.method, c.path, c.body, c.as)
		whole(c.method + " " + c.as)
	}
}

// Large bodies that wait for a webhook hold up none of other kinds.
func TestLargeBodiesOfWebhooks(t *testing.T) {
	h := newHarness(t)
	of := func(c *resource.Custom) *request {
		return &request{server: h.server, r: newRequest("POST", crontabs, ""), v: &resource.Version{Definition: &resource.Definition{Custom: c}}}
	}
	hooked, body := of(&resource.Custom{Conversion: resource.Conversion{Webhook: "{}"}}), bytes.Repeat([]byte("{"), maxBody)
	for _, q := range []*request{hooked, of(&resource.Custom{}), of(nil)} {
		if err := q.acquireBody(body); err != nil {
			t.Fatal(err)
		}
		if q != hooked {
			q.releaseBody()
		}
	}
	hooked.releaseBody()
	if !h.server.webhookRoom.TryAcquire(maxHeavy) || !h.server.bodyRoom.TryAcquire(maxHeavy) {
		t.Error("something is still held")
	}
}

// What the YAML parser will read weighs more.
func TestWeightOfYAML(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		as, body string
		weight   int64
	}{
		{"application/json", "{", 1<<20 + mapWeight}, {"application/yaml", "{", 1 << 20 * yamlWeight}, {"application/yaml; charset=utf-8", "", 1 << 20 * yamlWeight},
		{"application/apply-patch+yaml", " {", 1<<20 + mapWeight}, {"application/apply-patch+yaml", "a:", 1 << 20 * yamlWeight}, {"", "a:", 1 << 20 * blindWeight},
	} {
		q := &request{server: h.server, r: newRequest("POST", crontabs, "", "Content-Type: "+c.as)}
		if err := q.acquireBody([]byte(c.body + strings.Repeat(" ", 1<<20-len(c.body)))); err != nil || q.weight != c.weight {
			t.Errorf("%q: %d, want %d: %v", c.as, q.weight, c.weight, err)
		}
		q.releaseBody()
	}
}

// A body is counted by what it grows to, whatever it is made of: one long text by its length, many small things by what a tree has of them. One
// that is short is not even looked at.
func TestWeightIsWhatBodiesGrowTo(t *testing.T) {
	h := newHarness(t)
	q := &request{server: h.server, r: newRequest("POST", crontabs, "", "Content-Type: application/json")}
	const size = 1 << 20
	for _, piece := range []string{`{},`, `[],`, `1,`, `"",`, `{"a":1},`, `{"a":{}},`, `[[]],`, `{"abcdefgh":"x","b":null},`, `"` + strings.Repeat("x", 1000) + `",`} {
		body := []byte(`{"a":[` + strings.TrimSuffix(strings.Repeat(piece, size/len(piece)), ",") + `]}`)
		before := heap()
		tree, _, err := object.DecodeJSON(body)
		if err != nil {
			t.Fatal(err)
		}
		took, weight := heap()-before, q.grown(body)
		if runtime.KeepAlive(tree); took > weight+64<<10 || weight > 12*took { // there may be a little garbage of others
			t.Errorf("%.20s: %d bytes took %d, and weigh %d", piece, len(body), took, weight)
		}
		if len(piece) > 1000 && weight > 2*size {
			t.Errorf("text of %d bytes weighs %d", len(body), weight)
		}
	}
	if n := q.grown(make([]byte, 10)); n != 10*blindWeight {
		t.Errorf("what cannot be read weighs %d", n)
	}
	if n := q.grown([]byte("  ")); n != 2*blindWeight {
		t.Errorf("nothing weighs %d", n)
	}
	q.r.Header.Set("Content-Type", mediaYAML)
	if n := q.grown(make([]byte, tinyBody)); n > lightBody {
		t.Errorf("a tiny body weighs %d", n)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
