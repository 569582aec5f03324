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

// format is an encoding.
type format byte

const (
	formatJSON format = iota
	formatYAML
	formatProtobuf
	formatCBOR
)

// offer is an encoding that the server speaks.
type offer struct {
	format  format
	media   string
	subtype string
	streams bool // has a form for watch streams
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

// view is another form of an object that clients can ask for.
type view byte

const (
	viewObject view = iota
	viewTable
	viewPartial
	viewPartialList
)

// media is what a response is written in.
type media struct {
	offer
	pretty  bool
	view    view
	version string // of the view: v1 or v1beta1
}

// negotiate finds the first media type of the Accept header that can be served.
// v is the kind asked for, nil for a Status.
func negotiate(header string, offers []offer, v *resource.Version) (media, bool) {
	accepted := make([]runtime.SerializerInfo, len(offers))
	for i, o := range offers {
		accepted[i] = runtime.SerializerInfo{MediaType: o.media, MediaTypeType: "application", MediaTypeSubType: o.subtype}
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
		m.view, m.version = views[to.Kind], to.Version
	}
	return m, true
}

// views are what clients call them.
var views = map[string]view{"Table": viewTable, "PartialObjectMetadata": viewPartial, "PartialObjectMetadataList": viewPartialList}

// subject is the kind that a response is about, or none. It is upstream's negotiation.EndpointRestrictions.
type subject struct{ v *resource.Version }

// AllowsMediaTypeTransform decides on an encoding, and on a view if there is a target.
func (s subject) AllowsMediaTypeTransform(_, subtype string, target *schema.GroupVersionKind) bool {
	if target == nil {
		return s.v == nil || s.v.HasProtobuf() || subtype != "vnd.kubernetes.protobuf"
	}
	if s.v == nil || target.Group != metav1.GroupName || target.Version != "v1" && target.Version != "v1beta1" {
		return false
	}
	view, ok := views[target.Kind]
	return ok && (view != viewTable || (len(s.v.Columns) > 0 || s.v.Printer != nil) && (subtype == "json" || subtype == "yaml"))
}

// AllowsServerVersion decides on the parameter sv.
func (s subject) AllowsServerVersion(version string) bool { return s.v != nil && version == "v1" }

// AllowsStreamSchema decides on the parameter stream.
func (subject) AllowsStreamSchema(schema string) bool { return schema == "watch" }

const (
	maxChoices      = 64
	maxChoiceHeader = 256
)

// choices keeps what negotiate has found for some headers: clients send few different ones. When there are too many,
// it starts anew. The zero value is ready.
type choices struct {
	known atomic.Pointer[map[choice]media]
}

// choice is a header and what else its meaning depends on.
type choice struct {
	header                  string
	kind, protobuf, columns bool
}

// find is negotiate.
func (c *choices) find(header string, offers []offer, v *resource.Version) (media, bool) {
	key := choice{header, v != nil, v != nil && v.Type != nil && !v.Type.NoProtobuf, v != nil && (len(v.Columns) > 0 || v.Printer != nil)}
	known := c.known.Load()
	if known != nil {
		if m, ok := (*known)[key]; ok {
			return m, true
		}
	}
	m, ok := negotiate(header, offers, v)
	if !ok || len(header) > maxChoiceHeader {
		return m, ok
	}
	next := make(map[choice]media, maxChoices)
	if known != nil && len(*known) < maxChoices {
		maps.Copy(next, *known)
	}
	key.header = strings.Clone(header) // not all that it came in
	next[key] = m
	c.known.Store(&next) // where somebody else has done so, too, one of them is found again later
	return m, ok
}

// negotiate sets the media type of the response.
func (q *request) negotiate() error {
	m, ok := q.server.choices.find(q.r.Header.Get("Accept"), q.server.offers, q.v)
	if !ok {
		return negotiation.NewNotAcceptableError(mediaTypes(q.server.offers, false))
	}
	m.pretty = (m.pretty || pretty(q.r)) && m.format == formatJSON
	q.media = m
	return nil
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

// bodyFormat is the encoding of a body by its Content-Type; JSON where there is none.
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

// pretty says whether a human is thought to read along.
func pretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if p := r.URL.Query().Get("pretty"); p != "" {
			on, _ := strconv.ParseBool(p) // what is no truth value is false, as upstream has it
			return on
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
