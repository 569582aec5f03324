package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	clientwatch "k8s.io/client-go/tools/watch"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// migrateFlags holds the values of the flags of migrate.
type migrateFlags struct {
	kubeconfig string
	timeout    time.Duration
}

func newMigrate() *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "migrate KIND[[.VERSION].GROUP]",
		Short: "Rewrite stored objects at the current storage version",
		Long: `Start a storage migration and show its progress.

When an object is written, the server stores it at the storage version of its
CustomResourceDefinition. If the storage version changes later, existing objects remain
stored at the old version. The migration writes each of them again, without a change. Then
it removes the old versions from status.storedVersions of the CustomResourceDefinition. So
you can remove them from spec.versions.

The command creates a StorageVersionMigration of storagemigration.k8s.io/v1. To list
these objects, run kubectl get storageversionmigrations. The server continues the migration
if this command is interrupted, and also after a restart of the server.

If neither --kubeconfig nor KUBECONFIG is set, the command uses
.trellis/admin.kubeconfig. The exit code is 0 if all objects are migrated.`,
		Example: `  trellis migrate crontabs.stable.example.com
  trellis migrate ct --timeout 10m`,
		Args: takes("one KIND", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig of the API server (empty means the environment variable KUBECONFIG, or "+
			defaultKubeconfig+")")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0,
		"maximum time to wait for the end of the migration (0 means no limit)")
	return cmd
}

func (f *migrateFlags) run(ctx context.Context, kind string, out io.Writer) error {
	switch {
	case kind == "":
		return errors.New("KIND must not be empty")
	case f.timeout < 0:
		return fmt.Errorf("--timeout %s must not be negative", f.timeout)
	case f.timeout > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	config, err := clientConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	found, err := find(config, kind)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	migrations := client.Resource(storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations"))
	name, err := request(ctx, migrations, found.GroupResource())
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the server did not respond within %s", f.timeout)
	}
	if err != nil {
		return err
	}
	return follow(ctx, migrations, name, found.GroupResource(), out)
}

// clientConfig returns the client configuration of the file kubeconfig. If the file name is "", it uses KUBECONFIG or
// the kubeconfig of the server in this folder.
func clientConfig(kubeconfig string) (*rest.Config, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &kubeconfig
	if err := useLocalServer(flags); err != nil {
		return nil, err
	}
	return flags.ToRESTConfig()
}

// useLocalServer sets the kubeconfig of the server in this folder if neither the flags nor KUBECONFIG name a
// kubeconfig.
func useLocalServer(flags *genericclioptions.ConfigFlags) error {
	if *flags.KubeConfig != "" || os.Getenv("KUBECONFIG") != "" {
		return nil
	}
	if _, err := os.Stat(defaultKubeconfig); errors.Is(err, fs.ErrNotExist) {
		return errors.New(noServerHere)
	}
	*flags.KubeConfig = defaultKubeconfig
	return nil
}

// find returns the resource for a kind. The kind has any form that kubectl accepts, with or without version and
// group.
func find(config *rest.Config, kind string) (schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	cached := memory.NewMemCacheClient(client) // not kubectl's cache on disk, which may be older than the kind
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	versioned, group := schema.ParseResourceArg(strings.ToLower(kind))
	if versioned == nil {
		versioned = new(group.WithVersion(""))
	}
	found, err := mapper.ResourceFor(*versioned)
	if meta.IsNoMatchError(err) {
		found, err = mapper.ResourceFor(group.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return found, fmt.Errorf("the server doesn't have a resource type %q", kind) // kubectl's message
	}
	if text, ok := cmdutil.StandardErrorMessage(err); ok { // the connection was refused
		return found, errors.New(strings.TrimPrefix(text, "error: "))
	}
	return found, err
}

// request creates the StorageVersionMigration of a resource and returns its name.
func request(ctx context.Context, client dynamic.ResourceInterface, resource schema.GroupResource) (name string,
	err error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&storagemigrationv1.StorageVersionMigration{
		TypeMeta: metav1.TypeMeta{
			APIVersion: storagemigrationv1.SchemeGroupVersion.String(), Kind: "StorageVersionMigration",
		},
		ObjectMeta: metav1.ObjectMeta{GenerateName: resource.Resource + "-"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource(resource)},
	})
	if err != nil {
		return "", err
	}
	created, err := client.Create(ctx, &unstructured.Unstructured{Object: content},
		metav1.CreateOptions{FieldManager: "trellis-migrate"})
	if err != nil {
		return "", err
	}
	return created.GetName(), nil
}

// follow shows the progress of a migration until it ends. It returns an error if the migration fails.
func follow(ctx context.Context, client dynamic.ResourceInterface, name string, resource schema.GroupResource,
	out io.Writer) error {
	only := "metadata.name=" + name
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return client.Watch(ctx, o)
		},
	}
	show := newProgress(out, resource)
	_, err := clientwatch.UntilWithSync(ctx, source, &unstructured.Unstructured{}, nil,
		func(ev watch.Event) (bool, error) {
			if ev.Type == watch.Deleted {
				return false, fmt.Errorf("StorageVersionMigration %s was deleted", name)
			}
			u, ok := ev.Object.(*unstructured.Unstructured)
			if !ok {
				return false, apierrors.FromObject(ev.Object)
			}
			return show.update(u)
		})
	show.end()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("timed out waiting for the migration of %s. It continues on the server: see kubectl get "+
			"storageversionmigrations %s", resource, name)
	}
	return err
}

