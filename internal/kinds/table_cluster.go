package kinds

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/kinds/rbac"
)

// cluster returns the kinds for networking, storage, certificates, flow control, RBAC and other parts of a cluster.
func cluster(c Config) []define.Entry {
	certs, flow := versions{certificatesv1.SchemeGroupVersion}, versions{flowcontrolv1.SchemeGroupVersion}
	network := versions{networkingv1.SchemeGroupVersion}
	roles, storage := versions{rbacv1.SchemeGroupVersion}, versions{storagev1.SchemeGroupVersion}
	escalation := rbac.NewEscalation(c.Authorizer, c.RoleRules)
	return []define.Entry{
		{Kind: "CertificateSigningRequest", Plural: "certificatesigningrequests", Versions: certs, Short: "csr",
			Main: certificates.Strategy, Status: certificates.StatusStrategy,
			Subresources: updates{"approval": certificates.ApprovalStrategy}, Fields: []string{"spec.signerName"}},
		{Kind: "ClusterTrustBundle", Plural: "clustertrustbundles", Versions: certs, Main: clustertrustbundle.Strategy,
			Fields: []string{"spec.signerName"}},
		{Kind: "Lease", Plural: "leases", Versions: versions{coordinationv1.SchemeGroupVersion}, Main: lease.Strategy},
		{Kind: "EndpointSlice", Plural: "endpointslices", Versions: versions{discoveryv1.SchemeGroupVersion},
			Main: endpointslice.Strategy},
		{Kind: "FlowSchema", Plural: "flowschemas", Versions: flow, Main: flowschema.Strategy,
			Status: flowschema.StatusStrategy},
		{Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations", Versions: flow,
			Main: prioritylevelconfiguration.Strategy, Status: prioritylevelconfiguration.StatusStrategy},
		{Kind: "Ingress", Plural: "ingresses", Versions: network, Short: "ing", Main: ingress.Strategy,
			Status: ingress.StatusStrategy, Prefix: "ingress"},
		{Kind: "IngressClass", Plural: "ingressclasses", Versions: network, Main: ingressclass.Strategy},
		{Kind: "IPAddress", Plural: "ipaddresses", Versions: network, Short: "ip", Main: ipaddress.Strategy},
		{Kind: "NetworkPolicy", Plural: "networkpolicies", Versions: network, Short: "netpol",
			Main: networkpolicy.Strategy},
		{Kind: "ServiceCIDR", Plural: "servicecidrs", Versions: network, Main: servicecidr.Strategy,
			Status: servicecidr.StatusStrategy},
		{Kind: "RuntimeClass", Plural: "runtimeclasses", Versions: versions{nodev1.SchemeGroupVersion},
			Main: runtimeclass.Strategy},
		{Kind: "ClusterRole", Plural: "clusterroles", Versions: roles, Main: clusterrole.Strategy, PlainTable: true,
			Authorize: escalation.ClusterRole},
		{Kind: "ClusterRoleBinding", Plural: "clusterrolebindings", Versions: roles, Main: clusterrolebinding.Strategy,
			Authorize: escalation.ClusterRoleBinding},
		{Kind: "Role", Plural: "roles", Versions: roles, Main: role.Strategy, PlainTable: true,
			Authorize: escalation.Role},
		{Kind: "RoleBinding", Plural: "rolebindings", Versions: roles, Main: rolebinding.Strategy,
			Authorize: escalation.RoleBinding},
		{Kind: "CSIDriver", Plural: "csidrivers", Versions: storage, Main: csidriver.Strategy, ReturnsDeleted: true},
		{Kind: "CSINode", Plural: "csinodes", Versions: storage, Main: csinode.Strategy, Status: csinode.StatusStrategy,
			ReturnsDeleted: true},
		{Kind: "CSIStorageCapacity", Plural: "csistoragecapacities", Versions: storage,
			Main: csistoragecapacity.Strategy, PlainTable: true},
		{Kind: "StorageClass", Plural: "storageclasses", Versions: storage, Short: "sc", Main: storageclass.Strategy,
			ReturnsDeleted: true},
		{Kind: "VolumeAttachment", Plural: "volumeattachments", Versions: storage, Main: volumeattachment.Strategy,
			Status: volumeattachment.StatusStrategy, ReturnsDeleted: true},
		{Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses", Versions: storage, Short: "vac",
			Main: volumeattributesclass.Strategy, ReturnsDeleted: true},
		{Kind: "StorageVersionMigration", Plural: "storageversionmigrations",
			Versions: versions{storagemigrationv1.SchemeGroupVersion}, Main: storagemigration.Strategy,
			Status: storagemigration.StatusStrategy, Columns: migrationColumns},
	}
}
