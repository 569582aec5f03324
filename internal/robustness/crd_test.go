package robustness_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const openSchema = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`

// crdJSON returns the CRD evils.example.com as JSON. Its only version has the schema and the additional fields in
// more.
func crdJSON(schema, more string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",` +
		`"metadata":{"name":"evils.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
		`"names":{"plural":"evils","kind":"Evil"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + "}" + more +
		"}]}}"
}

// printerColumn returns the field additionalPrinterColumns of a version, with one column.
func printerColumn(path string) string {
	q, _ := json.Marshal(path)
	return `,"additionalPrinterColumns":[{"name":"c","type":"string","jsonPath":` + string(q) + "}]"
}

func objectSchema(schema string) string { return `{"type":"object","properties":{"a":` + schema + "}}" }

func nestedSchema(n int) string {
	return strings.Repeat(`{"type":"object","properties":{"a":`, n) + `{"type":"string"}` + strings.Repeat("}}", n)
}

// crdWithVersions returns a CRD with n versions in addition to v1 of crdJSON.
func crdWithVersions(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"name":"v%d","served":true,"storage":true,"schema":{"openAPIV3Schema":%s}},`, i+1, openSchema)
	}
	return strings.Replace(crdJSON(openSchema, ""), `"versions":[`, `"versions":[`+b.String(), 1)
}

// TestInvalidCRDs checks that malformed and oversized CRDs are rejected.
func TestInvalidCRDs(t *testing.T) {
	f := newFixture(t)
	for _, c := range []requestCase{
		{name: "10 MiB of description", body: crdJSON(objectSchema(`{"type":"string","description":"`+
			strings.Repeat("d", 10<<20)+`"}`), ""), code: 413, reason: entityTooLarge, message: tooLargeMessage},
		{name: "1,000 storage versions", body: crdWithVersions(1000), code: 422, reason: invalid},
		{name: "reference to itself", body: crdJSON(objectSchema(`{"$ref":"#/properties/a"}`), ""), code: 422,
			reason: invalid},
		{name: "no type", body: crdJSON(objectSchema(`{"properties":{"a":{}}}`), ""), code: 422, reason: invalid},
		{name: "unknown type", body: crdJSON(objectSchema(`{"type":"evil"}`), ""), code: 422, reason: invalid},
		{name: "invalid pattern", body: crdJSON(objectSchema(`{"type":"string","pattern":"(((("}`), ""), code: 422,
			reason: invalid},
		{name: "pattern with too many repetitions",
			body: crdJSON(objectSchema(`{"type":"string","pattern":"(((a{1000}){1000}){1000})"}`),
				""), code: 422, reason: invalid},
		{name: "20,000 levels", body: crdJSON(nestedSchema(20_000), ""), code: 400, reason: badRequest},
		{name: "column path without a dot", body: crdJSON(openSchema, printerColumn("[")), code: 422, reason: invalid},
		{name: "column path with NUL", body: crdJSON(openSchema, printerColumn("\x00")), code: 422, reason: invalid},
		{name: "columns of the wrong type", body: crdJSON(openSchema, `,"additionalPrinterColumns":{"a":1}`), code: 400,
			reason: badRequest},
		{name: "schema is a list", body: crdJSON("[]", ""), code: 400, reason: badRequest},
		{name: "name and plural differ", body: strings.Replace(crdJSON(openSchema, ""), `"name":"evils.example.com"`,
			`"name":"x.example.com"`, 1), code: 422, reason: invalid},
		{name: "plural is a path", body: strings.Replace(crdJSON(openSchema, ""), `"plural":"evils"`,
			`"plural":"../evils"`, 1), code: 422, reason: invalid},
		{name: "group is a path", body: strings.Replace(crdJSON(openSchema, ""), `"group":"example.com"`,
			`"group":"../x"`, 1), code: 422, reason: invalid},
		{name: "invalid path of a selectable field", body: crdJSON(openSchema,
			`,"selectableFields":[{"jsonPath":".spec["}]`), code: 422, reason: invalid},
		{name: "scale without paths", body: crdJSON(openSchema, `,"subresources":{"scale":{}}`), code: 422,
			reason: invalid},
	} {
		c.method, c.path, c.contentType = http.MethodPost, crdsPath, asJSON
		f.checkStatus(&c)
	}
	f.checkUnchanged()
}

