// Package encoding encodes objects, lists, watch events and Statuses in the form that a client accepts: as JSON, YAML,
// protobuf or CBOR, and as objects, Tables or PartialObjectMetadata. It negotiates the form from the headers of a
// request, and does not write responses.
package encoding

import (
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// Format is an encoding of objects.
type Format byte

const (
	FormatJSON Format = iota
	FormatYAML
	FormatProtobuf
	FormatCBOR
)

// Offer is a media type that the server supports.
type Offer struct {
	Format    Format
	MediaType string
	subtype   string
	Streams   bool // can be used for watch streams
}

func offers(cbor bool) []Offer {
	all := []Offer{
		{FormatJSON, runtime.ContentTypeJSON, "json", true},
		{FormatYAML, runtime.ContentTypeYAML, "yaml", false},
		{FormatProtobuf, runtime.ContentTypeProtobuf, "vnd.kubernetes.protobuf", true},
	}
	if cbor {
		all = append(all, Offer{FormatCBOR, runtime.ContentTypeCBOR, "cbor", true})
	}
	return all
}

// View is a representation of an object that a client can request in the Accept header.
type view byte

const (
	ViewObject view = iota
	ViewTable
	ViewPartial
	ViewPartialList
)

// Media is the negotiated form of a response.
type Media struct {
	Offer
	Pretty  bool
	View    view
	Version string // version of the view: v1 or v1beta1
}

// negotiate does the same as find without the cache.
func (c *Negotiator) negotiate(header string, v *resource.Version) (Media, bool) {
	accepted := make([]runtime.SerializerInfo, len(c.Offers))
	for i, o := range c.Offers {
		accepted[i] = runtime.SerializerInfo{
			MediaType: o.MediaType, MediaTypeType: "application", MediaTypeSubType: o.subtype,
		}
		if o.Streams {
			accepted[i].StreamSerializer = &runtime.StreamSerializerInfo{}
		}
	}
	options, ok := negotiation.NegotiateMediaTypeOptions(header, accepted, subject{v})
	if !ok {
		return Media{}, false
	}
	i := slices.IndexFunc(c.Offers, func(o Offer) bool { return o.MediaType == options.Accepted.MediaType })
	m := Media{Offer: c.Offers[i], Pretty: options.Pretty}
	if to := options.Convert; to != nil {
		m.View, m.Version = viewsByKind[to.Kind], to.Version
	}
	return m, true
}

// viewsByKind maps the value of the Accept parameter "as" to a view.
var viewsByKind = map[string]view{
	"Table":                     ViewTable,
	"PartialObjectMetadata":     ViewPartial,
	"PartialObjectMetadataList": ViewPartialList,
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
	return ok && (view != ViewTable ||
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

// Negotiator chooses media types. It caches the results for short Accept headers, because clients send few different
// ones. The cache is cleared when it is full.
type Negotiator struct {
	Offers  []Offer // media types that the server supports, in order of preference
	entries atomic.Pointer[map[mediaKey]Media]
}

// NewNegotiator returns a Negotiator. cbor enables CBOR.
func NewNegotiator(cbor bool) *Negotiator { return &Negotiator{Offers: offers(cbor)} }

// mediaKey holds the inputs of negotiate.
type mediaKey struct {
	header                  string
	kind, protobuf, columns bool
}

// Find returns the first media type of an Accept header that the server supports. v is the requested kind, or nil for a
// Status.
func (c *Negotiator) Find(header string, v *resource.Version) (Media, bool) {
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
	m, ok := c.negotiate(header, v)
	if !ok || len(header) > maxCachedHeader {
		return m, ok
	}
	next := make(map[mediaKey]Media, maxCachedMedia)
	if cached != nil && len(*cached) < maxCachedMedia {
		maps.Copy(next, *cached)
	}
	key.header = strings.Clone(header) // the cache must not retain the memory of the request
	next[key] = m
	c.entries.Store(&next) // a concurrent Store can overwrite the new entry, which is then computed again
	return m, ok
}

// NotAcceptable returns the 406 for a request whose Accept header contains no supported media type.
func (c *Negotiator) NotAcceptable() error {
	return negotiation.NewNotAcceptableError(c.mediaTypes(""))
}

// NotStreamable returns the 406 for a watch in a format that cannot be streamed.
func (c *Negotiator) NotStreamable() error {
	var all []string
	for _, o := range c.Offers {
		switch {
		case o.Format == FormatCBOR:
			all = append(all, runtime.ContentTypeCBORSequence)
		case o.Streams:
			all = append(all, o.MediaType+";stream=watch")
		}
	}
	return negotiation.NewNotAcceptableError(all)
}

// UnsupportedBody returns the 415 for a body whose media type is not supported, or is the excluded one.
func (c *Negotiator) UnsupportedBody(excluded string) error {
	return negotiation.NewUnsupportedMediaTypeError(c.mediaTypes(excluded))
}

func (c *Negotiator) mediaTypes(excluded string) []string {
	var all []string
	for _, o := range c.Offers {
		if o.MediaType != excluded {
			all = append(all, o.MediaType)
		}
	}
	return all
}

// OfBody returns the supported media type of a body from its Content-Type. The default is JSON.
func (c *Negotiator) OfBody(header string) (Offer, error) {
	if header == "" || header == runtime.ContentTypeJSON {
		return c.Offers[0], nil
	}
	if t, _, err := mime.ParseMediaType(header); err == nil {
		for _, o := range c.Offers {
			if o.MediaType == t {
				return o, nil
			}
		}
	}
	return Offer{}, c.UnsupportedBody("")
}

// errNotList and errNotObject are the 406 for a view that does not fit the response.
var (
	ErrNotObject = viewError("PartialObjectMetadata", "a list (*unstructured.UnstructuredList)")
	errNotList   = viewError("PartialObjectMetadataList", "not a list (*unstructured.Unstructured)")
)

func viewError(view, object string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "you requested " + view + ", but the requested object is " + object,
	}}
}
