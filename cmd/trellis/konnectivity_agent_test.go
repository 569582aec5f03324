package main

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// TestProxyAgent checks that the program runs as an agent if its name is proxy-agent. The flags are those of the
// manifest in the documentation. KON-037
func TestProxyAgent(t *testing.T) {
	if code, stderr := runCommand(t, "/proxy-agent", "--logtostderr=true", "--proxy-server-port=0"); code != 1 ||
		!strings.Contains(stderr, "error: --proxy-server-port 0 ") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code, stderr := runCommand(t, "/proxy-agent", "--no-such"); code != 1 ||
		stderr != "error: unknown flag: --no-such (see proxy-agent --help)\n" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// runCommand runs a command line, and returns the exit code and the output on stderr.
func runCommand(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	before := os.Stderr
	os.Stderr = output
	code = run(args)
	os.Stderr = before
	text, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

// TestAgentFlags checks that the agent has all flags of the reference proxy-agent, including the flags of klog. Names
// and defaults must be the same, except for the default of --keepalive-time. KON-037
func TestAgentFlags(t *testing.T) {
	want := map[string]string{
		"agent-cert": "", "agent-key": "", "ca-cert": "", "proxy-server-host": "127.0.0.1", "proxy-server-port": "8091",
		"alpn-proto":         "[]",
		"health-server-host": "", "health-server-port": "8093", "admin-server-port": "8094",
		"admin-bind-address": "127.0.0.1",
		"enable-profiling":   "false", "enable-contention-profiling": "false", "agent-id": "", "sync-interval": "1s",
		"probe-interval":    "1s",
		"sync-interval-cap": "10s", "keepalive-time": "30s", "service-account-token-path": "", "agent-identifiers": "",
		"warn-on-channel-limit": "false", "sync-forever": "false", "xfr-channel-size": "150",
		"count-server-leases": "false",
		"lease-namespace":     "kube-system", "lease-label-selector": "k8s-app=konnectivity-server",
		"lease-label":         "k8s-app=konnectivity-server",
		"server-count-source": "default", "kubeconfig": "",
		"kube-api-content-type": "application/vnd.kubernetes.protobuf",
	}
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	logging.VisitAll(func(f *flag.Flag) { want[strings.ReplaceAll(f.Name, "_", "-")] = f.DefValue })
	newKonnectivityAgent().Flags().VisitAll(func(f *pflag.Flag) {
		if value, known := want[f.Name]; !known || value != f.DefValue {
			t.Errorf("--%s: default %q, want %q", f.Name, f.DefValue, value)
		}
		delete(want, f.Name)
	})
	if len(want) > 0 {
		t.Errorf("missing flags: %v", want)
	}
}

// TestAgentRejects checks that invalid flags are rejected. The error names the flag and the accepted values.
// KON-037
func TestAgentRejects(t *testing.T) {
	for args, want := range map[string]string{
		"--agent-cert /dev/null":               "--agent-cert and --agent-key must be set together",
		"--agent-cert none --agent-key none":   "none: no such file",
		"--ca-cert none":                       "--ca-cert: stat none: no such file or directory",
		"--service-account-token-path none":    "--service-account-token-path: stat none: no such file or directory",
		"--kubeconfig none":                    "--kubeconfig: stat none: no such file or directory",
		"--proxy-server-host=":                 "--proxy-server-host must not be empty",
		"--proxy-server-host a.example:8132":   `--proxy-server-host "a.example:8132" must be a host name`,
		"--proxy-server-host https://a":        "Set the port with --proxy-server-port",
		"--proxy-server-host [::1]":            "Set the port with --proxy-server-port",
		"--proxy-server-port 0":                "--proxy-server-port 0 must be between 1 and 65535",
		"--health-server-port 65536":           "--health-server-port 65536 must be between 0 and 65535",
		"--admin-server-port -1":               "--admin-server-port -1 must be between 0 and 65535",
		"--xfr-channel-size 0":                 `invalid argument "0" for "--xfr-channel-size" flag: only "150" is supported`,
		"--probe-interval 2s":                  `only "1s" is supported`,
		"--keepalive-time 0":                   "--keepalive-time must be greater than 0",
		"--sync-interval 11s":                  "--sync-interval must be greater than 0 and at most --sync-interval-cap",
		"--sync-interval 0":                    "--sync-interval must be greater than 0 and at most --sync-interval-cap",
		"--server-count-source min":            `--server-count-source "min" must be default or max`,
		"--enable-contention-profiling":        "--enable-contention-profiling requires --enable-profiling",
		"--agent-identifiers %":                `--agent-identifiers: invalid URL escape "%"`,
		"--agent-identifiers uid=1":            `--agent-identifiers: unknown kind "uid", must be one of [host cidr ipv4 ipv6 default-route]`,
		"--lease-label-selector ==":            "--lease-label-selector: ",
		"--lease-label ==":                     "--lease-label-selector: ",
		"--proxy-server-port eight":            `invalid argument "eight" for "--proxy-server-port"`,
		"extra":                                "accepts no arguments",
		"--log-file-max-size x --logtostderr":  "--log-file-max-size",
		"--server-count-source max --no-such=": "--no-such",
	} {
		cmd := newKonnectivityAgent()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(args))
		canceled, cancel := context.WithCancel(t.Context())
		cancel() // the context is canceled, so a command with valid flags ends immediately
		if err := cmd.ExecuteContext(canceled); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
