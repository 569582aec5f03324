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

// assets are the programs that envtest of controller-runtime looks for. This program is each of them when
// it has that name.
var assets = []string{"kube-apiserver", "etcd", "kubectl"}

func newEnvtest() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest DIR",
		Short: "Fill a folder for KUBEBUILDER_ASSETS",
		Long: `Fill a folder with the programs that envtest of controller-runtime starts, and print its path:
kube-apiserver, etcd and kubectl, all of which are this program under another name.

What is there under these names is replaced. kube-apiserver takes the flags that envtest passes, and
says of any other that it does not know it. etcd stores nothing: it names the folder in which that
kube-apiserver keeps its objects.`,
		Example: `  # The tests of an operator, unchanged
  KUBEBUILDER_ASSETS="$(trellis envtest bin/k8s)" go test ./...`,
		Args: takes("one DIR", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0]) // for tests run in the folder of their package
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

// fillAssets puts this program into a folder under the names of all assets. Each is there whole or not at
// all, so that tests may run meanwhile.
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
		if extension := filepath.Ext(program); strings.EqualFold(extension, ".exe") { // and not that of a version, as in trellis-v1.37.2
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

// linkOrCopy makes a hard link, or a copy where that is not possible: on another file system, say.
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
