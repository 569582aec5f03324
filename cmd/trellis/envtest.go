package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// assets holds the names of the programs that envtest of controller-runtime starts. When this program runs under one
// of these names, it behaves as the program with that name.
var assets = []string{"kube-apiserver", "etcd", "kubectl"}

func newEnvtest() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest DIR",
		Short: "Install the programs that envtest starts (KUBEBUILDER_ASSETS)",
		Long: `Install the programs that envtest of controller-runtime starts: kube-apiserver, etcd and
kubectl. All of them are this program under another name. The command writes them to the
folder DIR, replaces existing files with these names, and prints the path of the folder.

kube-apiserver accepts the flags that envtest passes, and rejects unknown flags. etcd stores
nothing: kube-apiserver stores the objects in etcd's data directory.`,
		Example: `  # Run the tests of an operator without changes
  KUBEBUILDER_ASSETS="$(trellis envtest bin/k8s)" go test ./...`,
		Args: takes("one DIR", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0]) // absolute, because tests run in the folder of their package
			if err != nil {
				return err
			}
			if err := fillAssets(dir); err != nil {
				return fmt.Errorf("fill %s: %w", dir, err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
			return err
		},
	}
}

// fillAssets writes this program to a folder under the names of all assets. It replaces each file atomically, so that
// tests can run at the same time.
func fillAssets(dir string) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(dir, ".unfinished-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	for _, name := range assets {
		// only .exe is an extension, not the .2 of trellis-v1.37.2
		if extension := filepath.Ext(program); strings.EqualFold(extension, ".exe") {
			name += extension
		}
		if err := linkOrCopy(program, filepath.Join(unfinished, name)); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(unfinished, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// linkOrCopy creates a hard link. It creates a copy if a link is not possible, for example on another file system.
func linkOrCopy(program, path string) (err error) {
	if os.Link(program, path) == nil {
		return nil
	}
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
