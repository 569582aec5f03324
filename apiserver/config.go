// Package apiserver starts an API server from a Config. It contains no logic of the API. It opens, connects and
// closes the parts of the server, which other packages implement, in the right order.
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
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

const (
	// KubeconfigName is the administrator's kubeconfig in the data directory.
	KubeconfigName = "admin.kubeconfig"
	// CBORServingAndStorage is upstream's name of the feature gate that Config.EnableCBOR implements.
	CBORServingAndStorage = "CBORServingAndStorage"
	// CustomResourceFieldSelectors is upstream's name of the feature gate that Config.DisableFieldSelectors implements.
	CustomResourceFieldSelectors = "CustomResourceFieldSelectors"
)

// Config is the configuration of a server. The zero value describes a server that stores everything in memory, listens
// on a free port of the loopback interface and refuses anonymous requests.
type Config struct {
	// DataDir is the directory of all persistent state. It is created if it does not exist. "" means that all state is
	// in memory.
	DataDir string
	// Etcd stores the objects in an etcd cluster instead of DataDir, if Servers is not empty. Several servers may use
	// it. Prefix "" means /registry.
	Etcd etcd.Cluster
	// Address is the IP address and port to listen on. "" means 127.0.0.1:0, and port 0 selects a free port.
	Address string
	// AdvertiseAddress is the address at which other machines reach the server, for discovery and the Service
	// kubernetes. nil means the IP address of Address, or an address of this machine if Address is unspecified.
	AdvertiseAddress net.IP
	// OpenFiles is the maximum number of open files of the process. It limits the number of connections. 0 means the
	// system's limit.
	OpenFiles uint64
	// TLS is the TLS configuration of the server: its certificates, the minimum version and the cipher suites.
	TLS serving.TLS
	// Clock is the clock of periodic work, such as the renewal of the server's own certificates. nil means the real
	// clock.
	Clock clock.WithTicker
	// Authentication configures authentication. The server's own administrator is always authenticated.
	Authentication authn.Config
	// Authorization configures the authorizers. The group system:masters always has all permissions.
	Authorization authz.Config
	// Fairness configures API Priority and Fairness. If no limits are set, the limits are kube-apiserver's defaults:
	// 400 reads and 200 writes.
	Fairness flowcontrol.Config
	// Admission configures the admission plugins.
	Admission plugins.Options
	// Aggregation configures the proxy to aggregated API servers.
	Aggregation Aggregation
	// LocalServices lists the Services of type ExternalName that may resolve to a loopback address. Each item has the
	// form NAMESPACE/NAME. nil means none.
	LocalServices []string
	// Kubelet configures the connections to the kubelets of nodes.
	Kubelet Kubelet
	// EgressSelectorFile is the path of an EgressSelectorConfiguration of apiserver.k8s.io. It selects the connections
	// that go through a tunnel. "" means none.
	EgressSelectorFile string
	// RequestTimeout is the deadline of a request that is not long-running, including the time to read its body. 0
	// means a minute.
	RequestTimeout time.Duration
	// ShutdownDelay is the time between the beginning of the shutdown, when /readyz fails, and the moment at which the
	// server stops to accept requests. 0 means none.
	ShutdownDelay time.Duration
	// GoawayChance is the fraction of HTTP/2 requests whose connection the server closes after the requests in flight.
	// 0 means none.
	GoawayChance float64
	// MemoryBudget is the memory in bytes for the request bodies that are being processed. 0 means 1 GiB.
	MemoryBudget int64
	// EventTTL is the lifetime of Event objects. 0 means an hour.
	EventTTL time.Duration
	// CompactionInterval is the retention time of the watch history. 0 means five minutes.
	CompactionInterval time.Duration
	// HistoryBytes is the maximum size of the watch history in bytes. 0 means the store's default.
	HistoryBytes int64
	// DiskReserve is the disk space in bytes that only deletions and small updates may use. 0 means the store's
	// default.
	DiskReserve int64
	// AcceptLossAfter permits the server to open a damaged data directory whose last intact revision is equal to this
	// value. 0 means that a damaged directory is an error.
	AcceptLossAfter int64
	// DiskUsage returns the free bytes and the size of the disk. nil means a system call.
	DiskUsage func() (free, size uint64, err error)
	// Audit selects the requests that are audited and the audit backends. nil disables auditing.
	Audit *options.AuditOptions

	// ServiceClusterIPRanges holds the ranges of cluster IPs: one range, or an IPv4 and an IPv6 range. The first
	// range determines the default IP family. nil means 10.0.0.0/24.
	ServiceClusterIPRanges []netip.Prefix
	// ServiceNodePortRange is the range of node ports of Services. The zero value means 30000-32767.
	ServiceNodePortRange utilnet.PortRange
	// UnguardedBindings disables the check of a node's free capacity when a Pod is bound. kube-apiserver has no such
	// check.
	UnguardedBindings bool
	// DisallowPrivileged rejects Pods with privileged containers or with hostProcess containers of Windows.
	// kube-apiserver rejects them unless --allow-privileged is set.
	DisallowPrivileged bool
	// Controllers selects the controllers of kube-controller-manager that run, in the format of its flag --controllers.
	// nil means all.
	Controllers []string
	// NamespaceDelay is the time between the deletion of a namespace and the first write of the namespace controller. A
	// client that finalizes the namespace itself within this time gets no conflict.
	NamespaceDelay time.Duration
	// ClusterSigning configures the CAs that sign CertificateSigningRequests. The zero value means the server's own CA.
	ClusterSigning upstream.Signing
	// AutoMigrateStorage rewrites the objects of a CRD at its storage version after the storage version has changed.
	AutoMigrateStorage bool
	// EnableCBOR enables the media type application/cbor.
	EnableCBOR bool
	// DisableFieldSelectors ignores the selectableFields of CRDs. When a CRD is written, it also drops them, unless
	// the stored CRD already has selectableFields.
	DisableFieldSelectors bool
	// RuntimeConfig enables and disables built-in kinds, as kube-apiserver's --runtime-config does. Examples: apps/v1:
	// false, batch/v1/jobs: false, api/beta: false.
	RuntimeConfig map[string]string
	// Profiling serves /debug/pprof to users that are authorized to read it.
	Profiling bool
	// ConversionRecheck is the interval at which a sample of a conversion webhook's cached results is revalidated.
	// Results that no client reads are not revalidated. 0 means 30 seconds.
	ConversionRecheck time.Duration
	// ConversionKubeconfig is the path of a kubeconfig with the credentials for conversion webhooks. The name of each
	// user in the file is the exact host of a webhook. "" means no credentials.
	ConversionKubeconfig string
	// Logger receives messages for the operator. nil means that they are discarded.
	Logger *slog.Logger
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
		c.ServiceClusterIPRanges = []netip.Prefix{services.DefaultRange()}
	}
	if c.ServiceNodePortRange.Size == 0 {
		c.ServiceNodePortRange = services.DefaultNodePorts()
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
