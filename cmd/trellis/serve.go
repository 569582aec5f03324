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
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// serveFlags are the flags of serve as they were typed.
type serveFlags struct {
	config      apiserver.Config
	bindAddress string
	securePort  int
	apply       []string
	gates       map[string]string
	tls         tlsFlags
	routing     bool // to endpoints
	signers     map[string]*controllers.CA
	fairness    bool
	guards      bool // bindings
	privileged  bool

	serviceRange string
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the API server",
		Long: `Run the API server until it is interrupted.

No configuration is needed. The first start makes a cluster CA, a serving
certificate and an administrator's kubeconfig in the data directory; later starts
use them again. What the server has acknowledged is on disk.`,
		Example: `  # A server in this folder, with a kind of your own and an object of it
  trellis serve --apply examples/crontab

  # A scratch server on a free port
  trellis serve --data-dir "$(mktemp -d)" --secure-port 0`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.checkAuthorization(cmd.Flags()), f.complete()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, cmd.OutOrStdout())
		},
	}
	f.bind(cmd)
	return cmd
}

// bind declares the flags. Those that kube-apiserver has too mean what they mean there.
func (f *serveFlags) bind(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &f.config
	flags.StringVar(&c.DataDir, "data-dir", filepath.Dir(defaultKubeconfig),
		"folder for everything that is kept: objects, keys and certificates, admin.kubeconfig")
	flags.Int64Var(&c.AcceptLossAfter, "accept-data-loss-after", 0,
		"last revision to keep of a damaged data directory, as the error of the start names it; later revisions are lost (0 means that the server does not start)")
	flags.StringVar(&f.bindAddress, "bind-address", "127.0.0.1",
		"IP address to listen on; 0.0.0.0 or :: for all interfaces")
	flags.IPVar(&c.AdvertiseAddress, "advertise-address", nil,
		"IP address at which other machines reach the server; by default that of --bind-address, or one of this machine if that is all of them")
	flags.IntVar(&f.securePort, "secure-port", 6443,
		"port to serve HTTPS on; 0 picks a free one")
	flags.StringArrayVar(&f.apply, "apply", nil,
		"file or folder of manifests to apply at the start, CRDs first; may be repeated")
	c.Audit = options.NewAuditOptions()
	c.Audit.AddFlags(flags)
	flags.BoolVar(&c.AutoMigrateStorage, "auto-migrate-storage", false,
		"write the objects of a CustomResourceDefinition at its storage version when that has changed, as trellis migrate does")
	flags.DurationVar(&c.ConversionRecheck, "conversion-recheck-interval", 30*time.Second,
		"how often a conversion webhook is asked again for a sample of what it has converted, while that is read")
	flags.StringVar(&c.ConversionKubeconfig, "conversion-webhook-kubeconfig", "",
		"kubeconfig with client certificates for conversion webhooks, each under a user named HOST (port 443) or HOST:PORT of the webhook; tokens and passwords are sent only to Services, NAME.NAMESPACE.svc (empty means none)")
	flags.DurationVar(&c.EventTTL, "event-ttl", time.Hour,
		"how long events are kept")
	flags.DurationVar(&c.CompactionInterval, "etcd-compaction-interval", 5*time.Minute,
		"how long the history is kept from which watches and continued lists are answered; older revisions get 410 Gone")
	flags.Int64Var(&c.HistoryBytes, "history-bytes", 256<<20,
		"how many bytes of that history are kept at most")
	flags.Int64Var(&c.MemoryBudget, "request-memory-budget", 0,
		"memory for the bodies of requests in work, in bytes (0 means a quarter of the memory limit of the process, at most 1 GiB)")
	flags.Int64Var(&c.DiskReserve, "disk-reserve-bytes", 0,
		"how many bytes of the disk are kept free: below that only deletions and small updates are carried out; 0: a twentieth of the disk up to 1 GiB, or as much as is stored, up to 136 MiB, if that is more")
	flags.BoolVar(&f.guards, "guard-bindings", true,
		"refuse to bind a Pod to a node that has no room for it by what it reports and what is on it; false: bind it, as kube-apiserver does")
	flags.BoolVar(&f.privileged, "allow-privileged", true,
		"acceptance of Pods with privileged containers; nodes decide for themselves which of them they run (false: 422, as with kube-apiserver's default)")
	f.tls.bind(flags)
	f.bindEtcd(flags)
	f.bindControllers(flags)
	f.bindAuthentication(flags)
	f.bindKubelet(flags)
	flags.StringVar(&c.EgressSelectorFile, "egress-selector-config-file", "",
		"file of an EgressSelectorConfiguration of apiserver.k8s.io: what goes through the tunnel of a Konnectivity server")
	f.bindAuthorization(flags)
	f.bindAdmission(flags)
	f.bindFairness(flags)
	flags.StringVar(&f.serviceRange, "service-cluster-ip-range", kinds.DefaultServiceRange().String(),
		"range of addresses that Services get their cluster IPs from, or one of IPv4 and one of IPv6, the default family first; ServiceCIDRs add more")
	c.ServiceNodePortRange = kinds.DefaultNodePorts()
	flags.Var(&c.ServiceNodePortRange, "service-node-port-range",
		"range of ports that Services of type NodePort and LoadBalancer get theirs from, both ends included")
	c.RuntimeConfig = map[string]string{}
	flags.Var((*cliflag.ConfigurationMap)(&c.RuntimeConfig), "runtime-config",
		"built-in APIs to serve or not: group/version=true|false, group/version/resource=true|false, api/all, api/ga, api/beta, api/alpha")
	flags.BoolVar(&c.Profiling, "profiling", true,
		"serve profiles at /debug/pprof to those who may read them")
	flags.StringToStringVar(&f.gates, "feature-gates", nil,
		"features to switch on or off, name=true|false; known: "+apiserver.CBORServingAndStorage+" (alpha, default false), "+
			apiserver.CustomResourceFieldSelectors+" (default true)")
}

