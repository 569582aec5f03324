package api

import (
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaCBOR     = "application/cbor"
	mediaCBORSeq  = "application/cbor-seq"
)

// format is an encoding of objects.
type format byte

const (
	formatJSON format = iota
	formatYAML
	formatProtobuf
	formatCBOR
)

// offer is a media type that the server supports.
type offer struct {
	format  format
	media   string
	subtype string
	streams bool // can be used for watch streams
}

func offers(cbor bool) []offer {
	all := []offer{
		{formatJSON, mediaJSON, "json", true},
		{formatYAML, mediaYAML, "yaml", false},
		{formatProtobuf, mediaProtobuf, "vnd.kubernetes.protobuf", true},
	}
	if cbor {
		all = append(all, offer{formatCBOR, mediaCBOR, "cbor", true})
	}
	return all
}

// view is a representation of an object that a client can request in the Accept header.
type view byte

const (
	viewObject view = iota
	viewTable
	viewPartial
	viewPartialList
)

// media is the negotiated form of a response.
type media struct {
	offer
	pretty  bool
	view    view
	version string // version of the view: v1 or v1beta1
}

// negotiate returns the first media type of the Accept header that the server supports. v is the requested kind,
// or nil for a Status.
func negotiate(header string, offers []offer, v *resource.Version) (media, bool) {
	accepted := make([]runtime.SerializerInfo, len(offers))
	for i, o := range offers {
		accepted[i] = runtime.SerializerInfo{
			MediaType: o.media, MediaTypeType: "application", MediaTypeSubType: o.subtype,
		}
		if o.streams {
			accepted[i].StreamSerializer = &runtime.StreamSerializerInfo{}
		}
	}
	options, ok := negotiation.NegotiateMediaTypeOptions(header, accepted, subject{v})
	if !ok {
		return media{}, false
	}
	i := slices.IndexFunc(offers, func(o offer) bool { return o.media == options.Accepted.MediaType })
	m := media{offer: offers[i], pretty: options.Pretty}
	if to := options.Convert; to != nil {
		m.view, m.version = viewsByKind[to.Kind], to.Version
	}
	return m, true
}

// viewsByKind maps the value of the Accept parameter "as" to a view.
var viewsByKind = map[string]view{
	"Table":                     viewTable,
	"PartialObjectMetadata":     viewPartial,
	"PartialObjectMetadataList": viewPartialList,
}

// subject is the kind of a response. It implements upstream's negotiation.EndpointRestrictions. The field v is nil
// for a Status.
type subject struct{ v *resource.Version }

// AllowsMediaTypeTransform reports whether the response can be encoded as subtype. If target is set, it reports
// whether the response can be converted to target and then encoded.
func (s subject) AllowsMediaTypeTransform(_, subtype string, target *schema.GroupVersionKind) bool {
	if target == nil {
		return s.v == nil || s.v.HasProtobuf() || subtype != "vnd.kubernetes.protobuf"
	}
	if s.v == nil || target.Group != metav1.GroupName || target.Version != "v1" && target.Version != "v1beta1" {
		return false
	}
	view, ok := viewsByKind[target.Kind]
	return ok && (view != viewTable ||
		(len(s.v.Columns) > 0 || s.v.Printer != nil) && (subtype == "json" || subtype == "yaml"))
}

// AllowsServerVersion reports whether the server supports the value of the Accept parameter sv.
func (s subject) AllowsServerVersion(version string) bool { return s.v != nil && version == "v1" }

// AllowsStreamSchema reports whether the server supports the value of the Accept parameter stream.
func (subject) AllowsStreamSchema(schema string) bool { return schema == "watch" }

const (
	maxCachedMedia  = 64
	maxCachedHeader = 256
)

// mediaCache caches the results of negotiate for short Accept headers, because clients send few different ones.
// It is cleared when it is full. The zero value is ready for use.
type mediaCache struct {
	entries atomic.Pointer[map[mediaKey]media]
}

// mediaKey holds the inputs of negotiate.
type mediaKey struct {
	header                  string
	kind, protobuf, columns bool
}

// find returns the cached result of negotiate, or calls negotiate.
func (c *mediaCache) find(header string, offers []offer, v *resource.Version) (media, bool) {
	key := mediaKey{
		header:   header,
		kind:     v != nil,
		protobuf: v != nil && v.Type != nil && !v.Type.NoProtobuf,
		columns:  v != nil && (len(v.Columns) > 0 || v.Printer != nil),
	}
	cached := c.entries.Load()
	if cached != nil {
		if m, ok := (*cached)[key]; ok {
			return m, true
		}
	}
	m, ok := negotiate(header, offers, v)
	if !ok || len(header) > maxCachedHeader {
		return m, ok
	}
	next := make(map[mediaKey]media, maxCachedMedia)
	if cached != nil && len(*cached) < maxCachedMedia {
		maps.Copy(next, *cached)
	}
	key.header = strings.Clone(header) // the cache must not retain the memory of the request
	next[key] = m
	c.entries.Store(&next) // a concurrent Store can overwrite the new entry, which is then computed again
	return m, ok
}

// negotiate chooses the media type of the response. It rejects a patch of an unsupported type.
func (q *request) negotiate() bool {
	if q.v == nil || q.connectTo != nil && !q.connectTo.Reads {
		return true // another handler chooses the media type
	}
	var err error
	if q.verb == verbPatch && q.connectTo == nil {
		err = q.checkPatchType()
	}
	m, ok := q.server.mediaCache.find(q.r.Header.Get("Accept"), q.server.offers, q.v)
	if !ok && err == nil {
		err = negotiation.NewNotAcceptableError(mediaTypes(q.server.offers, false))
	}
	if err != nil {
		q.fail(err)
		return false
	}
	m.pretty = (m.pretty || q.pretty()) && m.format == formatJSON
	q.media = m
	return true
}

func mediaTypes(offers []offer, stream bool) []string {
	var all []string
	for _, o := range offers {
		switch {
		case !stream:
			all = append(all, o.media)
		case o.format == formatCBOR:
			all = append(all, mediaCBORSeq)
		case o.streams:
			all = append(all, o.media+";stream=watch")
		}
	}
	return all
}

func mediaError(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// bodyFormat returns the encoding of a body from its Content-Type. The default is JSON.
func bodyFormat(r *http.Request, offers []offer) (format, error) {
	header := r.Header.Get("Content-Type")
	if header == "" || header == mediaJSON {
		return formatJSON, nil
	}
	if t, _, err := mime.ParseMediaType(header); err == nil {
		for _, o := range offers {
			if o.media == t {
				return o.format, nil
			}
		}
	}
	return 0, negotiation.NewUnsupportedMediaTypeError(mediaTypes(offers, false))
}

// pretty reports whether the response should be indented for a human reader.
func (q *request) pretty() bool {
	if strings.Contains(q.r.URL.RawQuery, "pretty") {
		if p := q.query().Get("pretty"); p != "" {
			on, _ := strconv.ParseBool(p) // like upstream, an invalid value means false
			return on
		}
	}
	agent := q.r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") ||
		strings.HasPrefix(agent, "Mozilla/5.0")
}
