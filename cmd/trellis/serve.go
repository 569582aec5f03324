package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

// serveFlags holds the values of the flags of serve.
type serveFlags struct {
	config      apiserver.Config
	bindAddress string
	securePort  int
	apply       []string
	gates       map[string]string
	tls         tlsFlags
	routing     bool // --enable-aggregator-routing
	signers     map[string]*upstream.CA
	fairness    bool // --enable-priority-and-fairness
	guards      bool // --guard-bindings
	privileged  bool // --allow-privileged

	serviceRange string
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the API server",
		Long: `Run the API server until it is interrupted.

No configuration is needed. The first start creates a cluster CA, a serving certificate
and an administrator's kubeconfig in the data directory. Later starts use them again.
The server responds to a write after the write is on disk.`,
		Example: `  # Start a server in this folder, and create a custom kind and an object of the kind
  trellis serve --apply examples/crontab

  # Start a temporary server on a free port
  trellis serve --data-dir "$(mktemp -d)" --secure-port 0`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.checkAuthorization(cmd.Flags()), f.complete()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, cmd.OutOrStdout())
		},
	}
	groupFlags(cmd, f.bind())
	return cmd
}

// bind declares the flags in groups. If kube-apiserver also has a flag, the flag has the same meaning.
func (f *serveFlags) bind() *cliflag.NamedFlagSets {
	var groups cliflag.NamedFlagSets
	f.bindCommon(groups.FlagSet("common"))
	f.bindGeneric(groups.FlagSet("generic"))
	f.bindStorage(groups.FlagSet("storage"))
	f.tls.bind(groups.FlagSet("secure serving"))
	f.bindAuthentication(groups.FlagSet("authentication"))
	f.bindAuthorization(groups.FlagSet("authorization"))
	f.bindAdmission(groups.FlagSet("admission"))
	f.config.Audit = options.NewAuditOptions()
	f.config.Audit.AddFlags(groups.FlagSet("audit"))
	f.bindFairness(groups.FlagSet("flow control"))
	f.bindControllers(groups.FlagSet("controllers"))
	f.bindEgress(groups.FlagSet("egress"))
	f.bindOwn(groups.FlagSet("Trellis"))
	return &groups
}

// bindCommon declares the flags that most users need.
func (f *serveFlags) bindCommon(flags *pflag.FlagSet) {
	flags.StringVar(&f.config.DataDir, "data-dir", filepath.Dir(defaultKubeconfig),
		"folder of all state: objects, keys, certificates and admin.kubeconfig")
	flags.StringVar(&f.bindAddress, "bind-address", "127.0.0.1",
		"IP address to listen on (0.0.0.0 or :: means all interfaces)")
	flags.IntVar(&f.securePort, "secure-port", 6443, "HTTPS port (0 means a free port)")
	flags.StringArrayVar(&f.apply, "apply", nil,
		"file or folder of manifests to apply at the start; can be repeated. CustomResourceDefinitions are applied "+
			"first")
}

// bindGeneric declares the flags of the server as a whole, and of built-in kinds.
func (f *serveFlags) bindGeneric(flags *pflag.FlagSet) {
	c := &f.config
	flags.IPVar(&c.AdvertiseAddress, "advertise-address", nil,
		"IP address at which other machines reach the server. Empty means the value of --bind-address, or an address "+
			"of this machine if that value is 0.0.0.0 or ::")
	flags.DurationVar(&c.EventTTL, "event-ttl", time.Hour, "retention time of Events")
	flags.StringVar(&f.serviceRange, "service-cluster-ip-range", services.DefaultRange().String(),
		"range of the cluster IPs of Services. For dual-stack: an IPv4 range and an IPv6 range, separated by a "+
			"comma, the default family first. ServiceCIDRs add more ranges")
	c.ServiceNodePortRange = services.DefaultNodePorts()
	flags.Var(&c.ServiceNodePortRange, "service-node-port-range",
		"range of the node ports of Services of type NodePort and LoadBalancer, including both ends")
	flags.BoolVar(&f.privileged, "allow-privileged", true,
		"accept Pods with privileged containers. Each node decides separately whether it runs them. If false, the "+
			"server rejects them with 422, which is the default of kube-apiserver")
	c.RuntimeConfig = map[string]string{}
	flags.Var((*cliflag.ConfigurationMap)(&c.RuntimeConfig), "runtime-config",
		"built-in APIs to enable or disable: KEY=true or KEY=false. A KEY is group/version, group/version/resource, "+
			"api/all, api/ga, api/beta or api/alpha")
	flags.StringToStringVar(&f.gates, "feature-gates", nil,
		"features to enable or disable: NAME=true or NAME=false. The names are "+apiserver.CBORServingAndStorage+
			" (alpha, default false), "+apiserver.CustomResourceFieldSelectors+" (default true)")
	flags.BoolVar(&c.Profiling, "profiling", true, "serve profiles at /debug/pprof to authorized users")
}

