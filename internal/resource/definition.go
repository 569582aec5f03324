// Package resource defines kinds. A Definition describes a kind with all its versions. The package also converts
// objects of built-in kinds between their forms. It must not import packages for verbs or HTTP.
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

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// KubernetesVersion is the Kubernetes release whose API and libraries this server provides. It is the release of
// the k8s.io modules in go.mod.
const KubernetesVersion = "v1.37.2"

// Names are the names of a kind.
type Names struct {
	Plural, Singular, Kind, ListKind string
	ShortNames, Categories           []string
}

// Definition is one kind with all its versions. It is immutable.
type Definition struct {
	Group      string // group of the storage version
	Names      Names
	Namespaced bool
	Prefix     string     // prefix of the storage keys, ending in "/"
	Versions   []*Version // served and unserved versions of all groups, by priority
	Storage    *Version   // storage version
	Verbs      []string   // served verbs, in upstream's order for discovery
	Behavior   Behavior
	ItemLimits []ItemLimit // limits on the number of items in lists and maps
	Strategy   *Strategy   // nil for a custom kind, and for a kind that Behavior describes completely

	// PostsTo is the subresource to which a POST of this kind is redirected. The name of the posted object selects
	// the target object. nil means that there is no redirection.
	PostsTo *Endpoint
	Routing Routing
	// Unstructured specifies that lists have the form of upstream's unstructured lists, which contain an empty
	// continue token.
	Unstructured bool

	Terminating           bool // the CRD of the kind is being deleted, so no objects can be created
	PreserveUnknownFields bool // spec.preserveUnknownFields, which only old CRDs set

	Custom *Custom // nil for a built-in kind
}

// Routing specifies which requests to the paths of a kind are rejected, and with which errors.
type Routing uint8

// HandlerPerPath is the routing of kube-apiserver's own kinds, which have a handler for each path and each method.
// HandlerPerKind is the routing of apiextensions-apiserver, which has one handler for all paths of custom kinds.
const (
	HandlerPerPath Routing = iota
	HandlerPerKind
)

// Stored reports whether objects of the kind are stored. Reviews, computed kinds, and kinds with PostsTo are not
// stored.
func (d *Definition) Stored() bool {
	return d.Behavior.Review == nil && d.PostsTo == nil && d.Behavior.Compute == nil
}

// Version returns the version with an apiVersion, or nil.
func (d *Definition) Version(apiVersion string) *Version {
	for _, v := range d.Versions {
		if v.APIVersion == apiVersion {
			return v
		}
	}
	return nil
}

// Conversion returns the conversion that the CRD of a custom kind specifies.
func (d *Definition) Conversion() Conversion {
	if d.Custom == nil {
		return Conversion{}
	}
	return d.Custom.Conversion
}

// CRD returns the storage key of the CRD of a custom kind and the revision of its last change. The key is "" if the
// kind has no stored CRD.
func (d *Definition) CRD() (key string, revision int64) {
	if d.Custom == nil {
		return "", 0
	}
	return d.Custom.Key, d.Custom.Revision
}

// Custom holds the parts of a Definition that only CRDs have.
type Custom struct {
	Key                   string // storage key of the CRD, "" for a CRD that is not stored and never changes
	Revision              int64  // revision of the CRD's last change
	Migrating             bool   // the condition StorageMigrating is True
	ConversionUnavailable bool   // the condition WebhookReachable is False

	Conversion Conversion
	// ConversionSince is the revision of the CRD that set Conversion to its current value, or a later revision.
	ConversionSince int64
	// SpecHash returns a hash of the parts of a CRD that affect its objects: its spec and its declared conversion.
	// The hash is computed on first use. It is valid only in this process.
	SpecHash func() uint64
	Compiled LazyValue // Conversion.Declared, compiled by internal/crd/conversion

	Accepted Names // status.acceptedNames
}

// Conversion specifies how objects of a CRD are converted between versions. Its strings point into the CRD's bytes.
// Equal values specify the same conversion.
type Conversion struct {
	// Webhook is the JSON of spec.conversion.webhook if the strategy is Webhook, and "" otherwise.
	Webhook string
	// Declared is the value of ConversionAnnotation as a JSON string if the strategy is None, and "" otherwise.
	Declared string
}

