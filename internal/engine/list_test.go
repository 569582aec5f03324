package engine

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// fillCronTabs creates n CronTabs with the names c000, c001, and so on. Each has a color and the label "shard" with
// a value from 0 to 9.
func (f *fixture) fillCronTabs(n int) {
	f.Helper()
	colors := []string{"red", "green", "blue"}
	for i := range n {
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%03d","labels":{"shard":"%d"}},`+
			`"spec":{"color":%q}}`, i, i%10, colors[i%3]))
	}
}

func (f *fixture) list(t verb.Target, o read.ListOptions) *read.List {
	f.Helper()
	l, err := f.List(f.ctx, t, o)
	if err != nil {
		f.Fatalf("list: %v", err)
	}
	return l
}

func names(l *read.List) (out []string) {
	for _, o := range l.Items {
		out = append(out, o.Meta().Name)
	}
	return out
}

func fieldSelector(t testing.TB, text string) fields.Selector {
	t.Helper()
	s, err := fields.ParseSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func labelSelector(t testing.TB, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPagination checks that all pages of a list show the state at the revision of the first page, and checks the
// remaining item count (CRD-060).
func TestPagination(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(25)
	first := f.list(f.cron(""), read.ListOptions{Limit: 10})
	equal(t, "first page", []any{len(first.Items), *first.Remaining, first.Continue != ""}, []any{10, 15, true})
	f.delete(f.cron("c015"), metav1.DeleteOptions{})
	f.mustCreate(f.cron(""), `{"metadata":{"name":"c0101"}}`)
	second := f.list(f.cron(""), read.ListOptions{Limit: 10, Continue: first.Continue})
	third := f.list(f.cron(""), read.ListOptions{Limit: 10, Continue: second.Continue})
	equal(t, "revisions", []int64{second.Revision, third.Revision}, []int64{first.Revision, first.Revision})
	equal(t, "third page", []any{third.Continue, third.Remaining}, []any{"", nil})
	got := append(append(names(first), names(second)...), names(third)...)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprintf("c%03d", i))
	}
	equal(t, "names", got, want)
	selected := f.list(f.cron(""), read.ListOptions{Limit: 2, Labels: labelSelector(t, "shard=1")})
	if selected.Remaining != nil || selected.Continue == "" {
		t.Fatalf("got %v remaining items with a selector, want none and a continue token", selected.Remaining)
	}
	equal(t, "rest", names(f.list(f.cron(""), read.ListOptions{Continue: selected.Continue,
		Labels: labelSelector(t, "shard=1")})), []string{"c021"})
}

// TestExpiredContinueToken checks the error for a continue token whose revision has been compacted. The error
// contains a token that continues at the newest revision (CRD-060).
func TestExpiredContinueToken(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(6)
	first := f.list(f.cron(""), read.ListOptions{Limit: 2})
	f.mustCreate(f.cron(""), `{"metadata":{"name":"c0011"}}`)
	f.compact(f.Store.Head().Revision())
	_, err := f.List(f.ctx, f.cron(""), read.ListOptions{Limit: 2, Continue: first.Continue})
	s := f.expectStatus(err, 410, metav1.StatusReasonExpired,
		"or use the continue token in this response to retrieve the remainder of the results. Continuing with the "+
			"provided token results in an inconsistent list")
	rest := f.list(f.cron(""), read.ListOptions{Continue: s.ListMeta.Continue})
	equal(t, "remaining items at the newest revision", names(rest), []string{"c0011", "c002", "c003", "c004", "c005"})
	_, err = f.List(f.ctx, f.cron(""), read.ListOptions{ResourceVersion: strconv.FormatInt(first.Revision, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	f.expectStatus(err, 410, metav1.StatusReasonExpired, "The resourceVersion for the provided list is too old.")
}

// token returns a continue token. start is relative to the collection.
func token(start string, revision int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":"meta.k8s.io/v1","rv":%d,"start":"%s\u0000"}`,
		revision, start))
}

// TestInvalidContinueTokens checks the errors for invalid continue tokens (CRD-060).
func TestInvalidContinueTokens(t *testing.T) {
	f := newFixture(t)
	for continued, text := range map[string]string{
		"!":                 "invalid continue token: continue key is not valid: illegal base64",
		"e30":               "server does not recognize this encoded version",
		"bnVs":              "invalid continue token: continue key is not valid",
		token("x", 0):       "incorrect encoded start resourceVersion",
		token("../../x", 5): "continue key is not valid: ../../x",
	} {
		_, err := f.List(f.ctx, f.cron(""), read.ListOptions{Continue: continued})
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, text)
	}
	_, err := f.List(f.ctx, f.cron(""), read.ListOptions{Continue: token("x", 1), ResourceVersion: "5"})
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest,
		"specifying resource version is not allowed when using continue")
}

