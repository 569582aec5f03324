package api

import (
	"net/http"
	"strings"
	"testing"
)

// TestListsStayInTheirGroup checks that a list of a custom kind contains no objects of other kinds whose group or
// plural has the same prefix (CVE-2022-3162).
func TestListsStayInTheirGroup(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"dogs.example.com", "dogs.example.com.evil.org", "dogsledges.example.com",
		"dogs.example.co"} {
		plural, group, _ := strings.Cut(name, ".")
		kind := strings.ToUpper(plural[:1]) + plural[1:]
		h.want(http.StatusCreated, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
			`{"metadata":{"name":"`+name+`"},"spec":{"group":"`+group+`","scope":"Namespaced","names":{"plural":"`+
				plural+`","kind":"`+kind+`"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
		h.want(http.StatusCreated, "POST", "/apis/"+group+"/v1/namespaces/default/"+plural,
			`{"apiVersion":"`+group+`/v1","kind":"`+kind+`","metadata":{"name":"of-`+plural+`-`+
				strings.ReplaceAll(group, ".", "-")+`"}}`)
	}
	for _, path := range []string{"/apis/example.com/v1/dogs", "/apis/example.com/v1/namespaces/default/dogs",
		"/apis/example.co/v1/dogs"} {
		items, _ := at(tree(t, h.want(http.StatusOK, "GET", path, "").Body), "items").([]any)
		if len(items) != 1 {
			t.Errorf("%s: got %d items, want 1", path, len(items))
		}
	}
}