// bindStorage declares the flags of the store.
func (f *serveFlags) bindStorage(flags *pflag.FlagSet) {
	c := &f.config
	flags.DurationVar(&c.CompactionInterval, "etcd-compaction-interval", 5*time.Minute,
		"time that the server keeps the history of changes for watches and continued lists. Requests for older "+
			"revisions get 410 Gone")
	flags.Int64Var(&c.HistoryBytes, "history-bytes", 256<<20, "maximum size of the history of changes in bytes")
	flags.Int64Var(&c.DiskReserve, "disk-reserve-bytes", 0,
		"free disk space to keep, in bytes. With less free space, only deletions and small updates succeed. 0 means "+
			"a twentieth of the disk, but at most 1 GiB and at least the space for a compaction of the data")
	flags.Int64Var(&c.AcceptLossAfter, "accept-data-loss-after", 0,
		"last revision to keep when the server opens a damaged data directory. The error at the start contains the "+
			"value. Later revisions are lost. 0 means that the server does not start with damaged data")
	flags.StringSliceVar(&c.Etcd.Servers, "etcd-servers", nil,
		"URLs of an etcd cluster that stores the objects instead of the data directory. Only one server may use the "+
			"cluster (experimental)")
	flags.StringVar(&c.Etcd.CAFile, "etcd-cafile", "",
		"file of the CA that signed the serving certificates of etcd (experimental)")
	flags.StringVar(&c.Etcd.CertFile, "etcd-certfile", "", "file of the client certificate for etcd (experimental)")
	flags.StringVar(&c.Etcd.KeyFile, "etcd-keyfile", "", "file of the private key of --etcd-certfile (experimental)")
	flags.StringVar(&c.Etcd.Prefix, "etcd-prefix", "/registry", "prefix of all keys in etcd (experimental)")
}

// bindEgress declares the flags of connections to other servers.
func (f *serveFlags) bindEgress(flags *pflag.FlagSet) {
	flags.StringVar(&f.config.EgressSelectorFile, "egress-selector-config-file", "",
		"file of an EgressSelectorConfiguration of apiserver.k8s.io. It selects the connections that go through a "+
			"Konnectivity server")
	f.bindAggregation(flags)
	f.bindKubelet(flags)
}

// bindOwn declares the flags that kube-apiserver does not have.
func (f *serveFlags) bindOwn(flags *pflag.FlagSet) {
	c := &f.config
	flags.BoolVar(&c.AutoMigrateStorage, "auto-migrate-storage", false,
		"rewrite the objects of a CustomResourceDefinition when its storage version changes, as trellis migrate does")
	flags.DurationVar(&c.ConversionRecheck, "conversion-recheck-interval", 30*time.Second,
		"interval at which the server compares a sample of the cached conversions in use with new results of the "+
			"conversion webhook")
	flags.StringVar(&c.ConversionKubeconfig, "conversion-webhook-kubeconfig", "",
		"kubeconfig with the credentials for conversion webhooks (empty means none). The name of each user is "+
			"HOST:PORT of a webhook, or HOST if the port is 443. Tokens and passwords are sent only to Services, "+
			"that is to hosts of the form NAME.NAMESPACE.svc")
	flags.BoolVar(&f.guards, "guard-bindings", true,
		"reject bindings of Pods to nodes with too little free capacity. If false, these bindings succeed, as in "+
			"kube-apiserver")
	flags.Int64Var(&c.MemoryBudget, "request-memory-budget", 0,
		"memory for the bodies of running requests, in bytes. 0 means a quarter of the memory limit of the process, "+
			"but at most 1 GiB")
}

