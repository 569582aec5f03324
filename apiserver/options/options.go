// Package options declares the flags of an API server. A flag that kube-apiserver also has has the same meaning.
package options

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/flags"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

// Options holds the values of the flags of an API server.
type Options struct {
	apiserver.Config
	bindAddress  string
	securePort   int
	gates        map[string]string
	serviceRange string
}

// AddFlags declares the flags in groups. The default of --data-dir is DataDir.
func (o *Options) AddFlags(groups *cliflag.NamedFlagSets) {
	o.addCommon(groups.FlagSet("common"))
	o.addGeneric(groups.FlagSet("generic"))
	o.addStorage(groups.FlagSet("storage"))
	o.TLS.AddFlags(groups.FlagSet("secure serving"))
	o.Authentication.AddFlags(groups.FlagSet("authentication"))
	o.Authorization.AddFlags(groups.FlagSet("authorization"))
	o.Admission.AddFlags(groups.FlagSet("admission"))
	o.Audit = options.NewAuditOptions()
	o.Audit.AddFlags(groups.FlagSet("audit"))
	o.Fairness.AddFlags(groups.FlagSet("flow control"))
	o.addControllers(groups.FlagSet("controllers"))
	o.addEgress(groups.FlagSet("egress"))
	o.addOwn(groups.FlagSet("Trellis"))
}

// addCommon declares the flags that most users need.
func (o *Options) addCommon(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"folder of all state: objects, keys, certificates and admin.kubeconfig")
	fs.StringVar(&o.bindAddress, "bind-address", "127.0.0.1",
		"IP address to listen on (0.0.0.0 or :: means all interfaces)")
	fs.IntVar(&o.securePort, "secure-port", 6443, "HTTPS port (0 means a free port)")
}

// addGeneric declares the flags of the server as a whole, and of built-in kinds.
func (o *Options) addGeneric(fs *pflag.FlagSet) {
	fs.IPVar(&o.AdvertiseAddress, "advertise-address", nil,
		"IP address at which other machines reach the server. Empty means the value of --bind-address, or an address "+
			"of this machine if that value is 0.0.0.0 or ::")
	fs.DurationVar(&o.EventTTL, "event-ttl", time.Hour, "retention time of Events")
	fs.StringVar(&o.serviceRange, "service-cluster-ip-range", services.DefaultRange().String(),
		"range of the cluster IPs of Services. For dual-stack: an IPv4 range and an IPv6 range, separated by a "+
			"comma, the default family first. ServiceCIDRs add more ranges")
	o.ServiceNodePortRange = services.DefaultNodePorts()
	fs.Var(&o.ServiceNodePortRange, "service-node-port-range",
		"range of the node ports of Services of type NodePort and LoadBalancer, including both ends")
	flags.Negated(fs, &o.DisallowPrivileged, "allow-privileged",
		"accept Pods with privileged containers. Each node decides separately whether it runs them. If false, the "+
			"server rejects them with 422, which is the default of kube-apiserver")
	o.RuntimeConfig = map[string]string{}
	fs.Var((*cliflag.ConfigurationMap)(&o.RuntimeConfig), "runtime-config",
		"built-in APIs to enable or disable: KEY=true or KEY=false. A KEY is group/version, group/version/resource, "+
			"api/all, api/ga, api/beta or api/alpha")
	fs.StringToStringVar(&o.gates, "feature-gates", nil,
		"features to enable or disable: NAME=true or NAME=false. The names are "+apiserver.CBORServingAndStorage+
			" (alpha, default false), "+apiserver.CustomResourceFieldSelectors+" (default true)")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", 0,
		"time between the beginning of the shutdown and the moment at which the server stops to accept requests. "+
			"/readyz fails meanwhile, so that a load balancer selects other servers")
	fs.Float64Var(&o.GoawayChance, "goaway-chance", 0,
		"fraction of HTTP/2 requests, at most 0.02, whose connection the server closes after the requests in flight. "+
			"The client then connects again, so that a load balancer can select another server. 0 means none. 0.001 "+
			"is a good value for several servers")
	fs.BoolVar(&o.Profiling, "profiling", true, "serve profiles at /debug/pprof to authorized users")
}

