package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/controllers"
)

// namespaceDelay is the time that tests have to finalize the namespaces that they delete. Tests that were written for envtest without a
// namespace controller do so.
const namespaceDelay = 3 * time.Second

// newKubeAPIServer is this program under the name kube-apiserver.
func newKubeAPIServer() *cobra.Command {
	var f serveFlags
	var certDir string
	cmd := &cobra.Command{
		Use:   "kube-apiserver",
		Short: "Trellis with the flags of kube-apiserver that envtest passes",
		Long: `This is Trellis under the name of kube-apiserver, for tests with envtest. It keeps everything in the
--data-dir of the stand-in for etcd that --etcd-servers names, or its objects in a real etcd, and nothing else.`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.useUpstreamPlugins()
			if err := errors.Join(f.checkAuthorization(cmd.Flags()), f.complete(), f.serveCertDir(certDir)); err != nil {
				return err
			}
			if err := f.keepBehind(cmd.Context()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, io.Discard)
		},
	}
	flags, ofServe := cmd.Flags(), &cobra.Command{}
	f.bind(ofServe)
	f.config.Controllers, f.config.NamespaceDelay = []string{controllers.AggregateRoles}, namespaceDelay
	ofServe.Flags().VisitAll(func(flag *pflag.Flag) {
		ofControllers := flag.Name == "controllers" || strings.HasPrefix(flag.Name, clusterSigning) // of which envtest has none
		if flag.Name != "data-dir" && flag.Name != "apply" && !ofControllers {                      // the stand-in's; for development
			flags.AddFlag(flag)
		}
	})
	flags.StringVar(&certDir, "cert-dir", "", "folder of apiserver.crt and apiserver.key, which are served if they are there")
	privileged := flags.Lookup("allow-privileged")
	privileged.DefValue = "false"
	_ = privileged.Value.Set(privileged.DefValue) // it is a boolean
	fix(flags, "watch-cache", "bool", "true", "serving of reads and watches from memory")
	fix(flags, "endpoint-reconciler-type", "string", "none", "upkeep of the endpoints of the Service default/kubernetes")
	fix(flags, "storage-backend", "string", "etcd3", "API of the storage backend")
	fix(flags, "storage-media-type", "string", "application/json", "format of stored objects")
	klogFlags(flags)
	return cmd
}

// useUpstreamPlugins disables the admission plugin that is on by default in Trellis alone, unless a flag enables it.
func (f *serveFlags) useUpstreamPlugins() {
	const plugin = "DenyServiceExternalIPs"
	admission := &f.config.Admission
	if !slices.Contains(admission.Enable, plugin) && !slices.Contains(admission.Disable, plugin) {
		admission.Disable = append(admission.Disable, plugin)
	}
}

// serveCertDir has the certificate of a folder served, if there is one and none is named.
func (f *serveFlags) serveCertDir(dir string) error {
	if dir == "" || f.config.TLS.CertFile != "" {
		return nil
	}
	certificate, key := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	for _, file := range []string{certificate, key} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	f.config.TLS.CertFile, f.config.TLS.KeyFile = certificate, key
	return nil
}

// keepBehind says where things are kept: with a stand-in for etcd in its data directory, otherwise objects in
// etcd and the rest nowhere.
func (f *serveFlags) keepBehind(ctx context.Context) error {
	c := &f.config
	c.DataDir = ""
	switch len(c.Etcd.Servers) {
	case 0:
		return errors.New("--etcd-servers must be specified")
	case 1:
		if is, ok := whoIs(ctx, c.Etcd.Servers[0]); ok {
			c.DataDir, c.Etcd.Servers = is.DataDir, nil
		}
	}
	return nil
}
