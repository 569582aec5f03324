package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/flags"
)

// namespaceDelay is the time from the deletion of a namespace to the first write of the namespace controller. The
// original envtest has no namespace controller, so tests finalize their namespaces themselves. They can do this
// within the delay.
const namespaceDelay = 3 * time.Second

// newKubeAPIServer returns the command that runs under the name kube-apiserver.
func newKubeAPIServer() *cobra.Command {
	f := serveFlags{Options: newOptions()}
	var certDir string
	cmd := &cobra.Command{
		Use:   "kube-apiserver",
		Short: "Trellis with the flags of kube-apiserver that envtest passes",
		Long: `This program is Trellis under the name kube-apiserver, for tests with envtest. If the server at
--etcd-servers is the etcd stub of Trellis, all state is stored in the --data-dir of the stub. If it is
a real etcd, the objects are stored in etcd.`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.useUpstreamPlugins()
			if err := errors.Join(f.Complete(cmd.Flags()), f.serveCertDir(certDir)); err != nil {
				return err
			}
			if err := f.chooseStore(cmd.Context()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, io.Discard)
		},
	}
	fs, serveGroups := cmd.Flags(), f.bind()
	f.Controllers, f.NamespaceDelay = []string{upstream.ClusterRoleAggregation}, namespaceDelay
	for name, group := range serveGroups.FlagSets {
		group.VisitAll(func(flag *pflag.Flag) {
			// The data directory is that of the etcd stub, --apply is for development, and envtest has no
			// controllers.
			if flag.Name != "data-dir" && flag.Name != "apply" && name != "controllers" {
				fs.AddFlag(flag)
			}
		})
	}
	fs.StringVar(&certDir, "cert-dir", "",
		"folder that can contain the serving certificate apiserver.crt and its key apiserver.key. They are used if "+
			"they exist and --tls-cert-file is not set")
	privileged := fs.Lookup("allow-privileged")
	privileged.DefValue = "false"
	_ = privileged.Value.Set(privileged.DefValue) // cannot fail: the text is a boolean
	flags.Fixed(fs, "watch-cache", "bool", "true", "serve reads and watches from memory")
	flags.Fixed(fs, "endpoint-reconciler-type", "string", "none",
		"method to update the endpoints of the Service default/kubernetes")
	flags.Fixed(fs, "storage-backend", "string", "etcd3", "API of the storage backend")
	flags.Fixed(fs, "storage-media-type", "string", "application/json", "format of stored objects")
	klogFlags(fs)
	return cmd
}

// useUpstreamPlugins disables the admission plugin that Trellis enables by default and kube-apiserver does not. A
// flag can enable the plugin.
func (f *serveFlags) useUpstreamPlugins() {
	const plugin = "DenyServiceExternalIPs"
	admission := &f.Admission
	if !slices.Contains(admission.Enable, plugin) && !slices.Contains(admission.Disable, plugin) {
		admission.Disable = append(admission.Disable, plugin)
	}
}

// serveCertDir sets the certificate in dir as the serving certificate if it exists and --tls-cert-file is not set.
func (f *serveFlags) serveCertDir(dir string) error {
	if dir == "" || f.TLS.CertFile != "" {
		return nil
	}
	certificate, key := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	for _, file := range []string{certificate, key} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	f.TLS.CertFile, f.TLS.KeyFile = certificate, key
	return nil
}

// chooseStore sets the store. With an etcd stub, all state is in the stub's data directory. With a real etcd, objects
// are in etcd and all other state is in memory.
func (f *serveFlags) chooseStore(ctx context.Context) error {
	c := &f.Config
	c.DataDir = ""
	switch len(c.Etcd.Servers) {
	case 0:
		return errors.New("--etcd-servers must be specified")
	case 1:
		if stub, ok := findStub(ctx, c.Etcd.Servers[0]); ok {
			c.DataDir, c.Etcd.Servers = stub.DataDir, nil
		}
	}
	return nil
}
