package read

import (
	"context"
	"errors"
	"iter"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	listExpired  = "The resourceVersion for the provided list is too old."
	tokenExpired = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, " +
		"or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - " +
		"objects that were created, modified, or deleted between the time the first chunk was returned and now " +
		"may show up in the list."
	noRevisionWithToken = "specifying resource version is not allowed when using continue"
)

// ListOptions are the options of list and watch, with parsed selectors.
type ListOptions struct {
	Labels               labels.Selector // nil selects everything
	Fields               fields.Selector // nil selects everything
	ResourceVersion      string
	ResourceVersionMatch metav1.ResourceVersionMatch
	Limit                int64
	Continue             string
	// Options of a watch.
	AllowWatchBookmarks bool
	SendInitialEvents   *bool
}

// List is one page of a consistent list.
type List struct {
	Version   *resource.Version
	Revision  int64
	Continue  string
	Remaining *int64
	Items     []record.Object
}

// query is a list or watch in the form of storage keys.
type query struct {
	*selector
	prefix  string // prefix of all keys to read, or the only key if single is true
	single  bool
	indexes *indexes
}

// newQuery returns the query of a list or watch.
func (r *Reader) newQuery(t verb.Target, o *ListOptions) (*query, error) {
	s, err := newSelector(r.Of(t), o)
	if err != nil {
		return nil, err
	}
	d, namespace := t.Version.Definition, t.Namespace
	if name, ok := exact(o.Fields, "metadata.namespace"); ok && namespace == "" && d.Namespaced &&
		len(validation.ValidateNamespaceName(name, false)) == 0 {
		namespace = name
	}
	q := &query{selector: s, prefix: d.Prefix, indexes: &r.indexes}
	if d.Namespaced && namespace != "" {
		q.prefix += namespace + "/"
	}
	name, ok := exact(o.Fields, "metadata.name")
	if ok && name != "" && !strings.Contains(name, "/") && (namespace != "" || !d.Namespaced) {
		q.prefix, q.single = d.Key(namespace, name), true
	}
	return q, nil
}

// Count returns the number of stored objects of a collection.
func (r *Reader) Count(t verb.Target) int {
	prefix := t.Version.Definition.Prefix
	if t.Namespace != "" {
		prefix += t.Namespace + "/"
	}
	return r.Store.Head().Count(prefix, "")
}

// List returns the objects of a collection.
func (r *Reader) List(ctx context.Context, t verb.Target, o ListOptions) (*List, error) {
	if err := validateListOptions(&o, false); err != nil {
		return nil, err
	}
	q, err := r.newQuery(t, &o)
	if err != nil {
		return nil, err
	}
	if d := t.Version.Definition; d.Behavior.Compute != nil {
		snap, err := computed(ctx, d)
		if err != nil {
			return nil, err
		}
		return q.page(ctx, snap, "", 0)
	}
	snap, start, err := r.snapshot(ctx, q, &o)
	if err != nil {
		return nil, err
	}
	if o.ResourceVersion == "0" && o.Continue == "" {
		o.Limit = 0 // as in upstream, whose watch cache ignores the limit for resourceVersion "0"
	}
	if q.single {
		return q.listOne(ctx, snap)
	}
	return q.page(ctx, snap, start, o.Limit)
}

// validateListOptions checks the combination of options of a list or watch.
func validateListOptions(o *ListOptions, watch bool) error {
	if o.ResourceVersionMatch == "" && o.SendInitialEvents == nil {
		return nil
	}
	errs := listvalidation.ValidateListOptions(&internalversion.ListOptions{
		Watch:                watch,
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		SendInitialEvents:    o.SendInitialEvents,
		Continue:             o.Continue,
	}, true)
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
}

