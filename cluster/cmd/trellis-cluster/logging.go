package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// addLogging returns the logging flags of Kubernetes' programs. The caller must add these flags to cmd. Their values
// are applied before cmd runs.
func addLogging(cmd *cobra.Command) *pflag.FlagSet {
	options, flags := logs.NewOptions(), pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(options, flags)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if err := logsapi.ValidateAndApply(options, utilfeature.DefaultFeatureGate); err != nil {
			return fmt.Errorf("logging: %w", err)
		}
		return nil
	}
	return flags
}
