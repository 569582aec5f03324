package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// scriptCommands holds the commands of scripts in addition to those of testscript.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"cmpmask": cmpMask,
	"await":   await,
	"http":    httpRequest,
	"big":     big,
	"webhook": webhook,
	"pick":    pick,
	"login":   login,
	"kubelet": runKubelet,
	"tunnel":  runTunnel,
}

// scriptTimeout limits each wait of a script.
const scriptTimeout = 30 * time.Second

// masks holds patterns of values that differ between runs, and their replacements.
var masks = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`(resourceVersion"?: ?)"\d+"`), `${1}"VERSION"`},
	{regexp.MustCompile(`\b(\d+[dhms]){1,2}\b|<invalid>`), "AGE"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m) $`), ""},
}

// masked replaces the values in text that differ between runs.
func masked(text string) string {
	for _, m := range masks {
		text = m.pattern.ReplaceAllString(text, m.mask)
	}
	return strings.TrimSpace(text) + "\n"
}

// cmpMask compares two files like cmp: cmpmask GOT WANT. It ignores differences of ages, UIDs, timestamps, resource
// versions and numbers of spaces. Each argument is a file, stdout or stderr. WANT may contain example values.
func cmpMask(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: cmpmask got want")
	}
	got, want := masked(ts.ReadFile(args[0])), masked(ts.ReadFile(args[1]))
	if (got == want) == neg {
		ts.Fatalf("%s and %s (masked):\n--- got\n%s--- want\n%s", args[0], args[1], got, want)
	}
}

// await waits until a file that another command writes matches a pattern: await FILE PATTERN [NAME]. The variable NAME
// is set to the text of the first group.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 && len(args) != 3 {
		ts.Fatalf("usage: await file pattern [name]")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	deadline := time.After(scriptTimeout)
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		if match := pattern.FindSubmatch(data); err == nil && match != nil {
			if len(args) == 3 {
				ts.Setenv(args[2], string(match[1]))
			}
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("no match for %q in %s:\n%s", args[1], args[0], data)
		}
	}
}

// httpRequest sends a request and prints the status, some headers, and the body of the response: http [-anonymous]
// METHOD PATH [Header:value…] [@bodyfile].
func httpRequest(ts *testscript.TestScript, neg bool, args []string) {
	config, err := clientcmd.BuildConfigFromFlags("", ts.Getenv("KUBECONFIG"))
	ts.Check(err)
	if len(args) > 0 && args[0] == "-anonymous" {
		config, args = rest.AnonymousClientConfig(config), args[1:]
	}
	if len(args) < 2 {
		ts.Fatalf("usage: http [-anonymous] METHOD PATH [Header:value…] [@bodyfile]")
	}
	client, err := rest.HTTPClientFor(config)
	ts.Check(err)
	defer client.CloseIdleConnections()
	header, body := http.Header{}, io.Reader(nil)
	for _, a := range args[2:] {
		if file, ok := strings.CutPrefix(a, "@"); ok {
			body = strings.NewReader(ts.ReadFile(file))
			continue
		}
		name, value, _ := strings.Cut(a, ":")
		header.Add(name, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, args[0], config.Host+args[1], body)
	ts.Check(err)
	req.Header = header
	resp, err := client.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), resp.StatusCode)
	for _, name := range []string{"Allow", "Content-Type", "Content-Encoding", "Etag", "Warning"} {
		for _, value := range resp.Header.Values(name) {
			fmt.Fprintf(ts.Stdout(), "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(ts.Stdout(), "\n%s\n", data)
	if neg != (resp.StatusCode >= 400) {
		ts.Fatalf("%s %s: %d\n%s", args[0], args[1], resp.StatusCode, data)
	}
}

// big replaces a placeholder in a file with a text of BYTES bytes: big FILE PLACEHOLDER BYTES.
func big(ts *testscript.TestScript, neg bool, args []string) {
	var size int
	if neg || len(args) != 3 {
		ts.Fatalf("usage: big file placeholder bytes")
	}
	_, err := fmt.Sscan(args[2], &size)
	ts.Check(err)
	text := strings.ReplaceAll(ts.ReadFile(args[0]), args[1], strings.Repeat("x", size))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// pick prints a part of a JSON document, indented and with sorted keys: pick FILE KEY...
func pick(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: pick file key...")
	}
	var value any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &value))
	for _, key := range args[1:] {
		m, _ := value.(map[string]any)
		if value = m[key]; value == nil {
			break
		}
	}
	if neg != (value == nil) {
		ts.Fatalf("%s of %s is %v", args[1:], args[0], value)
	}
	text, err := json.MarshalIndent(value, "", "  ")
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%s\n", text)
}

// login writes a kubeconfig to FILE: login FILE. The kubeconfig contains the token that the last command has printed.
func login(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: login file")
	}
	config, err := clientcmd.LoadFromFile(ts.Getenv("KUBECONFIG"))
	ts.Check(err)
	context := config.Contexts[config.CurrentContext]
	context.AuthInfo = "token"
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{"token": {Token: strings.TrimSpace(ts.ReadFile("stdout"))}}
	ts.Check(clientcmd.WriteToFile(*config, ts.MkAbs(args[0])))
}

// cleanUp deletes the objects that earlier scripts have created on the API server of the variable otherServer.
func cleanUp(t *testing.T, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	remove(t, ctx, client.Resource(crds), func(name string) bool { return strings.HasSuffix(name, "example.com") })
	remove(t, ctx, client.Resource(namespaces), func(name string) bool { return strings.HasPrefix(name, "script-") })
}

// remove deletes the selected objects, and waits until they are removed.
func remove(t *testing.T, ctx context.Context, client dynamic.ResourceInterface, selected func(name string) bool) {
	t.Helper()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, o := range list.Items {
			if !selected(o.GetName()) {
				continue
			}
			left++
			if o.GetDeletionTimestamp() == nil {
				_ = client.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("clean up: timed out with %d objects left", left)
		}
	}
}