// TestExtremeCRDs checks that valid CRDs with extreme schemas or columns are served within the timeout and do not
// affect other requests.
func TestExtremeCRDs(t *testing.T) {
	f := newFixture(t)
	for name, body := range map[string]string{
		"2.9 MB of description": crdJSON(objectSchema(`{"type":"string","description":"`+
			strings.Repeat("d", 2_900_000)+`"}`), ""),
		"500 levels":                          crdJSON(nestedSchema(500), ""),
		"a column with many matches":          crdJSON(openSchema, printerColumn(`..*`)),
		"a column with recursive descent":     crdJSON(openSchema, printerColumn(`..a`)),
		"a column with a slice":               crdJSON(openSchema, printerColumn(`.a[0:1000000000:1]`)),
		"a column with a filter":              crdJSON(openSchema, printerColumn(`.a[?(@.b=="c")].d`)),
		"a column with a truncated filter":    crdJSON(openSchema, printerColumn(`.a[?(@`)),
		"a column with 100,000 brackets":      crdJSON(openSchema, printerColumn("."+strings.Repeat("[", 100_000))),
		"a column with an index out of range": crdJSON(openSchema, printerColumn(`.a[99999999]`)),
		"5,000 properties": crdJSON(`{"type":"object","properties":{`+
			strings.Join(numberedStrings(5000, `"p%d":{"type":"string"}`), ",")+`}}`, ""),
		"a pattern with nested repetition": crdJSON(objectSchema(`{"type":"string","pattern":"(a+)+$"}`), ""),
	} {
		code, data := f.do(f.client, &requestCase{name: name, method: http.MethodPost, path: crdsPath,
			contentType: asJSON, body: body})
		if code != http.StatusCreated {
			t.Errorf("%s: cannot create the CRD: got %d %s, want 201", name, code, abbreviate(string(data)))
			continue
		}
		const evilsPath = "/apis/example.com/v1/namespaces/default/evils"
		value := `"` + strings.Repeat("a", 50_000) + `!"`
		if strings.Contains(name, "column") || name == "500 levels" {
			value = strings.Repeat(`{"a":`, 200) + "{}" + strings.Repeat("}", 200)
		}
		start := time.Now()
		code, data = f.do(f.client, &requestCase{name: name, method: http.MethodPost, path: evilsPath,
			contentType: asJSON,
			body:        `{"apiVersion":"example.com/v1","kind":"Evil","metadata":{"name":"x"},"a":` + value + "}"})
		if code >= 500 {
			t.Errorf("%s: POST: got %d %s, want a code below 500", name, code, abbreviate(string(data)))
		}
		for _, accept := range []string{"application/json;as=Table;g=meta.k8s.io;v=v1", asJSON} {
			if code, data = f.do(f.client, &requestCase{name: name, method: http.MethodGet, path: evilsPath,
				header: map[string]string{"Accept": accept}}); code != http.StatusOK || len(data) > 4<<20 {
				t.Errorf("%s: GET: got %d with %d bytes, want 200 with at most 4 MiB: %s", name, code, len(data),
					abbreviate(string(data)))
			}
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
			f.mustSend(http.MethodGet, path, "", "")
		}
		if elapsed := time.Since(start); elapsed > timeout {
			t.Errorf("%s: requests took %v, want at most %v", name, elapsed, timeout)
		}
		f.mustSend(http.MethodDelete, crdsPath+"/evils.example.com", "", "")
		f.waitForDeletion(crdsPath + "/evils.example.com")
	}
	f.recordState()
	f.checkUnchanged()
}

