package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const partialList = "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

// HPX-012: an item of a built-in kind does not say its kind in a list, nor where DeleteCollection answers with one; it does
// in a watch, in a row of a Table and as metadata. One of a custom kind always does.
func TestBuiltinListItemsHaveNoKind(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.EnableCBOR = true })
	h.want(201, "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s"},"data":{"kind":"YQ=="},"immutable":true}`)
	h.want(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`)
	h.want(201, "POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"action":"a","involvedObject":{"kind":"Pod","apiVersion":"v1","namespace":"default"}}`)
	for _, path := range []string{
		"/api/v1/secrets", "/api/v1/namespaces", "/api/v1/services", "/api/v1/events", "/apis/events.k8s.io/v1/events",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions",
	} {
		list := tree(t, h.want(200, "GET", path, "").Body)
		one := strings.Replace(path, "/v1/", "/v1/namespaces/default/", 1) + "/" + at(list, "items", 0, "metadata", "name").(string)
		if at(list, "items", 0, "metadata", "namespace") == nil {
			one = strings.Replace(one, "/namespaces/default/", "/", 1)
		}
		want := tree(t, h.want(200, "GET", one, "").Body)
		delete(want, "apiVersion")
		delete(want, "kind")
		wantEqual(t, path, at(list, "items", 0), want)
		fromYAML := map[string]any{}
		if err := yaml.Unmarshal(h.want(200, "GET", path, "", "Accept: application/yaml").Body.Bytes(), &fromYAML); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, path+" in YAML", at(fromYAML, "items", 0), want)
		fromCBOR, err := decodeCBOR(h.want(200, "GET", path, "", "Accept: application/cbor").Body.Bytes())
		if err != nil || at(fromCBOR, "items", 0, "kind") != nil || at(fromCBOR, "items", 0, "metadata") == nil {
			t.Errorf("%s in CBOR: %v %v", path, fromCBOR, err)
		}
	}
	wantEqual(t, "a custom kind", at(tree(t, h.do("GET", crontabs, "").Body), "items", 0, "kind"), any("CronTab"))
	wantEqual(t, "a row", at(tree(t, h.do("GET", "/api/v1/secrets?includeObject=Object", "", asTable).Body), "rows", 0, "object", "kind"), any("Secret"))
	wantEqual(t, "metadata", at(tree(t, h.do("GET", "/api/v1/secrets", "", partialList).Body), "items", 0, "kind"), any("PartialObjectMetadata"))
	_, events := h.watch("/api/v1/secrets?watch=1")
	wantEqual(t, "an event", at(nextEvent(t, events), "object", "kind"), any("Secret"))
	wantEqual(t, "deleted", at(tree(t, h.do("DELETE", "/api/v1/namespaces/default/secrets", "").Body), "items", 0, "kind"), any(nil))
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

// CRD-064: only a list of metadata has null where there are no items.
func TestEmptyLists(t *testing.T) {
	h := withCronTabs(t)
	h.want(200, "DELETE", crontabs, "")
	for _, path := range []string{crontabs, "/api/v1/secrets"} {
		for accept, want := range map[string]string{
			"Accept: application/json": `"items":[]`,
			"Accept: application/yaml": "\nitems: []\n",
			asTable:                    `"rows":[]`,
			partialList:                `"items":null`,
			strings.Replace(partialList, "json", "yaml", 1): "\nitems: null\n",
		} {
			if got := h.want(200, "GET", path, "", accept).Body.String(); !strings.Contains(got, want) {
				t.Errorf("%s, %s: %s", path, accept, got)
			}
		}
	}
	if got := h.want(200, "DELETE", crontabs, "", partialList).Body.String(); !strings.Contains(got, `"items":null`) {
		t.Errorf("a deleted collection: %s", got)
	}
}

// CRD-064: the answer to a question is no row. Only one of an access review is the question, with its managedFields.
func TestReviewsHaveNoTable(t *testing.T) {
	h := newHarness(t)
	for path, body := range map[string]string{
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":      `{}`,
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": `{"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`,
		"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews":  `{"spec":{"namespace":"default"}}`,
	} {
		table, otherwise, _ := strings.Cut(asTable, ",")
		h.wantError(406, "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf", "POST", path, body, table)
		answer := tree(t, h.want(201, "POST", path, body, "Accept: "+otherwise).Body)
		if !slices.Contains([]any{"SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"}, answer["kind"]) {
			t.Errorf("%s: %v", path, answer)
		}
		wantEqual(t, "namespace of "+path, at(answer, "spec", "namespace"), any(nil))
		if owned := at(answer, "metadata", "managedFields", 0, "manager"); (owned == "tester") != (answer["kind"] == "SelfSubjectAccessReview") {
			t.Errorf("%s: managed by %v", path, owned)
		}
	}
}
