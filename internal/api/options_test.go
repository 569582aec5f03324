package api

import (
	"net/http"
	"testing"
)

// FuzzOptions sends list requests with arbitrary queries. It checks that the server neither panics nor returns 500
// (CRD-067).
func FuzzOptions(f *testing.F) {
	for _, q := range []string{
		"", "labelSelector=a%3Db", "fieldSelector=metadata.name%3Da", "limit=1", "limit=-1&continue=x",
		"resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=x",
		"labelSelector=a+in+(b,c)", "timeoutSeconds=1",
		"limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0", "watch=0", "pretty=maybe",
		"timeout=1s", "a=%", "includeObject=Nothing", "sendInitialEvents=true",
	} {
		f.Add(q)
	}
	h := withCronTabs(f)
	f.Fuzz(func(t *testing.T, query string) {
		r := newRequest("GET", crontabs, "")
		r.URL.RawQuery = query
		if v, ok := r.URL.Query()["watch"]; ok && v[0] != "0" && v[0] != "false" {
			return
		}
		w := serve(h, r)
		if w.Code >= 500 && w.Code != http.StatusGatewayTimeout {
			t.Errorf("query %q: got %d %s, want a code below 500", query, w.Code, w.Body)
		}
	})
}
