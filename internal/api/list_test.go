package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const partialList = "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

// TestBuiltinListItemsHaveNoKind checks that items of built-in kinds have no kind and apiVersion in lists and in
// responses of DeleteCollection. Watch events, Table rows and PartialObjectMetadata have both fields.
// Items of custom kinds always have them (HPX-012).
func TestBuiltinListItemsHaveNoKind(t *testing.T) {
	h := withCronTabs(t, func(c *Config) { c.EnableCBOR = true })
	h.want(201, "POST", "/api/v1/namespaces/default/secrets",
		`{"metadata":{"name":"s"},"data":{"kind":"YQ=="},"immutable":true}`)
	h.want(201, "POST", "/api/v1/namespaces/default/services",
		`{"metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}}`)
	h.want(201, "POST", "/api/v1/namespaces/default/events",
		`{"metadata":{"name":"e"},"action":"a","involvedObject":{"kind":"Pod","apiVersion":"v1",`+
			`"namespace":"default"}}`)
	for _, path := range []string{
		"/api/v1/secrets", "/api/v1/namespaces", "/api/v1/services", "/api/v1/events", "/apis/events.k8s.io/v1/events",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions",
	} {
		list := tree(t, h.want(200, "GET", path, "").Body)
		one := strings.Replace(path, "/v1/", "/v1/namespaces/default/", 1) + "/" +
			at(list, "items", 0, "metadata", "name").(string)
		if at(list, "items", 0, "metadata", "namespace") == nil {
			one = strings.Replace(one, "/namespaces/default/", "/", 1)
		}
		want := tree(t, h.want(200, "GET", one, "").Body)
		delete(want, "apiVersion")
		delete(want, "kind")
		wantEqual(t, path, at(list, "items", 0), want)
		fromYAML := map[string]any{}
		if err := yaml.Unmarshal(h.want(200, "GET", path, "", "Accept: application/yaml").Body.Bytes(),
			&fromYAML); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, path+" in YAML", at(fromYAML, "items", 0), want)
		got, err := fromCBOR(h.want(200, "GET", path, "", "Accept: application/cbor"))
		if err != nil || at(got, "items", 0, "kind") != nil || at(got, "items", 0, "metadata") == nil {
			t.Errorf("%s in CBOR: got %v, error %v, want items without a kind", path, got, err)
		}
	}
	wantEqual(t, "item of a custom kind", at(tree(t, h.do("GET", crontabs, "").Body), "items", 0, "kind"),
		any("CronTab"))
	wantEqual(t, "object in a row", at(tree(t, h.do("GET", "/api/v1/secrets?includeObject=Object", "", asTable).Body),
		"rows", 0, "object", "kind"), any("Secret"))
	wantEqual(t, "PartialObjectMetadata", at(tree(t, h.do("GET", "/api/v1/secrets", "", partialList).Body), "items", 0,
		"kind"), any("PartialObjectMetadata"))
	_, events := h.watch("/api/v1/secrets?watch=1")
	wantEqual(t, "object in an event", at(nextEvent(t, events), "object", "kind"), any("Secret"))
	wantEqual(t, "item of DeleteCollection", at(tree(t, h.do("DELETE", "/api/v1/namespaces/default/secrets", "").Body),
		"items", 0, "kind"), any(nil))
}

// wantEqual checks that two values are equal when they are formatted as text. name describes the value in the
// failure message.
func wantEqual(t *testing.T, name string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: got %s, want %s", name, g, w)
	}
}

// TestEmptyLists checks that the items of an empty list are []. The items of an empty PartialObjectMetadataList are
// null (CRD-064).
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
				t.Errorf("%s with %s: got %s, want it to contain %q", path, accept, got, want)
			}
		}
	}
	if got := h.want(200, "DELETE", crontabs, "", partialList).Body.String(); !strings.Contains(got, `"items":null`) {
		t.Errorf("DeleteCollection: got %s, want items null", got)
	}
}

// TestReviewsHaveNoTable checks that a review cannot be returned as a Table. Only the response to an access review
// has managedFields, because that response is the submitted object (CRD-064).
func TestReviewsHaveNoTable(t *testing.T) {
	h := newHarness(t)
	for path, body := range map[string]string{
		"/apis/authentication.k8s.io/v1/selfsubjectreviews": `{}`,
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": `{"spec":{"nonResourceAttributes":{"path":"/",` +
			`"verb":"get"}}}`,
		"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews": `{"spec":{"namespace":"default"}}`,
	} {
		table, alternative, _ := strings.Cut(asTable, ",")
		h.wantError(406, "only the following media types are accepted: application/json, application/yaml, "+
			"application/vnd.kubernetes.protobuf", "POST", path, body, table)
		review := tree(t, h.want(201, "POST", path, body, "Accept: "+alternative).Body)
		reviews := []any{"SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview"}
		if !slices.Contains(reviews, review["kind"]) {
			t.Errorf("%s: got %v, want the review", path, review)
		}
		wantEqual(t, "namespace of "+path, at(review, "spec", "namespace"), any(nil))
		manager := at(review, "metadata", "managedFields", 0, "manager")
		if (manager == "tester") != (review["kind"] == "SelfSubjectAccessReview") {
			t.Errorf("%s: got manager %v, want tester only for SelfSubjectAccessReview", path, manager)
		}
	}
}
