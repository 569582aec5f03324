// Package resource says what a kind is: a Definition with all its versions,
// the compiler from a CustomResourceDefinition to one, and the immutable
// Catalog of all that is served. It knows no verbs and no HTTP.
package resource

import (
	"context"
	"net/url"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/object"
	ourschema "github.com/trellis-k8s/trellis/internal/schema"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// KubernetesVersion is the release whose API and libraries this server has: that of the k8s.io
// modules it is built from.
const KubernetesVersion = "v1.37.2"

// Names are the names of a kind.
type Names struct {
	Plural, Singular, Kind, ListKind string
	ShortNames, Categories           []string
}

// Definition is one kind with all its versions. It is immutable.
type Definition struct {
	Group      string // of the storage identity
	Names      Names
	Namespaced bool
	Prefix     string     // of its storage keys; ends in "/"
	Versions   []*Version // served or not, by priority; of all endpoints
	Storage    *Version   // the one objects are stored at
	Verbs      []string   // announced and served; sorted as upstream announces them
	Behavior   Behavior
	ItemLimits []ItemLimit // of the number of items in lists and maps
	Strategy   *Strategy   // how objects are written; nil for a custom kind, and for one whose Behavior says it all
	PostsTo    *Endpoint   // a subresource to which what is posted goes, by its name; nil: the kind is for itself

	Custom *Custom // nil for a built-in kind
}

// Stored says that there are objects of the kind: it is no question, no way to another kind, and is not computed.
func (d *Definition) Stored() bool {
	return d.Behavior.Review == nil && d.PostsTo == nil && d.Behavior.Compute == nil
}

// Custom is what a Definition made from a CRD knows of it.
type Custom struct {
	Key                   string // storage key of the CRD; "" for one that is stored nowhere and never changes
	Revision              int64  // its Modified
	Established           bool
	Terminating           bool // being deleted: its objects can no longer be created
	Migrating             bool // the condition StorageMigrating is True
	ConversionUnavailable bool // the condition WebhookReachable is False

	PreserveUnknownFields bool // spec.preserveUnknownFields, as only old CRDs have it

	Conversion Conversion
	// ConversionSince is the revision of the CRD with which Conversion became what it is, or a later one.
	ConversionSince int64
	// SpecHash is a hash of all that a CRD says of its objects: its spec, and the conversion it declares. It is made on first
	// use, and means nothing to another process.
	SpecHash func() uint64
	Compiled LazyValue // what internal/conversion makes of Conversion.Declared

	accepted Names // status.acceptedNames
}

// Conversion is how a CRD wants its objects to be converted between versions. The JSON lies in the CRD's bytes;
// equal values mean the same conversion.
type Conversion struct {
	// Webhook is the JSON of spec.conversion.webhook where the strategy is Webhook, else "".
	Webhook string
	// Declared is the JSON string that the annotation ConversionAnnotation has as its value where the strategy
	// is None, else "".
	Declared string
}

// LazyValue keeps what one package makes of a Definition, so that it is made once and dropped with it.
type LazyValue struct {
	once  sync.Once
	value any
}

// Get returns what the first call's compile has returned. It is safe for concurrent use.
func (s *LazyValue) Get(compile func() any) any {
	s.once.Do(func() { s.value = compile() })
	return s.value
}

// ConversionAnnotation is where a CRD with strategy None may say by CEL expressions how the versions follow from
// each other. It is an extension of Trellis; kube-apiserver ignores it.
const ConversionAnnotation = "trellis.dev/conversion"

// Two conditions of a CRD tell of work in a server, which may have ended before it told so.
const (
	// StorageMigrating says whether objects are being written at another storage version.
	StorageMigrating = "StorageMigrating"
	// WebhookReachable is of a CRD whose conversion webhook could not be reached at least once. It is an extension of Trellis.
	WebhookReachable = "ConversionWebhookReachable"
)

// MigrationProgressAnnotation of a StorageVersionMigration says how many objects have been looked at, of how many:
// "1500/5000". It is an extension of Trellis.
const MigrationProgressAnnotation = "trellis.dev/migration-progress"

// Key returns the storage key of an object.
func (d *Definition) Key(namespace, name string) string {
	if d.Namespaced {
		return d.Prefix + namespace + "/" + name
	}
	return d.Prefix + name
}

// Version is one endpoint of a Definition: a group, a version, and how objects
// look there. It is immutable; what is costly is made on first use.
type Version struct {
	Definition         *Definition
	GroupVersion       schema.GroupVersion
	APIVersion         string // GroupVersion.String()
	Served             bool
	Deprecated         bool
	DeprecationWarning string                 // the text of the Warning header, if Deprecated
	RemovedRelease     string                 // the release of Kubernetes without it ("1.22"), if Deprecated; "" for a custom kind
	Columns            []Column               // of a Table; none for a kind that is not shown as one, or that has a Printer
	Printer            *Printer               // makes Tables where Columns are not what does
	columnDefinitions  atomic.Pointer[[]byte] // of Columns, once they have been asked for
	SelectableFields   []SelectableField
	Status             bool   // has /status
	Scale              *Scale // has /scale
	// Subresources are further ones that read and write the whole object as /status does
	// (namespaces/finalize); Behavior's functions get Name as sub.
	Subresources []Subresource

	Type  *GoType                     // what objects are decoded into; nil for a custom kind but one of package extension
	empty atomic.Pointer[object.Tree] // see Empty

	// OpenAPIV3Schema is the JSON of a custom kind's schema as its CRD has it, nil for a
	// built-in one or where the CRD has none.
	OpenAPIV3Schema func() []byte
	// Schema is the compiled schema of a custom kind; nil for a built-in one, whose Go type
	// does the work. Cheap after the first call; safe for concurrent use.
	Schema func() (*ourschema.Schema, error)
	// Parseable is the schema as structured-merge-diff wants it.
	Parseable func() (typed.ParseableType, error)

	// ConvertTo makes a storage version object of one at this version, ConvertFrom the other
	// way round, in Go (Event); nil means that only apiVersion differs. They do not modify
	// what they get, and the result may share parts with it.
	ConvertTo, ConvertFrom func(object.Tree) (object.Tree, error)
	// Default stands in for Behavior.Default where this endpoint fills in by rules of its own;
	// the object is at this version.
	Default func(obj object.Tree)
	// Validate is what a write through this endpoint must fulfil ; nil: nothing. form is the object at this version, with defaults, before anything was reset or
	// converted; obj and old are at the storage version. old is nil on a create, sub is as for Behavior.
	Validate func(form, obj, old object.Tree, sub string) field.ErrorList
}

// Subresource is one more way to the object: a name and the verbs it serves.
type Subresource struct {
	Name  string
	Verbs []string // "get", "patch", "update", or "create" alone; sorted
	// Body is the version of what a POST sends (a Binding). Check judges it by itself, name being the request's, and Act does to
	// the object, at the internal form, what it asks for. An error that is no StatusError is answered as upstream does, with
	// its text and the code 500. nil where the object itself is read and written.
	Body  *Version                               `json:"-"`
	Check func(name string, body Internal) error `json:"-"`
	Act   func(obj, body Internal) error         `json:"-"`
	// AlternateAPIVersion is another apiVersion that Body may have, with the same fields; "" for none.
	AlternateAPIVersion string
	// Delete, in place of Act, says how what is posted deletes the object. It may change obj before.
	Delete func(stored *storage.Snapshot, obj, body Internal, dryRun bool) (Deletion, error) `json:"-"`
	// Do, in place of all of these, does to the object, which it may change, what a body that has a schema asks for. The object is
	// at its storage version. Where the answer is nil, the client gets a Status.
	Do func(ctx context.Context, obj, body object.Tree) (answer object.Tree, err error) `json:"-"`
	// Respond, if not nil, makes the answer to what is posted, in place of Check and Act; name is the object's.
	Respond func(ctx context.Context, name string, body Internal) (Internal, error) `json:"-"`
	// Connect, in place of all of these, leads a request on to somebody else, whatever its method. nil: it does not.
	Connect *Connect `json:"-"`
}

// Connect is a way to what runs behind an object: a container, a node, a Pod.
type Connect struct {
	// Options is the kind of what the query says (PodExecOptions), which admission is asked about.
	Options *Version
	Methods []string // of HTTP
	// Reads says that it is a GET like any other, which admission hears nothing of (a log); Upgrades that the connection becomes
	// another protocol's, for which the caller has to be allowed to create, too.
	Reads, Upgrades bool
	// Streams are first segments of the subpath where Upgrades applies, of a subresource that has it nowhere else.
	Streams []string
	// Subpath is the field of Options for what is behind the subresource in the path; "": there is nothing.
	Subpath string
	// Decode reads options from a query, with defaults; Internal is the form of them that has no version.
	Decode   func(url.Values) (object.Tree, error)
	Internal func(object.Tree) (runtime.Object, error)
}

// Endpoint is a way to the objects of a kind; Subresource is "" for themselves.
type Endpoint struct {
	Resource    schema.GroupVersionResource
	Subresource string
}

// Deletion is one that another request asks for than a DELETE.
type Deletion struct {
	Options metav1.DeleteOptions
	Guards  []storage.Guard // what it relies on
	Related *RelatedWrite   // of another object, in the same commit; nil: of none
}

// RelatedWrite is what happens to an object of the namespace, or of none, along with another one. The error of Do is what the client gets.
type RelatedWrite struct {
	Endpoint Endpoint
	Name     string
	Do       func(obj Internal) error
	// Create, in place of Do, makes the object, which then must not exist; Delete deletes it, if it is there.
	Create object.Tree
	Delete bool
}

// ExtraWrites is what a commit holds besides objects of some kind.
type ExtraWrites struct {
	Writes []storage.Write
	Guards []storage.Guard
}

// Subresource is the one of a name, or nil.
func (v *Version) Subresource(name string) *Subresource {
	for i := range v.Subresources {
		if v.Subresources[i].Name == name {
			return &v.Subresources[i]
		}
	}
	return nil
}

// GroupResource is for error messages.
func (v *Version) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: v.GroupVersion.Group, Resource: v.Definition.Names.Plural}
}