// addStorage declares the flags of the store.
func (o *Options) addStorage(fs *pflag.FlagSet) {
	fs.DurationVar(&o.CompactionInterval, "etcd-compaction-interval", 5*time.Minute,
		"time that the server keeps the history of changes for watches and continued lists. Requests for older "+
			"revisions get 410 Gone")
	fs.Int64Var(&o.HistoryBytes, "history-bytes", 0,
		"maximum size of the history of changes in bytes. With --etcd-servers it limits only the part in memory. 0 "+
			"means 256 MiB on disk and 32 MiB in memory")
	fs.Int64Var(&o.DiskReserve, "disk-reserve-bytes", 0,
		"free disk space to keep, in bytes. With less free space, only deletions and small updates succeed. 0 means "+
			"a twentieth of the disk, but at most 1 GiB and at least the space for a compaction of the data")
	fs.Int64Var(&o.AcceptLossAfter, "accept-data-loss-after", 0,
		"last revision to keep when the server opens a damaged data directory. The error at the start contains the "+
			"value. Later revisions are lost. 0 means that the server does not start with damaged data")
	o.Etcd.AddFlags(fs)
}

// addControllers declares the flags of the controllers. They are flags of kube-controller-manager.
func (o *Options) addControllers(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Controllers, "controllers", []string{"*"},
		"controllers of kube-controller-manager to run: names, '*' for all, or '-NAME' to disable one. The names are "+
			strings.Join(upstream.Names(), ", ")+
			". The following also run unless '-NAME' or '-*' disables them: "+
			strings.Join(controllers.TrellisControllers, ", "))
	o.ClusterSigning.AddFlags(fs)
}

// addEgress declares the flags of connections to other servers.
func (o *Options) addEgress(fs *pflag.FlagSet) {
	fs.StringVar(&o.EgressSelectorFile, "egress-selector-config-file", "",
		"file of an EgressSelectorConfiguration of apiserver.k8s.io. It selects the connections that go through a "+
			"Konnectivity server")
	o.Aggregation.AddFlags(fs)
	o.Kubelet.AddFlags(fs)
	fs.StringSliceVar(&o.LocalServices, "allow-local-services", nil,
		"Services of type ExternalName, as NAMESPACE/NAME, that may refer to a loopback address. They are needed for "+
			"a webhook or an aggregated API server on this machine (empty means none)")
}

// addOwn declares the flags that kube-apiserver does not have.
func (o *Options) addOwn(fs *pflag.FlagSet) {
	fs.BoolVar(&o.AutoMigrateStorage, "auto-migrate-storage", false,
		"rewrite the objects of a CustomResourceDefinition when its storage version changes, as trellis migrate does")
	fs.DurationVar(&o.ConversionRecheck, "conversion-recheck-interval", 30*time.Second,
		"interval at which the server compares a sample of the cached conversions in use with new results of the "+
			"conversion webhook")
	fs.StringVar(&o.ConversionKubeconfig, "conversion-webhook-kubeconfig", "",
		"kubeconfig with the credentials for conversion webhooks (empty means none). The name of each user is "+
			"HOST:PORT of a webhook, or HOST if the port is 443. Tokens and passwords are sent only to Services, "+
			"that is to hosts of the form NAME.NAMESPACE.svc")
	flags.Negated(fs, &o.UnguardedBindings, "guard-bindings",
		"reject bindings of Pods to nodes with too little free capacity. If false, these bindings succeed, as in "+
			"kube-apiserver")
	fs.Int64Var(&o.MemoryBudget, "request-memory-budget", 0,
		"memory for the bodies of running requests, in bytes. 0 means a quarter of the memory limit of the process, "+
			"but at most 1 GiB")
}
