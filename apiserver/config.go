// Package apiserver makes a running server of one Config. It has no logic of its
// own: it opens, connects and closes the parts, in the right order.
package apiserver

import (
	"cmp"
	"log/slog"
	"net"
	"net/netip"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/serving"
)

const (
	// KubeconfigName is the administrator's kubeconfig in the data directory.
	KubeconfigName = "admin.kubeconfig"
	// CBORServingAndStorage is upstream's name of the feature gate behind Config.EnableCBOR.
	CBORServingAndStorage = "CBORServingAndStorage"
	// CustomResourceFieldSelectors is that of the gate behind Config.DisableFieldSelectors.
	CustomResourceFieldSelectors = "CustomResourceFieldSelectors"
)

// TLS is what kube-apiserver's flags --tls-* say, SNICertKey one of --tls-sni-cert-key.
type (
	TLS        = serving.TLS
	SNICertKey = serving.SNICertKey
)

// Config is all that a server can be told. The zero value is a server in memory on a
// free port of the loopback interface that refuses anonymous requests.
type Config struct {
	// DataDir is the folder that everything is kept in; it is made if need be. "" keeps
	// everything in memory.
	DataDir string
	// Etcd keeps the objects in an etcd cluster instead. Only one server may run on it.
	Etcd Etcd
	// Address is the IP address and port to listen on; "" means 127.0.0.1:0, and port 0 picks a
	// free one.
	Address string
	// AdvertiseAddress is where other machines reach it, for discovery and the Service kubernetes; nil is Address, or
	// an address of this machine if that is all of them.
	AdvertiseAddress net.IP
	// OpenFiles is the number of files that the process may have open, which bounds the connections; 0 is the system's limit.
	OpenFiles uint64
	// TLS is what the server shows its clients, and demands of their connections.
	TLS TLS
	// Clock is what the server's own certificates age by; nil is the machine's.
	Clock clock.WithTicker
	// Authentication is whom the server believes, besides its own administrator.
	Authentication authn.Config
	// Authorization is who decides what callers may do, besides system:masters, who may do all.
	Authorization authz.Config
	// Fairness is whose turn it is; without limits they are kube-apiserver's, 400 and 200.
	Fairness flowcontrol.Config
	// Admission is what may change or stop a write.
	Admission Admission
	// Aggregation is how it reaches the API servers that APIServices name.
	Aggregation Aggregation
	// LocalServices lists, as NAMESPACE/NAME, the Services of type ExternalName that may lead to a loopback address; nil: none.
	LocalServices []string
	// Kubelet is how it reaches the kubelets of nodes.
	Kubelet Kubelet
	// EgressSelectorFile is an EgressSelectorConfiguration of apiserver.k8s.io: which of its connections go through a tunnel;
	// "": none.
	EgressSelectorFile string
	// RequestTimeout bounds what a request that is no watch may wait for, its own body included; 0
	// means a minute.
	RequestTimeout time.Duration
	// MemoryBudget is the memory in bytes for request bodies in work; 0 means 1 GiB.
	MemoryBudget int64
	// EventTTL is how long events are kept; 0 means an hour.
	EventTTL time.Duration
	// CompactionInterval is how long history is kept; 0 means five minutes.
	CompactionInterval time.Duration
	// HistoryBytes is how much of it is kept at most; 0 leaves it to the store.
	HistoryBytes int64
	// DiskReserve is how many bytes of the disk are kept free for what makes room, deletions above all;
	// 0 leaves it to the store.
	DiskReserve int64
	// AcceptLossAfter opens a data directory that has lost revisions if the last one left is this; 0 refuses it.
	AcceptLossAfter int64
	// DiskUsage says how many bytes of the disk are free, and how many there are; nil asks the system.
	DiskUsage func() (free, size uint64, err error)
	// Audit is which requests are recorded, and where; nil records none.
	Audit *options.AuditOptions

	// ServiceClusterIPRanges is where Services get their addresses from: a range, or one of each family, of which the first is
	// the default. nil means 10.0.0.0/24.
	ServiceClusterIPRanges []netip.Prefix
	// ServiceNodePortRange is where they get their node ports from; zero means 30000-32767.
	ServiceNodePortRange utilnet.PortRange
	// UnguardedBindings lets schedulers bind Pods to nodes that have no room for them, as kube-apiserver does.
	UnguardedBindings bool
	// DisallowPrivileged refuses Pods with privileged containers, or hostProcess containers of Windows, as kube-apiserver does without
	// --allow-privileged.
	DisallowPrivileged bool
	// Controllers are those of kube-controller-manager's that run, in the form of its flag of this name; nil is all.
	Controllers []string
	// NamespaceDelay is the time from the deletion of a namespace to the first write of the namespace controller. A client that
	// finalizes the namespace itself within this time gets no conflict.
	NamespaceDelay time.Duration
	// ClusterSigning is which CAs sign the certificates that CertificateSigningRequests ask for; zero is the server's own.
	ClusterSigning controllers.Signing
	// AutoMigrateStorage has the objects of a CRD written at its storage version when that has changed.
	AutoMigrateStorage bool
	// EnableCBOR offers application/cbor.
	EnableCBOR bool
	// DisableFieldSelectors ignores the selectableFields of CRDs, and drops them from those that are written, unless
	// they had some before.
	DisableFieldSelectors bool
	// RuntimeConfig switches built-in kinds on and off, as --runtime-config of kube-apiserver: apps/v1: false,
	// batch/v1/jobs: false, api/beta: false.
	RuntimeConfig map[string]string
	// Profiling serves /debug/pprof to those who may read it.
	Profiling bool
	// ConversionRecheck is how often a conversion webhook is asked again for a sample of what is kept of its conversions,
	// while that is read; 0 means 30 seconds.
	ConversionRecheck time.Duration
	// ConversionKubeconfig is a kubeconfig whose users are named by the exact hosts of conversion webhooks, with the credentials
	// for these; "": none.
	ConversionKubeconfig string
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger
}

// Etcd says where an etcd cluster is, and what of it is this server's. Without Servers there is none.
type Etcd struct {
	Servers  []string // URLs
	CAFile   string   // that signs the certificates of the servers
	CertFile string   // this server's as their client, with KeyFile
	KeyFile  string
	Prefix   string // of the keys; "" means /registry
}

func (c Config) withDefaults() Config {
	if c.Address == "" {
		c.Address = "127.0.0.1:0"
	}
	if c.Etcd.Prefix == "" {
		c.Etcd.Prefix = "/registry"
	}
	if c.EventTTL == 0 {
		c.EventTTL = time.Hour
	}
	if c.CompactionInterval == 0 {
		c.CompactionInterval = 5 * time.Minute
	}
	if len(c.ServiceClusterIPRanges) == 0 {
		c.ServiceClusterIPRanges = []netip.Prefix{kinds.DefaultServiceRange()}
	}
	if c.ServiceNodePortRange.Size == 0 {
		c.ServiceNodePortRange = kinds.DefaultNodePorts()
	}
	if f := &c.Fairness; !f.Disabled && f.MaxReads+f.MaxWrites == 0 {
		f.MaxReads, f.MaxWrites = 400, 200
	}
	c.Fairness.RequestTimeout = cmp.Or(c.RequestTimeout, time.Minute)
	if c.Kubelet.Timeout == 0 {
		c.Kubelet.Timeout = 5 * time.Second
	}
	if c.Kubelet.PreferredAddressTypes == nil {
		c.Kubelet.PreferredAddressTypes = KubeletAddressTypes()
	}
	if c.Controllers == nil {
		c.Controllers = []string{"*"}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
