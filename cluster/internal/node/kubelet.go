package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/metrics"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
)

// kubeletServer returns the flags and the configuration of the kubelet. They differ from the defaults in two points.
// The kubelet changes nothing on the host outside of its folder, such as cgroups, sysctls, iptables rules and swap. It
// does not evict Pods when the disk is full, because other programs may have filled it.
func (o *Options) kubeletServer(client *rest.Config) (*options.KubeletServer, error) {
	flags := options.NewKubeletFlags()
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	flags.RootDirectory, flags.HostnameOverride, flags.NodeIP, flags.NodeLabels = o.Root, o.Name, o.Address.String(),
		o.Labels
	config.PodLogsDir, config.StaticPodPath = filepath.Join(o.Root, "logs"), o.StaticPods
	config.Port, config.ReadOnlyPort, config.HealthzPort = int32(o.Port), 0, 0

	if err := rest.LoadTLSFiles(client); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// An earlier start in this folder may have stored certificates for another cluster or node. The API server would
	// reject them, so each cluster and node has a separate folder.
	cluster := sha256.Sum256(append([]byte(o.Name+"\n"), client.CAData...))
	flags.CertDirectory = filepath.Join(o.Root, "pki", hex.EncodeToString(cluster[:4]))
	if err := os.MkdirAll(flags.CertDirectory, 0o700); err != nil {
		return nil, err
	}
	config.Authentication.X509.ClientCAFile = filepath.Join(flags.CertDirectory, "ca.crt")
	config.RotateCertificates, config.ServerTLSBootstrap = true, true
	// Without a configuration file, the kubelet's defaults permit all requests.
	config.Authentication.Anonymous.Enabled, config.Authentication.Webhook.Enabled = false, true
	config.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook

	config.FailCgroupV1, config.FailSwapOn, config.CgroupsPerQOS, config.EnforceNodeAllocatable = false, false, false,
		nil
	config.MakeIPTablesUtilChains, config.EnableControllerAttachDetach = false, false
	config.ImageGCHighThresholdPercent = 100
	config.EvictionHard = map[string]string{
		"memory.available": reservedMemory, "nodefs.available": "0%", "nodefs.inodesFree": "0%",
		"imagefs.available": "0%",
	}
	config.SerializeImagePulls = false
	config.ClusterDNS = nameservers(config.ResolverConfig)
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		config.MaxOpenFiles = min(config.MaxOpenFiles, int64(files.Max)) // only root may raise the hard limit
	}
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, nil
}

// dependencies returns the objects that the kubelet needs from its caller. The parameter node is the client
// configuration of the node.
func (o *Options) dependencies(
	ctx context.Context, settings *options.KubeletServer, node *rest.Config,
) (*kubelet.Dependencies, error) {
	createCounters()
	machine, err := newMachine(o.Root)
	if err != nil {
		return nil, err
	}
	mounter := newMounter()
	deps := &kubelet.Dependencies{
		RemoteRuntimeService:      o.Runtime,
		RemoteImageService:        o.Images,
		CAdvisorInterface:         machine,
		ContainerManager:          newResources(machine, o.NonRootAnnotation),
		OSInterface:               logOS{root: o.Root},
		Mounter:                   mounter,
		Subpather:                 subpath.New(mounter),
		HostUtil:                  hostUtil{hostutil.NewHostUtil()},
		VolumePlugins:             volumePlugins(),
		TracerProvider:            noop.NewTracerProvider(),
		PodStartupLatencyTracker:  util.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: util.NewNodeStartupLatencyTracker(klog.FromContext(ctx)),
	}
	if deps.RemoteRuntimeService == nil || deps.RemoteImageService == nil {
		settings.ContainerRuntimeEndpoint = o.Endpoint
		if err := kubelet.PreInitRuntimeService(ctx, &settings.KubeletConfiguration, deps); err != nil {
			return nil, err
		}
	}
	if !o.AllowPrivileged {
		deps.RemoteRuntimeService = unprivileged{deps.RemoteRuntimeService}
	}
	if o.KubernetesService != "" {
		if deps.RemoteRuntimeService, err = newServiceEnvironment(deps.RemoteRuntimeService, o.KubernetesService,
			o.RelayDevice != ""); err != nil {
			return nil, err
		}
	}
	if err := setClients(deps, settings, node); err != nil {
		return nil, err
	}
	if deps.TLSOptions, err = kubeletapp.InitializeTLS(ctx, &settings.KubeletFlags,
		&settings.KubeletConfiguration); err != nil {
		return nil, err
	}
	auth, runCAReload, err := kubeletapp.BuildAuth(types.NodeName(o.Name), deps.KubeClient,
		settings.KubeletConfiguration)
	if err != nil {
		return nil, err
	}
	runCAReload(ctx.Done())
	deps.Auth = auth
	if !o.StreamsByMethod {
		deps.Auth = streamAuthorization{auth}
	}
	return deps, nil
}

// setClients sets the clients of the kubelet with the rate limits of its configuration.
func setClients(deps *kubelet.Dependencies, settings *options.KubeletServer, node *rest.Config) (err error) {
	limited := func(qps float32, burst int) *rest.Config {
		c := rest.CopyConfig(node)
		c.QPS, c.Burst = qps, burst
		return c
	}
	if deps.KubeClient, err = kubernetes.NewForConfig(limited(float32(settings.KubeAPIQPS),
		int(settings.KubeAPIBurst))); err != nil {
		return err
	}
	events, err := kubernetes.NewForConfig(limited(float32(settings.EventRecordQPS), int(settings.EventBurst)))
	if err != nil {
		return err
	}
	deps.EventClient = events.CoreV1()
	heartbeats := limited(-1, 0)
	heartbeats.Timeout = min(settings.NodeStatusUpdateFrequency.Duration,
		time.Duration(settings.NodeLeaseDurationSeconds)*time.Second)
	deps.HeartbeatClient, err = kubernetes.NewForConfig(heartbeats)
	return err
}

// createCounters creates the counters of upstream's volume manager. Otherwise the manager could use them while another
// goroutine registers them, which is a race.
func createCounters() {
	for _, c := range []*basemetrics.Counter{
		metrics.ReconstructVolumeOperationsTotal, metrics.ReconstructVolumeOperationsErrorsTotal,
		metrics.ForceCleanedFailedVolumeOperationsTotal, metrics.ForceCleanedFailedVolumeOperationsErrorsTotal,
	} {
		c.Create(nil)
	}
}

func volumePlugins() (all []volume.VolumePlugin) {
	all = append(all, secret.ProbeVolumePlugins()...)
	all = append(all, configmap.ProbeVolumePlugins()...)
	all = append(all, projected.ProbeVolumePlugins()...)
	all = append(all, downwardapi.ProbeVolumePlugins()...)
	all = append(all, emptydir.ProbeVolumePlugins()...)
	return append(all, hostpath.ProbeVolumePlugins(volume.VolumeConfig{})...)
}
