package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/api/handlers"
	"github.com/trellis-k8s/trellis/internal/engine/trace"
)

// whyFlags holds the values of the flags of why.
type whyFlags struct {
	client *genericclioptions.ConfigFlags
	files  resource.FilenameOptions
	verb   string
	all    bool
}

func newWhy() *cobra.Command {
	f := whyFlags{client: genericclioptions.NewConfigFlags(true)}
	cmd := &cobra.Command{
		Use:   "why -f FILE",
		Short: "Explain how the server processes an object, step by step (dry run)",
		Long: `Send each object in a file to the server as a dry run, and show how the server processes
it step by step. The steps include the defaults of the schema and each admission plugin,
webhook and policy. The output shows the changes, the rejections and the duration of each
step. The server stores nothing.

By default, a step that changes nothing and takes less than a millisecond is not shown. If
neither --kubeconfig nor KUBECONFIG is set, the command uses .trellis/admin.kubeconfig. The
exit code is 1 if the server would reject an object.`,
		Example: `  trellis why -f cron-tab.yaml
  trellis why -f pod.yaml --verb create --as jane`,
		Args: takes("no arguments", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&f.files.Filenames, "filename", "f", nil,
		"file, folder or URL that contains the objects ('-' means standard input)")
	flags.StringVar(&f.verb, "verb", "apply", "operation on the objects: apply (server-side), create, update or delete")
	flags.BoolVar(&f.all, "all", false, "show all steps")
	flags.StringVar(f.client.KubeConfig, "kubeconfig", "",
		"kubeconfig of the API server (empty means the environment variable KUBECONFIG, or "+
			defaultKubeconfig+")")
	flags.StringVarP(f.client.Namespace, "namespace", "n", "", "namespace of objects that specify no namespace")
	flags.StringVar(f.client.Impersonate, "as", "", "user to impersonate")
	flags.StringArrayVar(f.client.ImpersonateGroup, "as-group", nil, "group to impersonate; can be repeated")
	return cmd
}

func (f *whyFlags) run(ctx context.Context, out io.Writer) error {
	if len(f.files.Filenames) == 0 {
		return errors.New("-f must be set: specify a file")
	}
	if whyVerbs[f.verb] == nil {
		return fmt.Errorf("--verb %q must be apply, create, update or delete", f.verb)
	}
	if err := useLocalServer(f.client); err != nil {
		return err
	}
	namespace, explicit, err := f.client.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	found := resource.NewBuilder(f.client).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		FilenameParam(explicit, &f.files).Flatten().Do()
	rejected := 0
	err = found.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		t, err := f.dryRun(ctx, info)
		if err != nil {
			return err
		}
		if t.Code >= 400 {
			rejected++
		}
		return f.show(out, info, t)
	})
	if err == nil && rejected > 0 {
		err = fmt.Errorf("the server would reject %d of the objects", rejected)
	}
	return err
}

// whyVerbs holds a function for each verb. The function creates the request for an object.
var whyVerbs = map[string]func(c resource.RESTClient, info *resource.Info, body []byte) *rest.Request{
	"apply": func(c resource.RESTClient, info *resource.Info, body []byte) *rest.Request {
		return c.Patch(types.ApplyPatchType).Name(info.Name).Param("fieldManager", "kubectl").Param("force", "true").
			Body(body)
	},
	"create": func(c resource.RESTClient, _ *resource.Info, body []byte) *rest.Request { return c.Post().Body(body) },
	"update": func(c resource.RESTClient, info *resource.Info, body []byte) *rest.Request {
		return c.Put().Name(info.Name).Body(body)
	},
	"delete": func(c resource.RESTClient, info *resource.Info, _ []byte) *rest.Request {
		return c.Delete().Name(info.Name)
	},
}

// dryRun sends an object as a dry run. It returns the response of the server, which contains the steps.
func (f *whyFlags) dryRun(ctx context.Context, info *resource.Info) (*handlers.Traced, error) {
	body, err := runtime.Encode(unstructured.UnstructuredJSONScheme, info.Object)
	if err != nil {
		return nil, err
	}
	r := whyVerbs[f.verb](info.Client, info, body)
	result := r.NamespaceIfScoped(info.Namespace, info.Namespaced()).Resource(info.Mapping.Resource.Resource).
		Param("dryRun", metav1.DryRunAll).Param(handlers.TraceParameter, "true").
		SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	answer, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var t handlers.Traced
	if err := json.Unmarshal(answer, &t); err != nil || t.Code == 0 {
		return nil, fmt.Errorf("the server does not support the parameter %s, so it is not Trellis",
			handlers.TraceParameter)
	}
	return &t, nil
}

// show prints the result of a dry run and its steps.
func (f *whyFlags) show(out io.Writer, info *resource.Info, t *handlers.Traced) error {
	name := info.Mapping.GroupVersionKind.Kind + " " + info.Name
	if info.Namespaced() {
		name += " in " + info.Namespace
	}
	var status metav1.Status
	verdict := "accepted"
	if t.Code >= 400 && json.Unmarshal(t.Answer, &status) == nil {
		verdict = "rejected, " + string(status.Reason) + ": " + status.Message
	}
	if _, err := fmt.Fprintf(out, "%s of %s (dry run): %d %s\n", f.verb, name, t.Code, verdict); err != nil {
		return err
	}
	for i, s := range t.Steps {
		if !f.all && !notable(t.Steps[i:]) {
			continue
		}
		indent := strings.Repeat("  ", s.Depth+1)
		line := fmt.Sprintf("%s%-*s %8s", indent, 40-len(indent), s.Name, s.Took.Round(time.Microsecond))
		if s.Cost > 0 {
			line += fmt.Sprintf("  rules cost %d", s.Cost)
		}
		if s.Refused != "" {
			line += "  rejected: " + s.Refused
		}
		for _, c := range s.Changes {
			line += "\n" + indent + "    " + formatChange(c)
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// notable reports whether the first step or one of its substeps changes the object, rejects it, or takes at least a
// millisecond.
func notable(steps []*trace.Step) bool {
	for i, s := range steps {
		if i > 0 && s.Depth <= steps[0].Depth {
			return false
		}
		if len(s.Changes) > 0 || s.Cost > 0 || s.Refused != "" || s.Took >= time.Millisecond {
			return true
		}
	}
	return false
}

// formatChange returns a change as one line.
func formatChange(c trace.Change) string {
	text := func(v any) string {
		js, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(js)
	}
	switch {
	case c.Before == nil:
		return "+ " + c.Field + ": " + text(c.After)
	case c.After == nil:
		return "- " + c.Field + ": " + text(c.Before)
	}
	return "~ " + c.Field + ": " + text(c.Before) + " -> " + text(c.After)
}
