package robustness_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// numberedList formats the numbers from 0 to n-1 and joins them with commas.
func numberedList(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestCostlyPatches checks that a patch of each of the four types, in JSON or YAML, is rejected if it is too costly
// (CVE-2019-1002100). The server estimates the cost before it calls upstream's patch libraries, because these cannot be
// interrupted. It rejects patches that would take more than about a second.
func TestCostlyPatches(t *testing.T) {
	f := newFixture(t)
	const (
		limit   = "Request entity too large: The allowed maximum is "
		inserts = limit + "1000000000 insertions of list items and map keys, got …"
		lists   = limit + "56000000 comparisons of list items in a strategic merge patch, got …"
	)
	metadata := `"metadata":{"name":"victim"}`
	entries := `{"metadata":{"managedFields":[` + numberedList(6000,
		`{"manager":"m%[1]d","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1",`+
			`"fieldsV1":{"f:data":{"f:k%[1]d":{}}}}`) + `]}}`
	wide := numberedList(60_000, `"k%d":"v"`)
	finalizers := numberedList(50_000, `"a/%d"`)
	for _, c := range []requestCase{
		{name: "moves of list items", contentType: asPatch, code: 413, reason: entityTooLarge,
			message: limit + "80000000 list items moved by a JSON patch, got …",
			body: `[{"op":"add","path":"/x","value":[` + numberedList(200_000, "%d") + `]}` +
				strings.Repeat(`,{"op":"move","from":"/x/0","path":"/x/9"}`, 500) + `]`},
		{name: "copies at deep paths", contentType: asPatch, code: 413, reason: entityTooLarge,
			message: limit + "58720256 bytes parsed for a JSON patch, got …",
			body: `[{"op":"add","path":"/x","value":` + strings.Repeat(`{"a":`, 100) + `"` +
				strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 100) + `},{"op":"copy","from":"/x` +
				strings.Repeat("/a", 100) + `","path":"/y"}]`},
		{name: "a long order of list items", contentType: asStrategic,
			body: `{"metadata":{"finalizers":["a/b"],"$setElementOrder/finalizers":[` + finalizers +
				`]}}`, code: 413, reason: entityTooLarge, message: lists},
		{name: "many list items", contentType: asStrategic, body: `{"metadata":{"finalizers":[` + finalizers +
			`],"$setElementOrder/finalizers":[` + finalizers +
			`]}}`, code: 413, reason: entityTooLarge, message: lists},
		{name: "many owners", contentType: asStrategic, body: `{"metadata":{"ownerReferences":[` +
			numberedList(50_000, `{"uid":"%d"}`) + `],"$setElementOrder/ownerReferences":[{"uid":"0"}]}}`, code: 413,
			reason: entityTooLarge, message: lists},
		{name: "many keys", contentType: asMerge, body: `{"data":{` + numberedList(150_000, `"k%d":"1234567"`) + `}}`,
			code: 422, reason: metav1.StatusReasonInvalid},
		{name: "many managers", contentType: asMerge, body: entries, code: 413, reason: entityTooLarge,
			message: limit + "25000000 pairs of a field and a manager, got …"},
		{name: "many keys applied in JSON", contentType: asApply,
			body: `{"apiVersion":"v1","kind":"ConfigMap",` + metadata + `,"data":{` + wide +
				`}}`, code: 413, reason: entityTooLarge, message: inserts},
		{name: "many keys applied in YAML", contentType: asApply,
			body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: victim}\ndata: {" + wide +
				"}", code: 413, reason: entityTooLarge, message: inserts},
		{name: "many finalizers applied", contentType: asApply,
			body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim","finalizers":[` + finalizers +
				`]}}`, code: 413, reason: entityTooLarge, message: inserts},
		{name: "many labels applied to a custom object", path: cronTabPath, contentType: asApply, code: 413,
			reason: entityTooLarge, message: inserts,
			body: `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"victim","labels":{` +
				wide + `}}}`},
		{name: "many moves in a custom object", path: cronTabPath, contentType: asPatch, code: 413,
			reason: entityTooLarge, message: limit + "80000000 list items moved by a JSON patch, got …",
			body: `[{"op":"add","path":"/x","value":[` + numberedList(200_000, "%d") + `]}` +
				strings.Repeat(`,{"op":"remove","path":"/x/0"}`, 500) + `]`},
	} {
		c.method = http.MethodPatch
		if c.path == "" {
			c.path = configMapPath
		}
		if c.contentType == asApply {
			c.path += "?fieldManager=m&force=true"
		}
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}
