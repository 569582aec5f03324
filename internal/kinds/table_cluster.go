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
)

// cluster returns the kinds for networking, storage, certificates, flow control, RBAC and other parts of a cluster.
func cluster(c Config) []entry {
	certs, flow := versions{certificatesv1.SchemeGroupVersion}, versions{flowcontrolv1.SchemeGroupVersion}
	network := versions{networkingv1.SchemeGroupVersion}
	rbac, storage := versions{rbacv1.SchemeGroupVersion}, versions{storagev1.SchemeGroupVersion}
	authorize := c.escalation()
	return []entry{
		{kind: "CertificateSigningRequest", plural: "certificatesigningrequests", versions: certs, short: "csr",
			main: certificates.Strategy, status: certificates.StatusStrategy,
			subresources: updates{"approval": certificates.ApprovalStrategy}, fields: []string{"spec.signerName"}},
		{kind: "ClusterTrustBundle", plural: "clustertrustbundles", versions: certs, main: clustertrustbundle.Strategy,
			fields: []string{"spec.signerName"}},
		{kind: "Lease", plural: "leases", versions: versions{coordinationv1.SchemeGroupVersion}, main: lease.Strategy},
		{kind: "EndpointSlice", plural: "endpointslices", versions: versions{discoveryv1.SchemeGroupVersion},
			main: endpointslice.Strategy},
		{kind: "FlowSchema", plural: "flowschemas", versions: flow, main: flowschema.Strategy,
			status: flowschema.StatusStrategy},
		{kind: "PriorityLevelConfiguration", plural: "prioritylevelconfigurations", versions: flow,
			main: prioritylevelconfiguration.Strategy, status: prioritylevelconfiguration.StatusStrategy},
		{kind: "Ingress", plural: "ingresses", versions: network, short: "ing", main: ingress.Strategy,
			status: ingress.StatusStrategy, prefix: "ingress"},
		{kind: "IngressClass", plural: "ingressclasses", versions: network, main: ingressclass.Strategy},
		{kind: "IPAddress", plural: "ipaddresses", versions: network, short: "ip", main: ipaddress.Strategy},
		{kind: "NetworkPolicy", plural: "networkpolicies", versions: network, short: "netpol",
			main: networkpolicy.Strategy},
		{kind: "ServiceCIDR", plural: "servicecidrs", versions: network, main: servicecidr.Strategy,
			status: servicecidr.StatusStrategy},
		{kind: "RuntimeClass", plural: "runtimeclasses", versions: versions{nodev1.SchemeGroupVersion},
			main: runtimeclass.Strategy},
		{kind: "ClusterRole", plural: "clusterroles", versions: rbac, main: clusterrole.Strategy, plainTable: true,
			authorize: authorize.clusterRole},
		{kind: "ClusterRoleBinding", plural: "clusterrolebindings", versions: rbac, main: clusterrolebinding.Strategy,
			authorize: authorize.clusterRoleBinding},
		{kind: "Role", plural: "roles", versions: rbac, main: role.Strategy, plainTable: true,
			authorize: authorize.role},
		{kind: "RoleBinding", plural: "rolebindings", versions: rbac, main: rolebinding.Strategy,
			authorize: authorize.roleBinding},
		{kind: "CSIDriver", plural: "csidrivers", versions: storage, main: csidriver.Strategy, returnsDeleted: true},
		{kind: "CSINode", plural: "csinodes", versions: storage, main: csinode.Strategy, status: csinode.StatusStrategy,
			returnsDeleted: true},
		{kind: "CSIStorageCapacity", plural: "csistoragecapacities", versions: storage,
			main: csistoragecapacity.Strategy, plainTable: true},
		{kind: "StorageClass", plural: "storageclasses", versions: storage, short: "sc", main: storageclass.Strategy,
			returnsDeleted: true},
		{kind: "VolumeAttachment", plural: "volumeattachments", versions: storage, main: volumeattachment.Strategy,
			status: volumeattachment.StatusStrategy, returnsDeleted: true},
		{kind: "VolumeAttributesClass", plural: "volumeattributesclasses", versions: storage, short: "vac",
			main: volumeattributesclass.Strategy, returnsDeleted: true},
		{kind: "StorageVersionMigration", plural: "storageversionmigrations",
			versions: versions{storagemigrationv1.SchemeGroupVersion}, main: storagemigration.Strategy,
			status: storagemigration.StatusStrategy, columns: migrationColumns},
	}
}
