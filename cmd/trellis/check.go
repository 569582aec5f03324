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

// checkFlags are the flags of check as they were typed.
type checkFlags struct {
	against string
	output  string
	strict  bool
}

func newCheck() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Say what a server would say of manifests, without a server",
		Long: `Check CustomResourceDefinitions, and objects against the CustomResourceDefinitions
given beside them, with the engine that the server uses: what would be refused and
why, dropped, or filled in, with the line and column where it stands.

With --against, check one CustomResourceDefinition that is to replace an older
state of itself, and say which objects that are stored already could break, and
which clients: Compatible changes break none, Ratcheted ones let invalid objects
be updated as long as the invalid part stays as it is, Breaking ones may refuse
or lose something.

A FILE is YAML or JSON, a folder of such files, or - for standard input. The exit
code is 0 where nothing would be refused or break, and 1 otherwise.`,
		Example: `  # A kind and the objects of it, before they are applied
  trellis check examples/crontab

  # An upgrade of a kind, for a machine to read
  trellis check --against old.crd.yaml new.crd.yaml -o json`,
		Args: takes("one FILE or more", 1, math.MaxInt),
		RunE: func(cmd *cobra.Command, files []string) error {
			return f.run(cmd.Context(), files, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.against, "against", "", "the older state of the CustomResourceDefinition in FILE")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	flags.BoolVar(&f.strict, "strict", false, "warnings fail, too: fields that would be dropped, ratcheted changes")
	return cmd
}

func (f *checkFlags) run(ctx context.Context, files []string, w io.Writer) error {
	if f.output != "text" && f.output != "json" {
		return fmt.Errorf("--output must be text or json, not %q", f.output)
	}
	if f.against != "" && len(files) != 1 {
		return fmt.Errorf("--against compares one FILE, not %d", len(files))
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