// progress shows the progress of a migration: a bar on a terminal, otherwise a line for each step.
type progress struct {
	out      io.Writer
	resource schema.GroupResource
	bar      *progressbar.ProgressBar // nil without a terminal
	last     string
}

func newProgress(out io.Writer, resource schema.GroupResource) *progress {
	p := &progress{out: out, resource: resource}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions64(1, progressbar.OptionSetWriter(out),
			progressbar.OptionSetDescription(resource.String()), progressbar.OptionShowCount())
	}
	return p
}

// update shows one state of a migration. done is true if the migration has succeeded. err is not nil if it has
// failed.
func (p *progress) update(u *unstructured.Unstructured) (done bool, err error) {
	var svm storagemigrationv1.StorageVersionMigration
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &svm); err != nil {
		return false, err
	}
	var migrated, all int64
	if _, err := fmt.Sscanf(svm.Annotations[resource.MigrationProgressAnnotation], "%d/%d", &migrated,
		&all); err == nil {
		p.count(migrated, all)
	}
	conditions := svm.Status.Conditions
	if c := meta.FindStatusCondition(conditions, string(storagemigrationv1.MigrationFailed)); c != nil &&
		c.Status == metav1.ConditionTrue {
		return false, fmt.Errorf("%s: %s", p.resource, c.Message)
	}
	if c := meta.FindStatusCondition(conditions, string(storagemigrationv1.MigrationRunning)); c != nil &&
		c.Message != "" {
		p.printLine(c.Message)
	}
	if meta.IsStatusConditionTrue(conditions, string(storagemigrationv1.MigrationSucceeded)) {
		p.end()
		p.printLine("migrated")
		return true, nil
	}
	return false, nil
}

func (p *progress) count(migrated, all int64) {
	if p.bar == nil {
		p.printLine(fmt.Sprintf("%d of %d objects", migrated, all))
		return
	}
	p.bar.ChangeMax64(max(all, 1))
	_ = p.bar.Set64(migrated) // a closed terminal does not end the command
}

// printLine prints a line, unless the previous line is equal.
func (p *progress) printLine(text string) {
	if text != p.last {
		fmt.Fprintf(p.out, "%s: %s\n", p.resource, text)
	}
	p.last = text
}

// end closes the bar.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Exit()
		p.bar = nil
	}
}