// LazyValue caches a value that another package computes from a Definition. The value is computed once and released
// together with the Definition.
type LazyValue struct {
	once  sync.Once
	value any
}

// Get returns the value. The first call computes it with compile. Get is safe for concurrent use.
func (s *LazyValue) Get(compile func() any) any {
	s.once.Do(func() { s.value = compile() })
	return s.value
}

// ConversionAnnotation is the annotation of a CRD with strategy None that declares conversions between versions as
// CEL expressions. It is an extension of Trellis. kube-apiserver ignores it.
const ConversionAnnotation = "trellis.dev/conversion"

// Conditions of a CRD that report background work in a server. The work may have ended before the server updated
// the condition.
const (
	// StorageMigrating is the condition that objects are being rewritten at another storage version.
	StorageMigrating = "StorageMigrating"
	// WebhookReachable is the condition of a CRD whose conversion webhook has been unreachable at least once. It is
	// an extension of Trellis.
	WebhookReachable = "ConversionWebhookReachable"
)

// MigrationProgressAnnotation is the annotation of a StorageVersionMigration with the number of processed objects
// and their total, such as "1500/5000". It is an extension of Trellis.
const MigrationProgressAnnotation = "trellis.dev/migration-progress"

// Key returns the storage key of an object.
func (d *Definition) Key(namespace, name string) string {
	if d.Namespaced {
		return d.Prefix + namespace + "/" + name
	}
	return d.Prefix + name
}

// Version is one endpoint of a Definition: a group, a version, and the form of objects at that version. It is
// immutable. Expensive parts are computed on first use.
type Version struct {
	Definition         *Definition
	GroupVersion       schema.GroupVersion
	APIVersion         string // GroupVersion.String()
	Served             bool
	Deprecated         bool
	DeprecationWarning string // text of the Warning header, if Deprecated
	// RemovedRelease is the first Kubernetes release that lacks a deprecated version, such as "1.22". It is "" for
	// a custom kind.
	RemovedRelease    string
	Columns           []Column               // columns of a Table, empty for a kind with a Printer or without Tables
	Printer           *Printer               // nil means that Columns define the Table
	columnDefinitions atomic.Pointer[[]byte] // cached result of ColumnDefinitions
	SelectableFields  []SelectableField
	Status            bool   // /status is served
	Scale             *Scale // nil means that /scale is not served
	// Subresources are the subresources other than /status and /scale, such as namespaces/finalize. The functions
	// of Behavior receive the name of the subresource as the parameter sub.
	Subresources []Subresource

	Type  *GoType                     // Go type of objects; nil for a custom kind outside of package extension
	empty atomic.Pointer[object.Tree] // cached result of Empty

	// OpenAPIV3Schema returns the JSON of a custom kind's schema from its CRD, or nil if the CRD has no schema. The
	// function is nil for a built-in kind.
	OpenAPIV3Schema func() []byte
	// Schema returns the compiled schema of a custom kind. It is cheap after the first call and safe for concurrent
	// use. The function is nil for a built-in kind, which uses its Go type instead.
	Schema func() (*crd.Compiled, error)
	// Parseable returns the schema in the form that structured-merge-diff needs.
	Parseable func() (typed.ParseableType, error)

	// ConvertTo converts an object from this version to the storage version. ConvertFrom converts in the other
	// direction. Only some built-in kinds, such as Event, have these functions. A nil function means that the
	// versions differ only in apiVersion. The functions do not modify their argument, and the result may share
	// memory with it.
	ConvertTo, ConvertFrom func(object.Tree) (object.Tree, error)
	// Default replaces Behavior.Default for an endpoint with its own rules for defaults. obj is at this version.
	Default func(obj object.Tree)
	// Validate validates writes through this endpoint. A nil Validate means no validation. form is the object at
	// this version with its defaults, before it is reset or converted. obj and old are at the storage version. old
	// is nil on a create. sub has the same meaning as in Behavior.
	Validate func(form, obj, old object.Tree, sub string) field.ErrorList
}

