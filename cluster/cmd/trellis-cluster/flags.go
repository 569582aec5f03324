package main

import (
	"bytes"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// helpWidth is the maximum line length in the help of grouped flags.
const helpWidth = 120

// padding matches the spaces that PrintSections writes at the ends of lines.
var padding = regexp.MustCompile(`(?m) +$`)

// groupFlags adds the flags of all groups to a command. The help of the command lists them by group.
func groupFlags(cmd *cobra.Command, groups *cliflag.NamedFlagSets) {
	for _, group := range groups.FlagSets {
		cmd.Flags().AddFlagSet(group)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		var b bytes.Buffer
		fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
		cliflag.PrintSections(&b, *groups, helpWidth)
		_, err := cmd.OutOrStderr().Write(padding.ReplaceAll(b.Bytes(), nil))
		return err
	})
}
