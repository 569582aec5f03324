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

const open = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`

// definition is a CRD of evils.example.com as JSON; more goes into its one version.
func definition(schema, more string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"evils.example.com"},"spec":{"group":"example.com","scope":"Namespaced",` +
		`"names":{"plural":"evils","kind":"Evil"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":` + schema + "}" + more + "}]}}"
}

func columns(path string) string {
	q, _ := json.Marshal(path)
	return `,"additionalPrinterColumns":[{"name":"c","type":"string","jsonPath":` + string(q) + "}]"
}

func object(schema string) string { return `{"type":"object","properties":{"a":` + schema + "}}" }

func nest(n int) string {
	return strings.Repeat(`{"type":"object","properties":{"a":`, n) + `{"type":"string"}` + strings.Repeat("}}", n)
}

func versions(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"name":"v%d","served":true,"storage":true,"schema":{"openAPIV3Schema":%s}},`, i+1, open)
	}
	return strings.Replace(definition(open, ""), `"versions":[`, `"versions":[`+b.String(), 1)
}

func TestDefinitions(t *testing.T) {
	w := newWorld(t)
	for _, c := range []call{
		{name: "10 MiB of description", body: definition(object(`{"type":"string","description":"`+strings.Repeat("d", 10<<20)+`"}`), ""), code: 413, reason: large, message: tooLarge},
		{name: "1,000 versions, all for storage", body: versions(1000), code: 422, reason: invalid},
		{name: "reference to itself", body: definition(object(`{"$ref":"#/properties/a"}`), ""), code: 422, reason: invalid},
		{name: "no type", body: definition(object(`{"properties":{"a":{}}}`), ""), code: 422, reason: invalid},
		{name: "unknown type", body: definition(object(`{"type":"evil"}`), ""), code: 422, reason: invalid},
		{name: "pattern that is none", body: definition(object(`{"type":"string","pattern":"(((("}`), ""), code: 422, reason: invalid},
		{name: "pattern of many repeats", body: definition(object(`{"type":"string","pattern":"(((a{1000}){1000}){1000})"}`), ""), code: 422, reason: invalid},
		{name: "100,000 deep", body: definition(nest(20_000), ""), code: 400, reason: bad},
		{name: "columns without a dot", body: definition(open, columns("[")), code: 422, reason: invalid},
		{name: "columns with NUL", body: definition(open, columns("\x00")), code: 422, reason: invalid},
		{name: "columns of a wrong type", body: definition(open, `,"additionalPrinterColumns":{"a":1}`), code: 400, reason: bad},
		{name: "schema is a list", body: definition("[]", ""), code: 400, reason: bad},
		{name: "name and plural differ", body: strings.Replace(definition(open, ""), `"name":"evils.example.com"`, `"name":"x.example.com"`, 1), code: 422, reason: invalid},
		{name: "plural is a path", body: strings.Replace(definition(open, ""), `"plural":"evils"`, `"plural":"../evils"`, 1), code: 422, reason: invalid},
		{name: "group is a path", body: strings.Replace(definition(open, ""), `"group":"example.com"`, `"group":"../x"`, 1), code: 422, reason: invalid},
		{name: "selectable field of nothing", body: definition(open, `,"selectableFields":[{"jsonPath":".spec["}]`), code: 422, reason: invalid},
		{name: "scale without paths", body: definition(open, `,"subresources":{"scale":{}}`), code: 422, reason: invalid},
	} {
		c.method, c.path, c.contentType = http.MethodPost, crds, asJSON
		w.refused(&c)
	}
	w.unharmed()
}

// What is legal can be hostile all the same: it is served, and nothing else suffers.
func TestLegalDefinitions(t *testing.T) {
	w := newWorld(t)
	for name, body := range map[string]string{
		"2.9 MB of description":     definition(object(`{"type":"string","description":"`+strings.Repeat("d", 2_900_000)+`"}`), ""),
		"500 deep":                  definition(nest(500), ""),
		"a column that finds much":  definition(open, columns(`..*`)),
		"a column of every a":       definition(open, columns(`..a`)),
		"a column that ranges":      definition(open, columns(`.a[0:1000000000:1]`)),
		"a column that filters":     definition(open, columns(`.a[?(@.b=="c")].d`)),
		"a column of half a script": definition(open, columns(`.a[?(@`)),
		"a column of brackets":      definition(open, columns("."+strings.Repeat("[", 100_000))),
		"a column beyond the end":   definition(open, columns(`.a[99999999]`)),
		"5,000 properties":          definition(`{"type":"object","properties":{`+strings.Join(many(5000, `"p%d":{"type":"string"}`), ",")+`}}`, ""),
		"a pattern that backtracks": definition(object(`{"type":"string","pattern":"(a+)+$"}`), ""),
	} {
		code, data := w.answer(w.http, &call{name: name, method: http.MethodPost, path: crds, contentType: asJSON, body: body})
		if code != http.StatusCreated {
			t.Errorf("%s: %d %s", name, code, short(string(data)))
			continue
		}
		const evils = "/apis/example.com/v1/namespaces/default/evils"
		value := `"` + strings.Repeat("a", 50_000) + `!"`
		if strings.Contains(name, "column") || name == "500 deep" {
			value = strings.Repeat(`{"a":`, 200) + "{}" + strings.Repeat("}", 200)
		}
		began := time.Now()
		code, data = w.answer(w.http, &call{name: name, method: http.MethodPost, path: evils, contentType: asJSON,
			body: `{"apiVersion":"example.com/v1","kind":"Evil","metadata":{"name":"x"},"a":` + value + "}"})
		if code >= 500 {
			t.Errorf("%s: %d %s", name, code, short(string(data)))
		}
		for _, accept := range []string{"application/json;as=Table;g=meta.k8s.io;v=v1", asJSON} {
			if code, data = w.answer(w.http, &call{name: name, method: http.MethodGet, path: evils, header: map[string]string{"Accept": accept}}); code != http.StatusOK || len(data) > 4<<20 {
				t.Errorf("%s: %d, %d bytes: %s", name, code, len(data), short(string(data)))
			}
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
			w.must(http.MethodGet, path, "", "")
		}
		if took := time.Since(began); took > patience {
			t.Errorf("%s: took %v", name, took)
		}
		w.must(http.MethodDelete, crds+"/evils.example.com", "", "")
		w.gone(crds + "/evils.example.com")
	}
	w.remember()
	w.unharmed()
}

func (w *world) gone(path string) {
	w.t.Helper()
	for until := time.Now().Add(slower * patience); ; pause() {
		if code, _ := w.answer(w.http, &call{name: path, method: http.MethodGet, path: path}); code == http.StatusNotFound {
			return
		}
		if time.Now().After(until) {
			w.t.Fatal(path, " stays")
		}
	}
}

// many gives n texts, each with its number in it.
func many(n int, format string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}

func TestMetadata(t *testing.T) {
	w := newWorld(t)
	labels := `{"` + strings.Join(many(5_000, `l%d":"v`), `","`) + `"}`
	for _, c := range []call{
		{name: "bad labels", body: `"labels":{"` + strings.Join(many(5_000, "/%d\":\"!"), `","`) + `"}`, code: 422, reason: invalid},
		{name: "annotations of 300 KB", body: `"annotations":{"a":"` + strings.Repeat("x", 300_000) + `"}`, code: 422, reason: invalid},
		{name: "finalizers without a slash", body: `"finalizers":["` + strings.Join(many(3_000, "/%d"), `","`) + `"]`, code: 422, reason: invalid},
		{name: "owners without anything", body: `"ownerReferences":[` + strings.Join(many(5_000, `{"name":"%d"}`), ",") + `]`, code: 422, reason: invalid},
		{name: "two controllers", body: `"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"a","uid":"1","controller":true},{"apiVersion":"v1","kind":"A","name":"b","uid":"2","controller":true}]`, code: 422, reason: invalid},
		{name: "labels of numbers", body: `"labels":{"a":1}`, code: 400, reason: bad},
		{name: "deep labels", body: `"labels":` + strings.Repeat(`{"a":`, deep) + "1" + strings.Repeat("}", deep), code: 400, reason: bad},
		{name: "a generation below zero", body: `"generation":-1`, code: 422, reason: invalid},
		{name: "a time that is none", body: `"creationTimestamp":"yesterday"`, code: 400, reason: bad},
		{name: "managedFields of a wrong type", body: `"managedFields":{"a":1}`, code: 400, reason: bad},
	} {
		c.method, c.contentType = http.MethodPost, asJSON
		rest := c.body.(string)
		c.path, c.body = maps, `{"metadata":{"name":"x",`+rest+`}}`
		w.refused(&c)
		if c.name == "a generation below zero" { // which a custom resource sets anew
			continue
		}
		c.name += " of a custom resource"
		c.path, c.body = tabs, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"x",`+rest+`}}`
		w.refused(&c)
	}
	w.unharmed()

	// Legal, if strange.
	for name, rest := range map[string]string{
		"labels": `"labels":` + labels,
		"fields": `"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":` + strings.Repeat(`{"f:a":`, 5000) + "{}" + strings.Repeat("}", 5000) + `}]`,
		"evil":   `"managedFields":[{"manager":"m","operation":"Evil","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]`,
		"junk":   `"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"garbage":7}}]`,
	} {
		code, data := w.answer(w.http, &call{name: name, method: http.MethodPost, path: maps, contentType: asJSON, body: `{"metadata":{"name":"` + name + `",` + rest + `}}`})
		if code >= 500 || code < 200 {
			t.Errorf("%s: %d %s", name, code, short(string(data)))
		}
		code, data = w.answer(w.http, &call{name: name, method: http.MethodPatch, path: maps + "/" + name + "?fieldManager=n", contentType: asApply, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"a":"b"}}`})
		if code >= 500 || code < 200 {
			t.Errorf("apply to %s: %d %s", name, code, short(string(data)))
		}
	}
	w.remember()
	w.refused(&call{name: "gone", method: http.MethodGet, path: maps + "/x", code: 404, reason: metav1.StatusReasonNotFound, message: `configmaps "x" not found`})
	w.unharmed()
}

// A list of the size that a request may have is compared with itself in no time: it took the square of its length.
func TestManyFinalizers(t *testing.T) {
	w := newWorld(t)
	w.http.Timeout = slower * patience
	w.must(http.MethodPost, tabs, asJSON, `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"x","finalizers":["`+
		strings.Join(many(120_000, `a/%06d`), `","`)+`"]}}`)
	w.must(http.MethodPatch, tabs+"/x", asPatch, `[{"op":"remove","path":"/metadata/finalizers/0"}]`)
	w.must(http.MethodPatch, tabs+"/x", asMerge, `{"metadata":{"finalizers":null}}`)
}
