package main

import (
	"bytes"
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

// certsFlags holds the values of the flags of certs.
type certsFlags struct{ dataDir, output string }

func newCerts() *cobra.Command {
	var f certsFlags
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Show the server's certificates and their expiry",
		Long: `Show the certificates in the data directory with their subjects, names, issuers and
validity.

The server renews its certificates before they expire, both at its start and while it runs.`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.show(cmd.OutOrStdout(), time.Now()) },
	}
	cmd.PersistentFlags().StringVar(&f.dataDir, "data-dir", filepath.Dir(defaultKubeconfig),
		"data directory of the server")
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "output format: table or json")
	cmd.AddCommand(&cobra.Command{
		Use:   "renew [NAME...]",
		Short: "Renew the server's certificates",
		Long: `Replace the certificates called NAME in the data directory and their keys. The new
certificates are for the same host names and users. If no NAME is given, the command
replaces all certificates except those of CAs. It never replaces the certificate of a CA. It
also updates the administrator's kubeconfig.

A running server uses the new certificates within an hour.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error { return f.renew(names, cmd.OutOrStdout(), time.Now()) },
	}, &cobra.Command{
		Use:   "export FILE",
		Short: "Write the keys that several servers share to a file",
		Long: `Write the CAs of the data directory, their keys and the key of service account tokens to
the tar archive FILE. Servers that use the same etcd need the same CAs and keys. The archive
gives all permissions, so keep it secret. If FILE is -, the command writes the archive to the
standard output.`,
		Example: `  # Copy the keys to another machine
  trellis certs export - | ssh other-machine trellis certs import -`,
		Args: takes("the name of a file", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.exportKeys(args[0], cmd.OutOrStdout()) },
	}, &cobra.Command{
		Use:   "import FILE",
		Short: "Read the keys that several servers share from a file",
		Long: `Write the CAs and keys in an archive of trellis certs export to the data directory. The
server must not have been started before: the command does not replace other keys. If FILE
is -, the command reads the standard input.`,
		Args: takes("the name of a file", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.importKeys(args[0], cmd.InOrStdin()) },
	})
	return cmd
}

func (f *certsFlags) show(w io.Writer, now time.Time) error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("--output %q must be table or json", f.output)
	}
	list, err := pki.List(f.pki(), now)
	if err != nil {
		return err
	}
	if f.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "CERTIFICATE\tSUBJECT\tISSUER\tFROM\tEXPIRES\tRESIDUAL TIME\tRENEWED AT START\tNAMES")
	for _, c := range list {
		renewed := "no"
		if c.RenewedAtStart {
			renewed = "yes"
		}
		if c.Subject == "" {
			fmt.Fprintf(t, "%s\t<missing>\t\t\t\t\t%s\t\n", c.Name, renewed)
			continue
		}
		from, until := c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%dd\t%s\t%s\n", c.Name, c.Subject, c.Issuer, from, until, c.DaysLeft,
			renewed, strings.Join(c.Names, ","))
	}
	return t.Flush()
}

func (f *certsFlags) renew(names []string, w io.Writer, now time.Time) error {
	dir := f.pki()
	if err := pki.Reissue(dir, names, now); err != nil {
		return err
	}
	if err := f.writeKubeconfig(); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	return f.show(w, now)
}

// writeKubeconfig writes the administrator's certificate and key to the administrator's kubeconfig, if that file
// exists.
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
	for _, user := range config.AuthInfos { // the kubeconfig has one user
		user.ClientCertificateData, user.ClientKeyData = cert, key
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return pki.WriteFile(path, data)
}

func (f *certsFlags) pki() string { return filepath.Join(f.dataDir, "pki") }

func (f *certsFlags) exportKeys(path string, out io.Writer) error {
	if path == "-" {
		return pki.Export(f.pki(), out, time.Now())
	}
	var archive bytes.Buffer
	if err := pki.Export(f.pki(), &archive, time.Now()); err != nil {
		return err
	}
	return pki.WriteFile(path, archive.Bytes())
}

func (f *certsFlags) importKeys(path string, in io.Reader) error {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	return pki.Import(f.pki(), in, time.Now())
}
