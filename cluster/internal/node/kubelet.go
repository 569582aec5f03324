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

// settings are the kubelet's flags and configuration: its defaults, but that it takes hold of nothing of the host that is not
// in its folder: no cgroups, sysctls, iptables or swap, and no disk that others fill.
func (o *Options) settings(client *rest.Config) (*options.KubeletServer, error) {
	flags := options.NewKubeletFlags()
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	flags.RootDirectory, flags.HostnameOverride, flags.NodeIP, flags.NodeLabels = o.Root, o.Name, o.Address.String(), o.Labels
	config.PodLogsDir, config.StaticPodPath = filepath.Join(o.Root, "logs"), o.StaticPods
	config.Port, config.ReadOnlyPort, config.HealthzPort = int32(o.Port), 0, 0

	if err := rest.LoadTLSFiles(client); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// Certificates of another cluster or node, as the one of the last start may have been, would not be believed.
	cluster := sha256.Sum256(append([]byte(o.Name+"\n"), client.CAData...))
	flags.CertDirectory = filepath.Join(o.Root, "pki", hex.EncodeToString(cluster[:4]))
	if err := os.MkdirAll(flags.CertDirectory, 0o700); err != nil {
		return nil, err
	}
	config.Authentication.X509.ClientCAFile = filepath.Join(flags.CertDirectory, "ca.crt")
	config.RotateCertificates, config.ServerTLSBootstrap = true, true
	// What the kubelet would do without a configuration file lets everybody in.
	config.Authentication.Anonymous.Enabled, config.Authentication.Webhook.Enabled = false, true
	config.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook

	config.FailCgroupV1, config.FailSwapOn, config.CgroupsPerQOS, config.EnforceNodeAllocatable = false, false, false, nil
	config.MakeIPTablesUtilChains, config.EnableControllerAttachDetach = false, false
	config.ImageGCHighThresholdPercent = 100
	config.EvictionHard = map[string]string{"memory.available": reservedMemory, "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}
	config.SerializeImagePulls = false
	config.ClusterDNS = nameservers(config.ResolverConfig)
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		config.MaxOpenFiles = min(config.MaxOpenFiles, int64(files.Max)) // more is for root alone
	}
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, nil
}

// parts are what the kubelet consists of where that is not its own choice.
func (o *Options) parts(ctx context.Context, settings *options.KubeletServer, own *rest.Config) (*kubelet.Dependencies, error) {
	makeCounters()
	machine, err := newMachine(o.Root)
	if err != nil {
		return nil, err
	}
	mounter := newMounter()
	parts := &kubelet.Dependencies{
		RemoteRuntimeService:      o.Runtime,
		RemoteImageService:        o.Images,
		CAdvisorInterface:         machine,
		ContainerManager:          newResources(machine, o.NonRootAnnotation),
		OSInterface:               logs{root: o.Root},
		Mounter:                   mounter,
		Subpather:                 subpath.New(mounter),
		HostUtil:                  hostUtil{hostutil.NewHostUtil()},
		VolumePlugins:             volumePlugins(),
		TracerProvider:            noop.NewTracerProvider(),
		PodStartupLatencyTracker:  util.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: util.NewNodeStartupLatencyTracker(klog.FromContext(ctx)),
	}
	if parts.RemoteRuntimeService == nil || parts.RemoteImageService == nil {
		settings.ContainerRuntimeEndpoint = o.Endpoint
		if err := kubelet.PreInitRuntimeService(ctx, &settings.KubeletConfiguration, parts); err != nil {
			return nil, err
		}
	}
	if !o.AllowPrivileged {
		parts.RemoteRuntimeService = unprivileged{parts.RemoteRuntimeService}
	}
	if o.KubernetesService != "" {
		if parts.RemoteRuntimeService, err = newServiceEnvironment(parts.RemoteRuntimeService, o.KubernetesService, o.RelayDevice != ""); err != nil {
			return nil, err
		}
	}
	if err := setClients(parts, settings, own); err != nil {
		return nil, err
	}
	if parts.TLSOptions, err = kubeletapp.InitializeTLS(ctx, &settings.KubeletFlags, &settings.KubeletConfiguration); err != nil {
		return nil, err
	}
	auth, follow, err := kubeletapp.BuildAuth(types.NodeName(o.Name), parts.KubeClient, settings.KubeletConfiguration)
	if err != nil {
		return nil, err
	}
	follow(ctx.Done())
	parts.Auth = auth
	if !o.StreamsByMethod {
		parts.Auth = streamsAreCreated{auth}
	}
	return parts, nil
}

// setClients gives the kubelet its clients, with the limits that it has for each.
func setClients(parts *kubelet.Dependencies, settings *options.KubeletServer, own *rest.Config) (err error) {
	limited := func(qps float32, burst int) *rest.Config {
		c := rest.CopyConfig(own)
		c.QPS, c.Burst = qps, burst
		return c
	}
	if parts.KubeClient, err = kubernetes.NewForConfig(limited(float32(settings.KubeAPIQPS), int(settings.KubeAPIBurst))); err != nil {
		return err
	}
	events, err := kubernetes.NewForConfig(limited(float32(settings.EventRecordQPS), int(settings.EventBurst)))
	if err != nil {
		return err
	}
	parts.EventClient = events.CoreV1()
	heartbeats := limited(-1, 0)
	heartbeats.Timeout = min(settings.NodeStatusUpdateFrequency.Duration, time.Duration(settings.NodeLeaseDurationSeconds)*time.Second)
	parts.HeartbeatClient, err = kubernetes.NewForConfig(heartbeats)
	return err
}

// makeCounters makes those that upstream's volume manager counts with while it registers them in another goroutine: a race.
func makeCounters() {
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