// GroupVersionKind of the objects at this version.
func (v *Version) GroupVersionKind() schema.GroupVersionKind {
	return v.GroupVersion.WithKind(v.Definition.Names.Kind)
}

// Column is one column of a Table.
type Column struct {
	Name, Type, Format, Description string
	Priority                        int32
	// Path, if not empty, is a plain path of field names at which the cell's value
	// lies, so that it can be read from bytes without decoding.
	Path []string
	// Cell computes the cell from a decoded object; nil where Path says it all. A nil
	// result is an empty cell.
	Cell func(object.Tree) any
	// Age says that the value found by Path or Cell is an RFC 3339 timestamp and that clients
	// are shown the time since then; an empty string is "<unknown>".
	Age bool
}

// SelectableField is one field that field selectors may name.
type SelectableField struct {
	Name string   // as selectors write it: "spec.color"
	Path []string // where it lies
	// Fallback is the name of the selectable field whose value counts where this one has none; "" for no other.
	Fallback string
	// Zero is the value where there is none ("false").
	Zero string
}

// Scale says where the scale subresource finds its values.
type Scale struct {
	SpecReplicas, StatusReplicas, LabelSelector []string
	// Selector writes what lies at LabelSelector as text; nil where it is text.
	Selector func(any) (string, error)
}

