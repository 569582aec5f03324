package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// certsFlags are the flags of certs as they were typed.
type certsFlags struct{ dataDir, output string }

func newCerts() *cobra.Command {
	var f certsFlags
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Show the certificates that the server has made, and until when they are good",
		Long: `Show the certificates in the data directory: whose they are, for which names, by
whom, and from when until when.

A server renews its own before they end, at a start or while it runs.`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.show(cmd.OutOrStdout(), time.Now()) },
	}
	cmd.PersistentFlags().StringVar(&f.dataDir, "data-dir", filepath.Dir(defaultKubeconfig), "the server's data directory")
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table or json")
	cmd.AddCommand(&cobra.Command{
		Use:   "renew [NAME...]",
		Short: "Renew certificates that the server has made",
		Long: `Replace certificates in the data directory and their keys by new ones for the same
names: those that are named, or all but the CA's, which is never replaced. The
administrator's kubeconfig is written anew.

A server that runs takes them within the hour, and one that starts at once.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return f.renew(names, cmd.OutOrStdout(), time.Now()) },
	})
	return cmd
}

func (f *certsFlags) show(w io.Writer, now time.Time) error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("--output must be table or json, not %q", f.output)
	}
	list, err := pki.List(filepath.Join(f.dataDir, "pki"), now)
	if err != nil {
		return err
	}
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CERTIFICATE\tSUBJECT\tISSUER\tFROM\tEXPIRES\tRESIDUAL TIME\tRENEWED AT A START\tNAMES")
	for _, c := range list {
		renewed := "no"
		if c.RenewedAtStart {
			renewed = "yes"
		}
		if c.Subject == "" {
			fmt.Fprintf(t, "%s\t<missing>\t\t\t\t\t%s\t\n", c.Name, renewed)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%dd\t%s\t%s\n", c.Name, c.Subject, c.Issuer,
			c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), c.DaysLeft, renewed, strings.Join(c.Names, ","))
	}
	return t.Flush()
}

func (f *certsFlags) renew(names []string, w io.Writer, now time.Time) error {
	dir := filepath.Join(f.dataDir, "pki")
	if err := pki.Reissue(dir, names, now); err != nil {
		return err
	}
	if err := f.writeKubeconfig(); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return f.show(w, now)
}

// writeKubeconfig puts the administrator's certificate into the kubeconfig, if there is one.
func (f *certsFlags) writeKubeconfig() error {
	path := filepath.Join(f.dataDir, apiserver.KubeconfigName)
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(filepath.Join(f.dataDir, "pki", "admin.crt"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(f.dataDir, "pki", "admin.key"))
	if err != nil {
		return err
	}
	for _, user := range config.AuthInfos { // there is one
		user.ClientCertificateData, user.ClientKeyData = cert, key
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return pki.WriteFile(path, data)
}