// TestListAtRevisions checks lists with every resourceVersionMatch, and the errors for invalid combinations
// (CRD-061).
func TestListAtRevisions(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(3)
	at := strconv.FormatInt(f.Store.Head().Revision(), 10)
	f.delete(f.cron("c001"), metav1.DeleteOptions{})
	exact := f.list(f.cron(""), read.ListOptions{ResourceVersion: at,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	equal(t, "exact", []any{names(exact), strconv.FormatInt(exact.Revision, 10)},
		[]any{[]string{"c000", "c001", "c002"}, at})
	legacy := f.list(f.cron(""), read.ListOptions{ResourceVersion: at, Limit: 2})
	equal(t, "with a limit", names(legacy), []string{"c000", "c001"})
	for _, o := range []read.ListOptions{{}, {ResourceVersion: "0"}, {ResourceVersion: "0", Limit: 1},
		{ResourceVersion: at},
		{ResourceVersion: at, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}} {
		equal(t, fmt.Sprintf("%+v", o), names(f.list(f.cron(""), o)), []string{"c000", "c002"})
	}
	for _, c := range []struct {
		o    read.ListOptions
		code int32
		why  metav1.StatusReason
		text string
	}{
		{read.ListOptions{ResourceVersion: "x"}, 400, metav1.StatusReasonBadRequest, "invalid resource version"},
		{read.ListOptions{ResourceVersionMatch: "Exact"}, 422, metav1.StatusReasonInvalid,
			"resourceVersionMatch is forbidden unless resourceVersion is provided"},
		{read.ListOptions{ResourceVersionMatch: "Exact", ResourceVersion: "0"}, 422, metav1.StatusReasonInvalid,
			`resourceVersionMatch "exact" is forbidden for resourceVersion "0"`},
		{read.ListOptions{ResourceVersionMatch: "Other", ResourceVersion: "1"}, 422, metav1.StatusReasonInvalid,
			"Unsupported value"},
		{read.ListOptions{SendInitialEvents: new(bool)}, 422, metav1.StatusReasonInvalid,
			"sendInitialEvents is forbidden for list"},
	} {
		_, err := f.List(f.ctx, f.cron(""), c.o)
		f.expectStatus(err, c.code, c.why, c.text)
	}
}

// TestFutureRevision checks that a read at a future revision waits for it. If the wait times out, the 504 reports
// the current revision (CRD-061).
func TestFutureRevision(t *testing.T) {
	f := newFixture(t)
	now, err := f.Store.Fresh(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := strconv.FormatInt(now.Revision()+1, 10)
	got := make(chan error)
	go func() {
		_, err := f.Get(f.ctx, f.cron("c000"), next)
		got <- err
	}()
	f.fillCronTabs(1)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	current := f.Store.Head().Revision()
	ctx, cancel := context.WithTimeout(f.ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := f.List(ctx, f.cron(""),
		read.ListOptions{ResourceVersion: strconv.FormatInt(current+1000, 10)}); err == nil {
		t.Fatal("got an older state, want an error")
	}
}

// TestLabelSelectors checks lists with label selectors (CRD-067).
func TestLabelSelectors(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(20)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"plain"}}`)
	for selector, want := range map[string][]string{
		"shard=3":               {"c003", "c013"},
		"shard==3":              {"c003", "c013"},
		"shard in (3,4),shard":  {"c003", "c004", "c013", "c014"},
		"!shard":                {"plain"},
		"shard,shard notin (0)": nil,
		"shard!=3,shard in (3)": {},
		"shard>8":               {"c009", "c019"},
		"nosuch":                {},
	} {
		if want == nil {
			continue
		}
		got := f.list(f.cron(""), read.ListOptions{Labels: labelSelector(t, selector)})
		equal(t, selector, append([]string{}, names(got)...), want)
	}
	equal(
		t,
		"objects that match no selector",
		len(f.list(f.cron(""), read.ListOptions{Labels: labels.Nothing()}).Items),
		0,
	)
}

// TestFieldSelectors checks field selectors on names, on namespaces and on the selectable fields of a version
// (PRN-022, PRN-023).
func TestFieldSelectors(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(6)
	all := f.cron("")
	all.Namespace = ""
	for _, target := range []verb.Target{f.cron(""), all, f.target("stable.example.com", "v2", "crontabs", "default")} {
		for selector, want := range map[string][]string{
			"metadata.name=c002":                               {"c002"},
			"metadata.name!=c002,spec.color=blue":              {"c005"},
			"metadata.namespace=default,metadata.name=c001":    {"c001"},
			"metadata.namespace=other":                         {},
			"metadata.namespace=default,spec.color=red":        {"c000", "c003"},
			"spec.color!=red,spec.color!=blue":                 {"c001", "c004"},
			"metadata.name=c001,spec.color=red":                {},
			"metadata.name=c001,metadata.namespace!=elsewhere": {"c001"},
		} {
			got := f.list(target, read.ListOptions{Fields: fieldSelector(t, selector)})
			equal(t, selector, append([]string{}, names(got)...), want)
		}
	}
	_, err := f.List(f.ctx, f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.image=x")})
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, "field label not supported: spec.image")
	_, err = f.List(f.ctx, f.configMap(""), read.ListOptions{Fields: fieldSelector(t, "data=x")})
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest,
		`"data" is not a known field selector: only "metadata.name", "metadata.namespace"`)
}

// TestListAllNamespaces checks lists of one namespace and of all namespaces (CRD-002).
func TestListAllNamespaces(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.target("", "v1", "namespaces", ""), `{"metadata":{"name":"other"}}`)
	f.mustCreate(f.cron(""), cronTab)
	other := f.cron("")
	other.Namespace = "other"
	f.mustCreate(other, cronTab)
	all := other
	all.Namespace = ""
	equal(t, "all", len(f.list(all, read.ListOptions{}).Items), 2)
	l := f.list(other, read.ListOptions{})
	equal(t, "one", []any{len(l.Items), object.Namespace(treeOf(t, l.Items[0]))}, []any{1, "other"})
}
