package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/trellis-k8s/trellis/internal/check"
)

// checkFlags holds the values of the flags of check.
type checkFlags struct {
	against string
	output  string
	strict  bool
}

func newCheck() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Validate manifests offline",
		Long: `Validate CustomResourceDefinitions and custom objects. The command uses the same code as
the server, but needs no server. The report lists rejected values, pruned fields and default
values, each with its line and column. If the files contain a custom object, they must also
contain its CustomResourceDefinition.

With --against, compare a CustomResourceDefinition with its older version. The report
lists the changes of three kinds:

  Compatible  The change does not affect stored objects and clients.
  Ratcheted   Stored objects can become invalid. They can still be updated if their invalid
              parts do not change.
  Breaking    The server can reject or lose data.

A FILE is a YAML or JSON file, a folder of such files, or - for standard input. The exit
code is 0 if the server would accept all objects and no change is Breaking, otherwise 1.`,
		Example: `  # Validate a custom kind and its objects
  trellis check examples/crontab

  # Compare two versions of a custom kind, with JSON output
  trellis check --against old.crd.yaml new.crd.yaml -o json`,
		Args: takes("one or more FILEs", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, files []string) error {
			return f.run(cmd.Context(), files, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.against, "against", "", "file with the older version of the CustomResourceDefinition in FILE")
	flags.StringVarP(&f.output, "output", "o", "text", "output format: text or json")
	flags.BoolVar(&f.strict, "strict", false, "exit with code 1 also for warnings: pruned fields and ratcheted changes")
	return cmd
}

func (f *checkFlags) run(ctx context.Context, files []string, w io.Writer) error {
	if f.output != "text" && f.output != "json" {
		return fmt.Errorf("--output %q must be text or json", f.output)
	}
	if f.against != "" && len(files) != 1 {
		return fmt.Errorf("--against requires exactly one FILE, got %d", len(files))
	}
	report, err := f.report(ctx, files)
	if err != nil {
		return err
	}
	if err := f.write(report, w); err != nil {
		return err
	}
	if report.Count(check.Error) > 0 {
		return errors.New(report.Total(check.Error))
	}
	if report.Count(check.Warning) > 0 && f.strict {
		return errors.New(report.Total(check.Warning))
	}
	return nil
}

func (f *checkFlags) report(ctx context.Context, files []string) (*check.Report, error) {
	if f.against != "" {
		return check.Upgrade(ctx, f.against, files[0])
	}
	return check.Manifests(ctx, files)
}

func (f *checkFlags) write(r *check.Report, w io.Writer) error {
	if f.output == "text" {
		return r.WriteText(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
