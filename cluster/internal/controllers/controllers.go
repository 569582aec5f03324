// Package controllers is upstream's kube-controller-manager, but for the controllers that the API server runs by itself.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/controller-manager/pkg/features"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// Lease is the name of the one that a manager of controllers holds by default. It is not kube-controller-manager's, which servers of
// Trellis hold that have a store in common.
const Lease = "trellis-cluster-controllers"

// usual are the controllers that run by default.
var usual = []string{
	names.DeploymentController,
	names.ReplicaSetController,
	names.ReplicationControllerController,
	names.StatefulSetController,
	names.DaemonSetController,
	names.JobController,
	names.CronJobController,
	names.DisruptionController,
	names.HorizontalPodAutoscalerController,
	names.NodeLifecycleController,
	names.TaintEvictionController,
	names.PodGarbageCollectorController,
	names.PersistentVolumeBinderController,
	names.PersistentVolumeClaimProtectionController,
	names.PersistentVolumeProtectionController,
}

// Manager is kube-controller-manager with flags that are not parsed yet.
type Manager struct {
	options *options.KubeControllerManagerOptions
	flags   cliflag.NamedFlagSets
}

// New returns one that has its defaults.
func New() *Manager {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		panic(err) // its defaults cannot be made
	}
	o.Generic.Controllers = usual
	o.Generic.LeaderElection.ResourceName = Lease
	m := &Manager{options: o, flags: o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())}
	o.ParsedFlags = &m.flags
	return m
}

// AddFlags declares the flags of a command that is this manager.
func (m *Manager) AddFlags(cmd *cobra.Command) {
	for _, set := range m.flags.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cliflag.SetUsageAndHelpFunc(cmd, m.flags, 0)
}

// setUp puts logging and the feature gates in force as the flags say. They are the process's.
func (m *Manager) setUp() error {
	// Without this one, upstream exits the process at the end.
	err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.ControllerManagerReleaseLeaderElectionLockOnExit): true})
	if err == nil {
		err = compatibility.DefaultComponentGlobalsRegistry.Set()
	}
	if err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return logsapi.ValidateAndApply(m.options.Logs, utilfeature.DefaultFeatureGate)
}

// theirs are the controllers that the API server runs. It is asked before upstream asks it, which gives up at once.
func (m *Manager) theirs(ctx context.Context) ([]string, error) {
	config, err := clientcmd.BuildConfigFromFlags(m.options.Master, m.options.Generic.ClientConnection.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return servers(ctx, client)
}

// Run runs the controllers until ctx is done, or until they lead no longer, which is an error.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.setUp(); err != nil {
		return err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // they watch what is deprecated as well
	theirs, err := m.theirs(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("controllers: which ones the API server runs: %w", err)
	}
	config, err := m.options.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	klog.FromContext(ctx).Info("Controllers that the API server runs", "controllers", theirs)
	chosen := &config.ComponentConfig.Generic.Controllers
	for _, name := range theirs {
		*chosen = slices.Insert(*chosen, 0, "-"+name) // what comes first counts
	}
	err = app.Run(ctx, config.Complete())
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		err = errors.New("they lead no longer")
	}
	return fmt.Errorf("controllers: %w", err)
}
