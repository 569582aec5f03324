// Package builtin is the table of built-in kinds, derived from k8s.io/api, with
// Go functions where a kind has behaviour of its own. It knows no storage and no HTTP.
package builtin

import (
	"context"
	"net/netip"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config is what the built-in kinds need from outside.
type Config struct {
	// Catalog returns a catalog that knows all that is stored: CRDs cannot be written without it.
	Catalog  func(context.Context) (*resource.Catalog, error)
	EventTTL time.Duration // how long an Event lives after it was last written; 0: forever
	// Head returns what is stored, for the addresses of Services; nil: no other Service is.
	Head         func() *storage.Snapshot
	ServiceRange netip.Prefix      // of their cluster IPs, of IPv4; zero: DefaultServiceRange
	NodePorts    utilnet.PortRange // of their node ports; zero: DefaultNodePorts
	// NoFieldSelectors drops selectableFields from CRDs that had none before.
	NoFieldSelectors bool
	Now              func() time.Time // nil: time.Now
	// Allowed decides whether u may do what spec says; exactly one of its attributes is set.
	// nil: nobody may do anything.
	Allowed func(ctx context.Context, u user.Info, spec *authorizationv1.SelfSubjectAccessReviewSpec) (allowed bool, reason string)
	// Rules lists what u may do in a namespace; nil: the list is said to be incomplete.
	Rules func(ctx context.Context, u user.Info, namespace string) authorizationv1.SubjectRulesReviewStatus
}

// Definitions returns every built-in kind. It is cheap: what is costly is
// derived on first use.
func Definitions(c Config) []*resource.Definition {
	if c.Now == nil {
		c.Now = time.Now
	}
	kinds := table(c)
	all := make([]*resource.Definition, 0, len(kinds))
	for i := range kinds {
		all = append(all, define(&kinds[i]))
	}
	return all
}

// table is the built-in kinds, one line each; what a line leaves out is derived
// or is as for most kinds.
func table(c Config) []kind {
	return []kind{
		{endpoint: at(corev1.SchemeGroupVersion, &corev1.ConfigMap{}, &corev1.ConfigMapList{}), plural: "configmaps", short: "cm", columns: configMapColumns, behavior: configMaps()},
		endpoints(),
		{endpoint: at(corev1.SchemeGroupVersion, &corev1.Event{}, &corev1.EventList{}), plural: "events", short: "ev", createOnUpdate: true, columns: eventColumns, selectable: eventFields, behavior: events(c.EventTTL), second: eventsEndpoint()},
		{endpoint: at(corev1.SchemeGroupVersion, &corev1.Namespace{}, &corev1.NamespaceList{}), plural: "namespaces", short: "ns", cluster: true, status: true, verbs: "create delete get list patch update watch", subresources: []resource.Subresource{{Name: finalize, Verbs: []string{"update"}}}, columns: namespaceColumns, selectable: fields("status.phase", "name=metadata.name"), behavior: namespaces()},
		{endpoint: at(corev1.SchemeGroupVersion, &corev1.Secret{}, &corev1.SecretList{}), plural: "secrets", columns: secretColumns, selectable: fields("type"), behavior: secrets()},
		{endpoint: at(corev1.SchemeGroupVersion, &corev1.ServiceAccount{}, &corev1.ServiceAccountList{}), plural: "serviceaccounts", short: "sa", behavior: serviceAccounts()},
		services(c),
		{endpoint: at(coordinationv1.SchemeGroupVersion, &coordinationv1.Lease{}, &coordinationv1.LeaseList{}), plural: "leases", createOnUpdate: true, conditional: true, columns: leaseColumns, behavior: leases()},
		endpointSlices(),
		customResourceDefinitions(c),
		{endpoint: at(storagemigrationv1.SchemeGroupVersion, &storagemigrationv1.StorageVersionMigration{}, &storagemigrationv1.StorageVersionMigrationList{}), plural: "storageversionmigrations", cluster: true, status: true, columns: migrationColumns, behavior: migrations()},
		{endpoint: at(authenticationv1.SchemeGroupVersion, &authenticationv1.SelfSubjectReview{}, nil), plural: "selfsubjectreviews", cluster: true, verbs: "create", behavior: resource.Behavior{Answer: whoAmI(c)}},
		{endpoint: at(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectAccessReview{}, nil), plural: "selfsubjectaccessreviews", cluster: true, verbs: "create", behavior: resource.Behavior{Answer: mayI(c)}},
		{endpoint: at(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectRulesReview{}, nil), plural: "selfsubjectrulesreviews", cluster: true, verbs: "create", behavior: resource.Behavior{Answer: whatMayI(c)}},
	}
}

// eventsEndpoint is Event as the group events.k8s.io shows it.
func eventsEndpoint() *endpoint {
	e := at(eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	e.columns, e.selectable, e.validate = newEventColumns, newEventFields, validateNewEvent
	e.toStorage, e.fromStorage = toCoreEvent, fromCoreEvent
	return &e
}

// validateName is the rule for most kinds.
var validateName = apivalidation.NameIsDNSSubdomain