// snapshot returns the snapshot to list and the key to start at. The key "" means the first object.
func (r *Reader) snapshot(ctx context.Context, q *query, o *ListOptions) (*storage.Snapshot, string, error) {
	if o.Continue != "" {
		return r.resume(ctx, q, o)
	}
	if o.ResourceVersion == "" {
		snap, err := r.Newest(ctx)
		return snap, "", err
	}
	revision, err := parseRevision(o.ResourceVersion)
	if err != nil {
		return nil, "", apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		o.ResourceVersionMatch == "" && o.Limit > 0 && revision > 0 && !q.single {
		snap, err := r.atRevision(ctx, revision)
		var compacted *storage.CompactedError
		if errors.As(err, &compacted) {
			err = apierrors.NewResourceExpired(listExpired)
		}
		return snap, "", verb.Status(err)
	}
	snap, err := r.waitForRevision(ctx, revision)
	return snap, "", err
}

// atRevision returns the snapshot at revision. If the store has not reached the revision, it waits.
func (r *Reader) atRevision(ctx context.Context, revision int64) (*storage.Snapshot, error) {
	if _, err := r.waitForRevision(ctx, revision); err != nil {
		return nil, err
	}
	snap, err := r.Store.At(ctx, revision)
	if errors.Is(err, storage.ErrFailed) {
		err = verb.ErrHistoryLost
	}
	return snap, err
}

// resume returns the snapshot of a continue token and the key to start at.
func (r *Reader) resume(ctx context.Context, q *query, o *ListOptions) (*storage.Snapshot, string, error) {
	start, revision, err := decodeToken(o.Continue, q.prefix)
	if err != nil {
		return nil, "", err
	}
	if o.ResourceVersion != "" && o.ResourceVersion != "0" {
		return nil, "", apierrors.NewBadRequest(noRevisionWithToken)
	}
	if revision < 0 {
		snap, err := r.Newest(ctx)
		return snap, start, err
	}
	snap, err := r.atRevision(ctx, revision)
	var compacted *storage.CompactedError
	if errors.As(err, &compacted) {
		expired := apierrors.NewResourceExpired(tokenExpired)
		expired.ErrStatus.ListMeta.Continue = encodeToken(strings.TrimSuffix(start, "\x00"), q.prefix, latestRevision)
		return nil, "", expired
	}
	return snap, start, verb.Status(err)
}

// listOne returns the list of a query for a single name.
func (q *query) listOne(ctx context.Context, snap *storage.Snapshot) (*List, error) {
	l := &List{Version: q.view.Version, Revision: snap.Revision()}
	rec := snap.Get(q.prefix)
	if rec == nil {
		return l, nil
	}
	recs, err := q.view.Preconvert(ctx, []*storage.Record{rec})
	if err != nil {
		return nil, err
	}
	_, err = q.add(ctx, l, recs[0], 0)
	return l, err
}

// page returns up to limit matching objects of the snapshot, beginning at start. A limit of 0 means no limit.
func (q *query) page(ctx context.Context, snap *storage.Snapshot, start string, limit int64) (*List, error) {
	l := &List{Version: q.view.Version, Revision: snap.Revision()}
	after := strings.TrimSuffix(start, "\x00")
	if q.empty() {
		l.Items = make([]record.Object, 0, q.expectedCount(snap, after, limit))
	}
	// The start key of a token of another server may be an existing key. The page then includes that object.
	walk := q.records(snap, after)
	if rec := snap.Get(start); rec != nil && start == after {
		walk = startingWith(rec, walk)
	}
	var failed error
	if q.view.Remote {
		walk = q.preconverted(ctx, walk, limit, &failed)
	}
	for rec := range walk {
		full, err := q.add(ctx, l, rec, limit)
		if err != nil {
			return nil, err
		}
		if full {
			q.truncate(l, snap)
			break
		}
	}
	if failed != nil {
		return nil, failed
	}
	return l, verb.Status(ctx.Err())
}

func startingWith(first *storage.Record, rest iter.Seq[*storage.Record]) iter.Seq[*storage.Record] {
	return func(yield func(*storage.Record) bool) {
		if yield(first) {
			rest(yield)
		}
	}
}

// preconvertBatch is the maximum number of objects of a list that the engine passes to the converter together. The
// converter divides them into calls of the webhook.
const preconvertBatch = 2500

// preconverted yields the records of walk after a webhook has converted them in batches. If a conversion fails, it
// sets failed and stops.
func (q *query) preconverted(
	ctx context.Context, walk iter.Seq[*storage.Record], limit int64, failed *error,
) iter.Seq[*storage.Record] {
	size := preconvertBatch
	if limit > 0 && q.empty() {
		size = int(min(limit+1, preconvertBatch)) // one more than limit, to detect whether another page follows
	}
	return func(yield func(*storage.Record) bool) {
		ahead := make([]*storage.Record, 0, size)
		flush := func() bool {
			var converted []*storage.Record
			converted, *failed = q.view.Preconvert(ctx, ahead)
			ahead = ahead[:0]
			for _, rec := range converted {
				if !yield(rec) {
					return false
				}
			}
			return *failed == nil
		}
		for rec := range walk {
			if ahead = append(ahead, rec); len(ahead) == size && !flush() {
				return
			}
		}
		flush()
	}
}

func (q *query) expectedCount(snap *storage.Snapshot, after string, limit int64) int64 {
	n := int64(snap.Count(q.prefix, after))
	if limit > 0 {
		n = min(n, limit)
	}
	return n
}

// add appends rec to the page if it matches. If the page is already full, it does not append rec, and full is true.
func (q *query) add(ctx context.Context, l *List, rec *storage.Record, limit int64) (full bool, err error) {
	if limit > 0 && int64(len(l.Items)) >= limit {
		return true, nil
	}
	if !q.matches(rec) {
		return false, nil
	}
	o, err := q.view.Read(ctx, rec)
	if err == nil {
		l.Items = append(l.Items, o)
	}
	return false, err
}

// truncate sets the continue token of a page that other pages follow.
func (q *query) truncate(l *List, snap *storage.Snapshot) {
	last := l.Items[len(l.Items)-1].Record.Key
	l.Continue = encodeToken(last, q.prefix, l.Revision)
	if q.empty() {
		n := int64(snap.Count(q.prefix, last))
		l.Remaining = &n
	}
}