// bindEtcd declares those of etcd.
func (f *serveFlags) bindEtcd(flags *pflag.FlagSet) {
	c := &f.config.Etcd
	flags.StringSliceVar(&c.Servers, "etcd-servers", nil,
		"URLs of an etcd cluster to keep objects in, instead of the data directory (experimental: one server alone may use it)")
	flags.StringVar(&c.CAFile, "etcd-cafile", "", "file of the CA that signs the certificates of etcd (experimental)")
	flags.StringVar(&c.CertFile, "etcd-certfile", "", "file of the client certificate for etcd (experimental)")
	flags.StringVar(&c.KeyFile, "etcd-keyfile", "", "file of its key (experimental)")
	flags.StringVar(&c.Prefix, "etcd-prefix", "/registry", "what the keys in etcd begin with (experimental)")
}

// complete turns what was typed into a Config.
func (f *serveFlags) complete() error {
	switch c := &f.config; { // a Config has a meaning for each of these that nobody would guess
	case c.DataDir == "":
		return errors.New("--data-dir: name a folder")
	case c.EventTTL <= 0:
		return errors.New("--event-ttl: must be more than 0")
	case c.ConversionRecheck <= 0:
		return errors.New("--conversion-recheck-interval: must be more than 0")
	case c.CompactionInterval <= 0:
		return errors.New("--etcd-compaction-interval: must be more than 0")
	case c.HistoryBytes <= 0:
		return errors.New("--history-bytes: must be more than 0")
	case c.MemoryBudget < 0:
		return errors.New("--request-memory-budget: must not be negative")
	case (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile: name both or none")
	case c.AcceptLossAfter < 0:
		return errors.New("--accept-data-loss-after: must not be negative")
	case c.DiskReserve < 0:
		return errors.New("--disk-reserve-bytes: must not be negative")
	}
	if net.ParseIP(f.bindAddress) == nil {
		return fmt.Errorf("--bind-address: %q is not an IP address", f.bindAddress)
	}
	if f.securePort < 0 || f.securePort > 65535 {
		return fmt.Errorf("--secure-port: %d is not between 0 and 65535", f.securePort)
	}
	if err := errors.Join(append(f.config.Audit.Validate(), f.checkAuthentication(), f.checkFairness())...); err != nil {
		return err
	}
	if err := f.tls.complete(&f.config.TLS); err != nil {
		return err
	}
	f.config.Aggregation.ByClusterIP, f.config.UnguardedBindings, f.config.DisallowPrivileged = !f.routing, !f.guards, !f.privileged
	f.config.Address = net.JoinHostPort(f.bindAddress, strconv.Itoa(f.securePort))
	f.config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := f.checkControllers(); err != nil {
		return err
	}
	admits := &f.config.Admission
	if err := (&plugins.Config{Enable: admits.Enable, Disable: admits.Disable}).Check(); err != nil {
		return fmt.Errorf("--%w", err) // it begins with the flag
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
			return fmt.Errorf("--feature-gates: %s=%s: not true or false", name, value)
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

// alwaysOn is true of features that once were behind a gate, which older documents tell people to open.
func alwaysOn(gate string) bool {
	switch gate {
	case "CRDValidationRatcheting", // KEP-4008
		"CustomResourceDefaulting", "CustomResourcePublishOpenAPI", "CustomResourceSubresources", "CustomResourceValidation", "CustomResourceWebhookConversion":
		return true
	}
	return false
}

// serviceRanges reads one range, or one of each family, with what kube-apiserver says of others.
func serviceRanges(text string) (all []netip.Prefix, err error) {
	for word := range strings.SplitSeq(text, ",") {
		r, err := netip.ParsePrefix(strings.TrimSpace(word))
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range: %q is no range like %s", word, kinds.DefaultServiceRange())
		}
		if r.Addr().BitLen()-r.Bits() < 3 {
			return nil, errors.New("--service-cluster-ip-range: the service cluster IP range must be at least 8 IP addresses")
		}
		all = append(all, r.Masked())
	}
	switch {
	case len(all) > 2:
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	case len(all) == 2 && all[0].Addr().BitLen() == all[1].Addr().BitLen():
		return nil, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family")
	}
	return all, nil
}

// serve runs a server until ctx is done, a signal arrives or it fails.
func serve(ctx context.Context, f *serveFlags, out io.Writer) error {
	began := time.Now()
	if os.Getenv("GOGC") == "" {
		paceCollector()
	}
	if limit := limitMemory(os.DirFS("/")); f.config.MemoryBudget == 0 {
		f.config.MemoryBudget = budgetFor(limit)
	}
	klog.SetSlogLogger(f.config.Logger) // of upstream's packages, which tell of each beginning and end
	utilruntime.ReallyCrash = false     // a panic in a loop of theirs is logged, and does not end the server
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go giveMemoryBack(ctx)
	server, err := apiserver.Start(ctx, f.config)
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, server.Loopback(), f.apply, out); err != nil {
		_ = server.Shutdown()
		return fmt.Errorf("--apply: %w", err)
	}
	greet(out, server, f, time.Since(began))
	select {
	case <-ctx.Done():
		stop() // a second signal ends the program at once
		fmt.Fprintln(out, "shutting down")
	case <-server.Failed():
	}
	return server.Shutdown()
}

// greet says where the server is and what to type next.
func greet(out io.Writer, server *apiserver.Server, f *serveFlags, took time.Duration) {
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