// Behavior is what a kind does by itself in the course of a write. Every field may be
// nil. Functions that get an object may modify it; old is never modified. All objects are at the
// storage version.
type Behavior struct {
	// Default fills in what the client left out.
	Default func(obj object.Tree)
	// PrepareCreate and PrepareUpdate reset what clients may not set. sub is "" or
	// the subresource written to.
	PrepareCreate func(ctx context.Context, obj object.Tree) error
	PrepareUpdate func(ctx context.Context, obj, old object.Tree, sub string) error
	// Review makes the kind a question (SelfSubjectReview): the body of a POST is decoded, strictly
	// if asked to, admitted, and then answered 201 with what Answer returns; no other function
	// of Behavior is called, metadata gets managedFields but is not checked, and nothing is stored. obj
	// belongs to Answer; ctx tells whose request it is as upstream's do. The error is a StatusError.
	Review func(ctx context.Context, obj object.Tree) (object.Tree, error)
	// Compute makes the objects of the kind, by name, for each request that reads them (ComponentStatus). Nothing is stored, the objects
	// have no resourceVersion, and Verbs are get and list.
	Compute func(ctx context.Context) []object.Tree
	// Warnings for the client; old is nil on a create.
	Warnings func(obj, old object.Tree) []string
	// Guards of the commit that writes obj.
	Guards func(ctx context.Context, obj object.Tree) []storage.Guard
	// RelatedWrites is what happens to other objects in the commit of a write: was is what is stored, nil on a create, and obj what is to
	// be stored, nil where the object goes.
	RelatedWrites func(was *storage.Record, obj object.Tree) []RelatedWrite
	// ReserveCapacity is what else the commit of a write enters, by the state that there is at the time: was is what is stored and old the
	// same as a tree, both nil on a create; obj is what is to be stored, nil where the object goes, and stored the same as JSON.
	ReserveCapacity func(was *storage.Record, old, obj object.Tree, stored []byte) (ExtraWrites, error)
	// BeforeDelete may refuse a delete, or change the object (set a phase) when deletion
	// starts; obj is a copy.
	BeforeDelete func(ctx context.Context, obj object.Tree) error
	// Deletable says that an object marked for deletion has nothing left to wait for,
	// beyond metadata.finalizers.
	Deletable func(obj object.Tree) bool

	// UnconditionalUpdate: a PUT without resourceVersion is allowed.
	UnconditionalUpdate bool
	// CreateOnUpdate: a PUT of a name that does not exist creates it.
	CreateOnUpdate bool
	// AtomicLists are the dotted paths of large lists that managedFields only ever names as a whole.
	AtomicLists []string
	// TTL of new and updated objects in seconds, 0 none (Event).
	TTL int64
	// OrphanWarning is for who deletes an object without saying what becomes of its dependents; "" for no warning.
	OrphanWarning string
	// PreconditionFailed begins what is said of a delete whose preconditions are not met, of a kind for which upstream has
	// words of its own.
	PreconditionFailed string
	// HiddenAnnotation is left out where an object's metadata is shown alone; "" for none.
	HiddenAnnotation string
	// ReturnsDeleted: a delete is answered with the object, not with a Status.
	ReturnsDeleted bool
}