// numberedStrings formats the numbers from 0 to n-1.
func numberedStrings(n int, format string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

// TestExtremeMetadata checks that invalid metadata is rejected, and that valid extreme metadata can be stored and
// applied.
func TestExtremeMetadata(t *testing.T) {
	f := newFixture(t)
	labels := `{"` + strings.Join(numberedStrings(5_000, `l%d":"v`), `","`) + `"}`
	for _, c := range []requestCase{
		{name: "bad labels", body: `"labels":{"` + strings.Join(numberedStrings(5_000, "/%d\":\"!"), `","`) + `"}`,
			code: 422, reason: invalid},
		{name: "annotations of 300 KB", body: `"annotations":{"a":"` + strings.Repeat("x", 300_000) + `"}`, code: 422,
			reason: invalid},
		{name: "invalid finalizers", body: `"finalizers":["` + strings.Join(numberedStrings(3_000, "/%d"), `","`) +
			`"]`, code: 422, reason: invalid},
		{name: "owners without apiVersion, kind and uid", body: `"ownerReferences":[` +
			strings.Join(numberedStrings(5_000, `{"name":"%d"}`), ",") + `]`, code: 422, reason: invalid},
		{name: "two controllers", body: `"ownerReferences":[` +
			`{"apiVersion":"v1","kind":"A","name":"a","uid":"1","controller":true},` +
			`{"apiVersion":"v1","kind":"A","name":"b","uid":"2","controller":true}]`, code: 422,
			reason: invalid},
		{name: "a number as a label", body: `"labels":{"a":1}`, code: 400, reason: badRequest},
		{name: "deep labels", body: `"labels":` + strings.Repeat(`{"a":`, nestingDepth) + "1" +
			strings.Repeat("}", nestingDepth), code: 400, reason: badRequest},
		{name: "a negative generation", body: `"generation":-1`, code: 422, reason: invalid},
		{name: "an invalid time", body: `"creationTimestamp":"yesterday"`, code: 400, reason: badRequest},
		{name: "managedFields of the wrong type", body: `"managedFields":{"a":1}`, code: 400, reason: badRequest},
	} {
		c.method, c.contentType = http.MethodPost, asJSON
		rest := c.body.(string)
		c.path, c.body = configMapsPath, `{"metadata":{"name":"x",`+rest+`}}`
		f.checkStatus(&c)
		if c.name == "a negative generation" { // the server overwrites the generation of a custom resource
			continue
		}
		c.name += " of a custom resource"
		c.path, c.body = cronTabsPath, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"x",`+
			rest+`}}`
		f.checkStatus(&c)
	}
	f.checkUnchanged()

	managedFields := func(operation, fields string) string {
		return fmt.Sprintf(`"managedFields":[{"manager":"m","operation":%q,"apiVersion":"v1",`+
			`"fieldsType":"FieldsV1","fieldsV1":%s}]`, operation, fields)
	}
	for name, rest := range map[string]string{
		"labels":            `"labels":` + labels,
		"fields":            managedFields("Update", strings.Repeat(`{"f:a":`, 5000)+"{}"+strings.Repeat("}", 5000)),
		"unknown-operation": managedFields("Evil", "{}"),
		"invalid-fields":    managedFields("Update", `{"garbage":7}`),
	} {
		code, data := f.do(f.client, &requestCase{name: name, method: http.MethodPost, path: configMapsPath,
			contentType: asJSON, body: `{"metadata":{"name":"` + name + `",` + rest + `}}`})
		if code >= 500 || code < 200 {
			t.Errorf("create %s: got %d %s", name, code, abbreviate(string(data)))
		}
		code, data = f.do(f.client, &requestCase{name: name, method: http.MethodPatch,
			path:        configMapsPath + "/" + name + "?fieldManager=n",
			contentType: asApply,
			body:        `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"a":"b"}}`})
		if code >= 500 || code < 200 {
			t.Errorf("apply to %s: got %d %s", name, code, abbreviate(string(data)))
		}
	}
	f.recordState()
	f.checkStatus(&requestCase{name: "not created", method: http.MethodGet, path: configMapsPath + "/x", code: 404,
		reason: metav1.StatusReasonNotFound, message: `configmaps "x" not found`})
	f.checkUnchanged()
}

// TestManyFinalizers checks that updating a list of 120,000 finalizers does not take quadratic time.
func TestManyFinalizers(t *testing.T) {
	f := newFixture(t)
	f.mustSend(http.MethodPost, cronTabsPath, asJSON,
		`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"x","finalizers":["`+
			strings.Join(numberedStrings(120_000, `a/%06d`), `","`)+`"]}}`)
	f.mustSend(http.MethodPatch, cronTabsPath+"/x", asPatch, `[{"op":"remove","path":"/metadata/finalizers/0"}]`)
	f.mustSend(http.MethodPatch, cronTabsPath+"/x", asMerge, `{"metadata":{"finalizers":null}}`)
}
