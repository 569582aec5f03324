package robustness_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// series joins texts of consecutive numbers.
func series(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// CVE-2019-1002100: no patch of the four kinds, in JSON or YAML, keeps the server busy. Its cost is estimated, and what takes
// upstream's libraries more than a second is refused before they start. They cannot be interrupted.
func TestPatchesThatCompute(t *testing.T) {
	w := newWorld(t)
	const (
		most    = "Request entity too large: The allowed maximum of "
		inserts = most + "insertions of list items and map keys is 1000000000, got …"
		lists   = most + "comparisons of list items in a strategic merge patch is 56000000, got …"
	)
	metadata := `"metadata":{"name":"victim"}`
	entries := `{"metadata":{"managedFields":[` + series(6000, `{"manager":"m%[1]d","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:k%[1]d":{}}}}`) + `]}}`
	wide := series(60_000, `"k%d":"v"`)
	finalizers := series(50_000, `"a/%d"`)
	for _, c := range []call{
		{name: "moves of list items", contentType: asPatch, code: 413, reason: large, message: most + "list items that a JSON patch moves is 80000000, got …",
			body: `[{"op":"add","path":"/x","value":[` + series(200_000, "%d") + `]}` + strings.Repeat(`,{"op":"move","from":"/x/0","path":"/x/9"}`, 500) + `]`},
		{name: "copies at deep paths", contentType: asPatch, code: 413, reason: large, message: most + "bytes that a JSON patch reads at the levels of its paths is 58720256, got …",
			body: `[{"op":"add","path":"/x","value":` + strings.Repeat(`{"a":`, 100) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 100) + `},{"op":"copy","from":"/x` + strings.Repeat("/a", 100) + `","path":"/y"}]`},
		{name: "an order of list items", contentType: asStrategic, body: `{"metadata":{"finalizers":["a/b"],"$setElementOrder/finalizers":[` + finalizers + `]}}`, code: 413, reason: large, message: lists},
		{name: "many list items", contentType: asStrategic, body: `{"metadata":{"finalizers":[` + finalizers + `],"$setElementOrder/finalizers":[` + finalizers + `]}}`, code: 413, reason: large, message: lists},
		{name: "many owners", contentType: asStrategic, body: `{"metadata":{"ownerReferences":[` + series(50_000, `{"uid":"%d"}`) + `],"$setElementOrder/ownerReferences":[{"uid":"0"}]}}`, code: 413, reason: large, message: lists},
		{name: "many keys", contentType: asMerge, body: `{"data":{` + series(150_000, `"k%d":"1234567"`) + `}}`, code: 422, reason: metav1.StatusReasonInvalid},
		{name: "many managers", contentType: asMerge, body: entries, code: 413, reason: large, message: most + "fields times managers is 25000000, got …"},
		{name: "many keys applied in JSON", contentType: asApply, body: `{"apiVersion":"v1","kind":"ConfigMap",` + metadata + `,"data":{` + wide + `}}`, code: 413, reason: large, message: inserts},
		{name: "many keys applied in YAML", contentType: asApply, body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: victim}\ndata: {" + wide + "}", code: 413, reason: large, message: inserts},
		{name: "many finalizers applied", contentType: asApply, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim","finalizers":[` + finalizers + `]}}`, code: 413, reason: large, message: inserts},
		{name: "many labels applied to a custom object", path: tab, contentType: asApply, code: 413, reason: large, message: inserts,
			body: `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"victim","labels":{` + wide + `}}}`},
		{name: "many moves in a custom object", path: tab, contentType: asPatch, code: 413, reason: large, message: most + "list items that a JSON patch moves is 80000000, got …",
			body: `[{"op":"add","path":"/x","value":[` + series(200_000, "%d") + `]}` + strings.Repeat(`,{"op":"remove","path":"/x/0"}`, 500) + `]`},
	} {
		c.method = http.MethodPatch
		if c.path == "" {
			c.path = victim
		}
		if c.contentType == asApply {
			c.path += "?fieldManager=m&force=true"
		}
		w.refused(&c)
	}
	w.unharmed()
}
