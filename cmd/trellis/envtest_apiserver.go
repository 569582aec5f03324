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
)

// namespaceDelay is the time from the deletion of a namespace to the first write of the namespace controller. The
// original envtest has no namespace controller, so tests finalize their namespaces themselves. They can do this
// within the delay.
const namespaceDelay = 3 * time.Second

// newKubeAPIServer returns the command that runs under the name kube-apiserver.
func newKubeAPIServer() *cobra.Command {
	var f serveFlags
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
			if err := errors.Join(f.checkAuthorization(cmd.Flags()), f.complete(),
				f.serveCertDir(certDir)); err != nil {
				return err
			}
			if err := f.chooseStore(cmd.Context()); err != nil {
				return err
			}
			return serve(cmd.Context(), &f, io.Discard)
		},
	}
	flags, serveGroups := cmd.Flags(), f.bind()
	f.config.Controllers, f.config.NamespaceDelay = []string{upstream.ClusterRoleAggregation}, namespaceDelay
	for name, group := range serveGroups.FlagSets {
		group.VisitAll(func(flag *pflag.Flag) {
			// The data directory is that of the etcd stub, --apply is for development, and envtest has no
			// controllers.
			if flag.Name != "data-dir" && flag.Name != "apply" && name != "controllers" {
				flags.AddFlag(flag)
			}
		})
	}
	flags.StringVar(&certDir, "cert-dir", "",
		"folder that can contain the serving certificate apiserver.crt and its key apiserver.key. They are used if "+
			"they exist and --tls-cert-file is not set")
	privileged := flags.Lookup("allow-privileged")
	privileged.DefValue = "false"
	_ = privileged.Value.Set(privileged.DefValue) // cannot fail: the text is a boolean
	fix(flags, "watch-cache", "bool", "true", "serve reads and watches from memory")
	fix(flags, "endpoint-reconciler-type", "string", "none",
		"method to update the endpoints of the Service default/kubernetes")
	fix(flags, "storage-backend", "string", "etcd3", "API of the storage backend")
	fix(flags, "storage-media-type", "string", "application/json", "format of stored objects")
	klogFlags(flags)
	return cmd
}

// useUpstreamPlugins disables the admission plugin that Trellis enables by default and kube-apiserver does not. A
// flag can enable the plugin.
func (f *serveFlags) useUpstreamPlugins() {
	const plugin = "DenyServiceExternalIPs"
	admission := &f.config.Admission
	if !slices.Contains(admission.Enable, plugin) && !slices.Contains(admission.Disable, plugin) {
		admission.Disable = append(admission.Disable, plugin)
	}
}

// serveCertDir sets the certificate in dir as the serving certificate if it exists and --tls-cert-file is not set.
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

// chooseStore sets the store. With an etcd stub, all state is in the stub's data directory. With a real etcd, objects
// are in etcd and all other state is in memory.
func (f *serveFlags) chooseStore(ctx context.Context) error {
	c := &f.config
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
