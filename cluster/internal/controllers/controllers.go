// Package controllers runs upstream's kube-controller-manager without the controllers that the API server itself runs.
// It must not import other packages of this module.
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

// leaseName is the default name of the Lease for leader election. It is not the default name of
// kube-controller-manager, because Trellis servers with a shared store hold the Lease of that name.
const leaseName = "trellis-cluster-controllers"

// defaultControllers are the controllers that run by default.
var defaultControllers = []string{
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

// Manager is an instance of kube-controller-manager. A command must parse its flags before Run.
type Manager struct {
	options *options.KubeControllerManagerOptions
	flags   cliflag.NamedFlagSets
}

// New returns a Manager with default options.
func New() *Manager {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		panic(err) // upstream's defaults are invalid
	}
	o.Generic.Controllers = defaultControllers
	o.Generic.LeaderElection.ResourceName = leaseName
	m := &Manager{
		options: o,
		flags:   o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()),
	}
	o.ParsedFlags = &m.flags
	return m
}

// AddFlags adds the flags of m to cmd. The help of cmd then lists the flags in groups.
func (m *Manager) AddFlags(cmd *cobra.Command) {
	for _, set := range m.flags.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	cliflag.SetUsageAndHelpFunc(cmd, m.flags, 0)
}

// configureProcess applies the flags for logging and feature gates, which affect the whole process.
func (m *Manager) configureProcess() error {
	// Without this feature gate, upstream's code exits the process when Run ends.
	err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		string(features.ControllerManagerReleaseLeaderElectionLockOnExit): true,
	})
	if err == nil {
		err = compatibility.DefaultComponentGlobalsRegistry.Set()
	}
	if err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return logsapi.ValidateAndApply(m.options.Logs, utilfeature.DefaultFeatureGate)
}

// serverControllers returns the names of the controllers that the API server runs. It waits until the server is ready.
// Upstream's code does not wait, so Run calls serverControllers first.
func (m *Manager) serverControllers(ctx context.Context) ([]string, error) {
	config, err := clientcmd.BuildConfigFromFlags(m.options.Master, m.options.Generic.ClientConnection.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return controllersOfServer(ctx, client)
}

// Run runs the controllers until ctx is done, and then returns nil. It returns an error if the manager loses its
// Lease.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.configureProcess(); err != nil {
		return err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // the controllers also watch deprecated resources
	running, err := m.serverControllers(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("controllers: cannot get the list of controllers that the API server runs: %w", err)
	}
	config, err := m.options.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(),
		app.ControllerAliases())
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	klog.FromContext(ctx).Info("Disabled the controllers that the API server already runs", "controllers", running)
	chosen := &config.ComponentConfig.Generic.Controllers
	for _, name := range running {
		*chosen = slices.Insert(*chosen, 0, "-"+name) // the first entry for a name wins
	}
	err = app.Run(ctx, config.Complete())
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		err = errors.New("lost the Lease")
	}
	return fmt.Errorf("controllers: %w", err)
}