// Subresource is a subresource of a kind, with its name and verbs.
type Subresource struct {
	Name  string
	Verbs []string // "get", "patch" and "update", or only "create", sorted
	// Body is the version of the body of a POST, such as a Binding. nil means that the subresource reads and writes the
	// object itself.
	Body *Version `json:"-"`
	// Check validates the body before the object is read. name is the name in the request. For an error that is not
	// a StatusError, the response has the error's text and the code 500, as in upstream.
	Check func(name string, body Internal) error `json:"-"`
	// Act applies the body to the object, which is in the internal form. Its errors are treated as those of Check.
	Act func(obj, body Internal) error `json:"-"`
	// AlternateAPIVersion is another valid apiVersion of Body with the same fields. "" means that there is none.
	AlternateAPIVersion string
	// Delete, if not nil, replaces Act and returns the deletion that the body requests. It may modify obj before
	// the deletion.
	Delete func(stored *storage.Snapshot, obj, body Internal, dryRun bool) (Deletion, error) `json:"-"`
	// Do, if not nil, replaces Check, Act and Delete for a Body with a schema. It applies the body to the object,
	// which it may modify. The object is at its storage version. If answer is nil, the client gets a Status.
	Do func(ctx context.Context, obj, body object.Tree) (answer object.Tree, err error) `json:"-"`
	// Respond, if not nil, replaces Check and Act and returns the response to the body. name is the object's name.
	Respond func(ctx context.Context, name string, body Internal) (Internal, error) `json:"-"`
	// Connect, if not nil, replaces all of these fields. The subresource then connects requests to another server.
	Connect *Connect `json:"-"`
}

// Connect describes a subresource that connects requests to the server behind an object, such as a container, a
// node or a Pod.
type Connect struct {
	// Options is the kind of the options in the query, such as PodExecOptions. Admission receives an object of this
	// kind.
	Options *Version
	Methods []string // HTTP methods
	// Reads specifies that the request is a normal GET without admission, such as a log.
	Reads bool
	// Upgrades specifies that the connection switches to another protocol. The caller then also needs permission to
	// create.
	Upgrades bool
	// Streams, if not empty, limits Upgrades to some subpaths. It lists the first segments of these subpaths.
	Streams []string
	// Subpath is the field of Options for the part of the path after the subresource. "" means that a path must end
	// with the subresource.
	Subpath string
	// Decode decodes options from a query and sets defaults.
	Decode func(url.Values) (object.Tree, error)
	// Internal converts options to the internal form.
	Internal func(object.Tree) (runtime.Object, error)
}

// Endpoint identifies the endpoint of a resource or of one of its subresources. Subresource is "" for the objects
// themselves.
type Endpoint struct {
	Resource    schema.GroupVersionResource
	Subresource string
}

// Deletion is a deletion that a request other than DELETE causes.
type Deletion struct {
	Options metav1.DeleteOptions
	Guards  []storage.Guard // guards of the commit
	Related *RelatedWrite   // write of another object in the same commit, or nil
}

// RelatedWrite is a write of another object in the same commit. The other object is in the same namespace or is not
// namespaced.
type RelatedWrite struct {
	Endpoint Endpoint
	Name     string
	// Do changes the object. Its error becomes the response.
	Do func(obj Internal) error
	// Create, if not nil, replaces Do. It is the object to create, which must not exist.
	Create object.Tree
	// Delete replaces Do and deletes the object if it exists.
	Delete bool
}

// ExtraWrites holds additional writes and guards of a commit, for keys that are not those of API objects.
type ExtraWrites struct {
	Writes []storage.Write
	Guards []storage.Guard
}

// Subresource returns the subresource with a name, or nil.
func (v *Version) Subresource(name string) *Subresource {
	for i := range v.Subresources {
		if v.Subresources[i].Name == name {
			return &v.Subresources[i]
		}
	}
	return nil
}

// GroupResource returns the group and plural for error messages.
func (v *Version) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: v.GroupVersion.Group, Resource: v.Definition.Names.Plural}
}

// GroupVersionKind returns the group, version and kind of the objects at this version.
func (v *Version) GroupVersionKind() schema.GroupVersionKind {
	return v.GroupVersion.WithKind(v.Definition.Names.Kind)
}

// Column is one column of a Table.
type Column struct {
	Name, Type, Format, Description string
	Priority                        int32
	// Path, if not empty, is the path of the cell's value as field names. The value can then be read from the bytes
	// without decoding.
	Path []string
	// Cell computes the cell from a decoded object. nil means that Path is sufficient. A nil result is an empty
	// cell.
	Cell func(object.Tree) any
	// Age specifies that the value of Path or Cell is an RFC 3339 timestamp. Clients get the time since then. An
	// empty string is shown as "<unknown>".
	Age bool
}