// complete validates the flags and completes the Config.
func (f *serveFlags) complete() error {
	switch c := &f.config; { // a Config replaces these values with defaults, but a user must not set them
	case c.DataDir == "":
		return errors.New("--data-dir must not be empty: specify a folder")
	case c.EventTTL <= 0:
		return errors.New("--event-ttl must be greater than 0")
	case c.ConversionRecheck <= 0:
		return errors.New("--conversion-recheck-interval must be greater than 0")
	case c.CompactionInterval <= 0:
		return errors.New("--etcd-compaction-interval must be greater than 0")
	case c.HistoryBytes <= 0:
		return errors.New("--history-bytes must be greater than 0")
	case c.MemoryBudget < 0:
		return errors.New("--request-memory-budget must not be negative")
	case (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile must be set together")
	case c.AcceptLossAfter < 0:
		return errors.New("--accept-data-loss-after must not be negative")
	case c.DiskReserve < 0:
		return errors.New("--disk-reserve-bytes must not be negative")
	}
	if net.ParseIP(f.bindAddress) == nil {
		return fmt.Errorf("--bind-address %q must be an IP address", f.bindAddress)
	}
	if f.securePort < 0 || f.securePort > 65535 {
		return fmt.Errorf("--secure-port %d must be between 0 and 65535", f.securePort)
	}
	if err := errors.Join(append(f.config.Audit.Validate(), f.checkAuthentication(),
		f.checkFairness())...); err != nil {
		return err
	}
	if err := f.tls.complete(&f.config.TLS); err != nil {
		return err
	}
	f.config.Aggregation.ByClusterIP, f.config.UnguardedBindings, f.config.DisallowPrivileged = !f.routing, !f.guards,
		!f.privileged
	f.config.Address = net.JoinHostPort(f.bindAddress, strconv.Itoa(f.securePort))
	f.config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := f.checkControllers(); err != nil {
		return err
	}
	admits := &f.config.Admission
	if err := (&plugins.Config{Enable: admits.Enable, Disable: admits.Disable}).Check(); err != nil {
		return fmt.Errorf("--%w", err) // the error begins with the name of the flag
	}
	var err error
	if f.config.ServiceClusterIPRanges, err = serviceRanges(f.serviceRange); err != nil {
		return err
	}
	if err := checkLocalServices(f.config.LocalServices); err != nil {
		return err
	}
	if _, err := kinds.ParseRuntimeConfig(f.config.RuntimeConfig); err != nil {
		return fmt.Errorf("--runtime-config: %w", err)
	}
	for name, value := range f.gates {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("--feature-gates: the value of %s=%s must be true or false", name, value)
		}
		switch {
		case name == apiserver.CBORServingAndStorage:
			f.config.EnableCBOR = on
		case name == apiserver.CustomResourceFieldSelectors:
			f.config.DisableFieldSelectors = !on
		case alwaysOn(name) && on:
		case alwaysOn(name):
			return fmt.Errorf("--feature-gates: cannot set feature gate %s to false, feature is locked to true", name)
		default:
			return fmt.Errorf("--feature-gates: unrecognized feature gate: %s", name)
		}
	}
	return nil
}

// alwaysOn reports whether a feature gate existed in an older release for a feature that is now always on. Older
// documentation enables such gates.
func alwaysOn(gate string) bool {
	switch gate {
	case "CRDValidationRatcheting", // KEP-4008
		"CustomResourceDefaulting", "CustomResourcePublishOpenAPI", "CustomResourceSubresources",
		"CustomResourceValidation", "CustomResourceWebhookConversion":
		return true
	}
	return false
}

// serviceRanges parses one range, or two ranges of different IP families. The errors are those of kube-apiserver.
func serviceRanges(text string) (all []netip.Prefix, err error) {
	for word := range strings.SplitSeq(text, ",") {
		r, err := netip.ParsePrefix(strings.TrimSpace(word))
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range: %q is not a CIDR range such as %s", word,
				services.DefaultRange())
		}
		if r.Addr().BitLen()-r.Bits() < 3 {
			return nil, errors.New("--service-cluster-ip-range: the service cluster IP range must be at least 8 IP " +
				"addresses")
		}
		all = append(all, r.Masked())
	}
	switch {
	case len(all) > 2:
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	case len(all) == 2 && all[0].Addr().BitLen() == all[1].Addr().BitLen():
		return nil, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of " +
			"different IP family")
	}
	return all, nil
}

// serve runs a server until ctx is done, a signal arrives, or the server fails.
func serve(ctx context.Context, f *serveFlags, out io.Writer) error {
	began := time.Now()
	if os.Getenv("GOGC") == "" {
		paceCollector()
	}
	if limit := limitMemory(os.DirFS("/")); f.config.MemoryBudget == 0 {
		f.config.MemoryBudget = budgetFor(limit)
	}
	klog.SetSlogLogger(f.config.Logger) // packages of Kubernetes log the start and the end of each of their loops
	utilruntime.ReallyCrash = false     // a panic in one of their loops is logged and does not end the server
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go releaseMemory(ctx)
	server, err := apiserver.Start(ctx, f.config)
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, server.Loopback(), f.apply, out); err != nil {
		_ = server.Shutdown()
		return fmt.Errorf("--apply: %w", err)
	}
	printReady(out, server, f, time.Since(began))
	select {
	case <-ctx.Done():
		stop() // a second signal ends the program immediately
		fmt.Fprintln(out, "shutting down")
	case <-server.Failed():
	}
	return server.Shutdown()
}

// printReady prints the address of the server and the next commands to type.
func printReady(out io.Writer, server *apiserver.Server, f *serveFlags, took time.Duration) {
	kubeconfig := filepath.Join(f.config.DataDir, apiserver.KubeconfigName)
	kubectl := "kubectl --kubeconfig " + kubeconfig
	if kubeconfig == defaultKubeconfig {
		kubectl = "trellis kubectl"
	}
	fmt.Fprintf(out, `
Trellis is ready at %s after %d ms.
Its kubeconfig is %s.

Next, in another terminal:
  %s get namespaces
  %s api-resources
`, server.URL(), took.Milliseconds(), kubeconfig, kubectl, kubectl)
}
