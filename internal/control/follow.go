package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
	"k8s.io/klog/v2"
)

// follower follows the metadata of one kind's objects: it is told of them by a Feed or, where there is none, by a list and then a
// watch, anew as often as need be. There is one for every kind that is served, so it keeps no object, and a watch is one
// goroutine; client-go's Reflector takes four.
type follower struct {
	kinds   *kinds
	kind    kind
	ctx     context.Context // done when the kind is followed no longer
	stop    context.CancelFunc
	started time.Time
	synced  atomic.Bool
}

const (
	pageSize = 500
	// watchFor is how long a watch lasts at least.
	watchFor = 5 * time.Minute
	// The pause after an error doubles from the one to the other.
	shortestPause, longestPause = 200 * time.Millisecond, 30 * time.Second

	acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)

// run follows until ctx is done.
func (f *follower) run() {
	for wait := shortestPause; ; wait = min(2*wait, longestPause) {
		version, err := f.list()
		for err == nil {
			wait = shortestPause
			version, err = f.watch(version)
		}
		if f.ctx.Err() != nil {
			return
		}
		klog.FromContext(f.ctx).V(1).Info("will follow again", "kind", f.kind, "reason", err.Error())
		if apierrors.IsNotFound(err) {
			f.kinds.mark(f.kind.Group)
		}
		if isExpired(err) {
			continue // listing anew is all there is to do
		}
		pause(f.ctx, wait+rand.N(wait))
	}
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// list passes on all objects, and returns as of when they are.
func (f *follower) list() (version string, err error) {
	client := f.kinds.clients.metadata.Resource(f.kind.GroupVersionResource)
	listed := []*metav1.PartialObjectMetadata{}
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		page, err := client.List(f.ctx, options)
		if isExpired(err) && options.Continue != "" {
			options, version, listed = metav1.ListOptions{}, "", listed[:0] // it takes too long by pages
			continue
		}
		if err != nil {
			return "", err
		}
		if version == "" {
			version = page.ResourceVersion
		}
		for i := range page.Items {
			listed = append(listed, strip(&page.Items[i]))
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	asOf, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		asOf = math.MaxInt64
	}
	f.replace(listed, asOf)
	return version, nil
}

// strip lets go of what no loop reads.
func strip(m *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	m.ManagedFields, m.Labels, m.Annotations = nil, nil, nil
	return m
}

// watch passes on what happens after version, and returns how far it came. An error means that
// the kind has to be listed anew.
func (f *follower) watch(version string) (string, error) {
	events, err := f.kinds.clients.stream.open(f.ctx, f.kind, version)
	if err != nil {
		return version, err
	}
	defer events.Close()
	began, from := time.Now(), version
	for {
		event, o, err := events.Decode()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if version == from && time.Since(began) < time.Second {
				return version, fmt.Errorf("the watch of %s ended at once", f.kind.Resource)
			}
			return version, f.ctx.Err()
		case err != nil:
			return version, err
		case event == watch.Error:
			return version, apierrors.FromObject(o)
		}
		m, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return version, fmt.Errorf("an event of %s holds a %T", f.kind.Resource, o)
		}
		version = m.ResourceVersion
		if event != watch.Bookmark {
			f.pass(strip(m), event == watch.Deleted)
		}
	}
}

// replace passes on a whole list.
func (f *follower) replace(listed []*metav1.PartialObjectMetadata, revision int64) {
	if f.ctx.Err() != nil {
		return
	}
	f.kinds.onChange(change{kind: f.kind, listed: listed, asOf: uint64(revision)})
	f.synced.Store(true)
	if f.kind.groupKind() == crdKind {
		f.kinds.mark(allGroups)
	}
}

func (f *follower) pass(m *metav1.PartialObjectMetadata, deleted bool) {
	if f.ctx.Err() != nil {
		return
	}
	f.kinds.onChange(change{kind: f.kind, object: m, deleted: deleted})
	if f.kind.groupKind() == crdKind {
		if deleted {
			f.kinds.unfollow(m.Name, versionOf(m))
		}
		_, group, _ := strings.Cut(m.Name, ".")
		f.kinds.mark(group)
	}
}

// stream opens watches that are read by whoever asks, without a goroutine that reads ahead.
type stream struct {
	rest       rest.Interface // for addresses
	http       *http.Client
	negotiator runtime.ClientNegotiator
}

func newStream(config *rest.Config, addresses rest.Interface) (*stream, error) {
	config = metadata.ConfigFor(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("watch client: %w", err)
	}
	return &stream{addresses, client, runtime.NewClientNegotiator(config.NegotiatedSerializer, schema.GroupVersion{})}, nil
}

// open begins a watch of the metadata of a kind's objects after version, which ends with ctx.
func (s *stream) open(ctx context.Context, k kind, version string) (*restwatch.Decoder, error) {
	path := []string{"/apis", k.Group, k.Version, k.Resource}
	if k.Group == "" {
		path = []string{"/api", k.Version, k.Resource}
	}
	seconds := int64((watchFor + rand.N(watchFor)).Seconds())
	url := s.rest.Get().AbsPath(path...).Param("watch", "true").Param("allowWatchBookmarks", "true").
		Param("resourceVersion", version).Param("timeoutSeconds", strconv.FormatInt(seconds, 10)).URL()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
	}
	request.Header.Set("Accept", acceptMetadata)
	response, err := s.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // so that the connection can be used again
		return nil, apierrors.NewGenericServerResponse(response.StatusCode, "watch", schema.GroupResource{Group: k.Group, Resource: k.Resource}, "", response.Status, 0, true)
	}
	mediaType, params, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err == nil {
		object, frame, framer, wrong := s.negotiator.StreamDecoder(mediaType, params)
		if err = wrong; err == nil {
			return restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(response.Body), frame), object), nil
		}
	}
	_ = response.Body.Close() // nothing more can be done about it
	return nil, fmt.Errorf("watch %s: %w", k.Resource, err)
}