// SelectableField is a field that field selectors support.
type SelectableField struct {
	Name string   // name in selectors, such as "spec.color"
	Path []string // path of the field
	// Fallback is the name of the selectable field that provides a missing value. "" means none.
	Fallback string
	// Zero is the value of a missing field, such as "false".
	Zero string
}

// Scale holds the paths of the values of the scale subresource.
type Scale struct {
	SpecReplicas, StatusReplicas, LabelSelector []string
	// Selector converts the value at LabelSelector to text. nil means that the value is text.
	Selector func(any) (string, error)
	// ByPath specifies that the Table of the Scale has the columns of a custom kind, which are defined by JSONPaths.
	ByPath bool
}

// Behavior defines the kind-specific steps of a write. Every field may be nil. Functions may modify obj but not
// old. All objects are at the storage version.
type Behavior struct {
	// Default sets the defaults of missing fields.
	Default func(obj object.Tree)
	// PrepareCreate and PrepareUpdate reset fields that clients may not set. sub is the subresource of the write,
	// or "".
	PrepareCreate func(ctx context.Context, obj object.Tree) error
	PrepareUpdate func(ctx context.Context, obj, old object.Tree, sub string) error
	// Review makes the kind a review, such as SelfSubjectReview. The body of a POST is decoded, strictly if
	// requested, and admitted. The response is the result of Review with the code 201. Nothing is stored, and no
	// other function of Behavior is called. metadata gets managedFields but is not validated. Review may modify and
	// retain obj. ctx contains the request's user as in upstream. The error is a StatusError.
	Review func(ctx context.Context, obj object.Tree) (object.Tree, error)
	// Compute returns the objects of a computed kind, such as ComponentStatus, ordered by name. It is called for
	// each read request. The objects are not stored and have no resourceVersion. The kind's verbs must be get and
	// list.
	Compute func(ctx context.Context) []object.Tree
	// Warnings returns warnings for the client. old is nil on a create.
	Warnings func(obj, old object.Tree) []string
	// Guards returns guards for the commit that writes obj.
	Guards func(ctx context.Context, obj object.Tree) []storage.Guard
	// RelatedWrites returns writes of other objects, which are committed together with obj. The record is the stored
	// object, or nil on a create. obj is the object to store, or nil for a delete.
	RelatedWrites func(record *storage.Record, obj object.Tree) []RelatedWrite
	// ReserveCapacity returns additional writes, which are committed together with obj. It uses the state at the time
	// of the commit. The record is the stored object and old is its tree. Both are nil on a create. obj is the object
	// to store, or nil for a delete. js is the JSON of obj.
	ReserveCapacity func(record *storage.Record, old, obj object.Tree, js []byte) (ExtraWrites, error)
	// BeforeDelete may reject a delete. It may also change the object when deletion starts, for example to set a
	// phase. obj is a copy.
	BeforeDelete func(ctx context.Context, obj object.Tree) error
	// Deletable reports whether an object that is marked for deletion can be deleted once metadata.finalizers is
	// empty.
	Deletable func(obj object.Tree) bool

	// UnconditionalUpdate allows a PUT without resourceVersion.
	UnconditionalUpdate bool
	// CreateOnUpdate specifies that a PUT creates the object if it does not exist.
	CreateOnUpdate bool
	// AtomicLists are the dotted paths of large lists. In managedFields, a manager owns such a list as a whole or
	// not at all.
	AtomicLists []string
	// TTL is the lifetime in seconds of new and updated objects, such as Events. 0 means unlimited.
	TTL int64
	// OrphanWarning is the warning for a client that deletes an object without specifying how its dependents are
	// handled. "" means no warning.
	OrphanWarning string
	// PreconditionFailed is the beginning of the message for a delete whose preconditions fail. It is set only for
	// kinds with a special message in upstream.
	PreconditionFailed string
	// HiddenAnnotation is an annotation that is omitted if only an object's metadata is requested. "" means none.
	HiddenAnnotation string
	// ReturnsDeleted specifies that the response to a delete is the object instead of a Status.
	ReturnsDeleted bool
}
