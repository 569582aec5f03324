package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// KON-037: the program is an agent when it is called proxy-agent, as it is in the documentation's manifest.
func TestProxyAgent(t *testing.T) {
	said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	stderr := os.Stderr
	os.Stderr = said
	code := run([]string{"/proxy-agent", "--logtostderr=true", "--proxy-server-port=0"})
	os.Stderr = stderr
	if text, err := os.ReadFile(said.Name()); code != 1 || err != nil || !strings.Contains(string(text), "error: --proxy-server-port: 0 ") {
		t.Errorf("exit code %d, %s, %v", code, text, err)
	}
}

// KON-037: all flags of the reference are there, with its defaults but for keepalive, and klog's under their names there.
func TestAgentFlags(t *testing.T) {
	want := map[string]string{
		"agent-cert": "", "agent-key": "", "ca-cert": "", "proxy-server-host": "127.0.0.1", "proxy-server-port": "8091", "alpn-proto": "[]",
		"health-server-host": "", "health-server-port": "8093", "admin-server-port": "8094", "admin-bind-address": "127.0.0.1",
		"enable-profiling": "false", "enable-contention-profiling": "false", "agent-id": "", "sync-interval": "1s", "probe-interval": "1s",
		"sync-interval-cap": "10s", "keepalive-time": "30s", "service-account-token-path": "", "agent-identifiers": "",
		"warn-on-channel-limit": "false", "sync-forever": "false", "xfr-channel-size": "150", "count-server-leases": "false",
		"lease-namespace": "kube-system", "lease-label-selector": "k8s-app=konnectivity-server", "lease-label": "k8s-app=konnectivity-server",
		"server-count-source": "default", "kubeconfig": "", "kube-api-content-type": "application/vnd.kubernetes.protobuf",
	}
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	logging.VisitAll(func(f *flag.Flag) { want[strings.ReplaceAll(f.Name, "_", "-")] = f.DefValue })
	newKonnectivityAgent().Flags().VisitAll(func(f *pflag.Flag) {
		if value, known := want[f.Name]; !known || value != f.DefValue {
			t.Errorf("--%s is by default %q, want %q", f.Name, f.DefValue, value)
		}
		delete(want, f.Name)
	})
	if len(want) > 0 {
		t.Errorf("there are no flags for %v", want)
	}
}

// KON-037: the ID is the flag's, or else the environment's, or else one of its own.
func TestAgentID(t *testing.T) {
	for _, c := range []struct{ flag, env, want string }{{"flag", "env", "flag"}, {"", "env", "env"}, {"", "", ""}} {
		t.Setenv("PROXY_AGENT_ID", c.env)
		var f agentFlags
		f.bind(pflag.NewFlagSet("", pflag.ContinueOnError))
		f.ID = c.flag
		if err := f.complete(); err != nil || c.want != "" && f.ID != c.want || len(f.ID) == 0 {
			t.Errorf("%+v: %q, %v", c, f.ID, err)
		}
	}
}

// KON-037: what cannot work is refused, with its flag and what to do.
func TestAgentRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--agent-cert /dev/null":               "--agent-cert and --agent-key: name both or none",
		"--agent-cert none --agent-key none":   "none: no such file",
		"--ca-cert none":                       "--ca-cert: stat none: no such file or directory",
		"--service-account-token-path none":    "--service-account-token-path: stat none: no such file or directory",
		"--kubeconfig none":                    "--kubeconfig: stat none: no such file or directory",
		"--proxy-server-host=":                 "--proxy-server-host: name the servers",
		"--proxy-server-port 0":                "--proxy-server-port: 0 is not between 1 and 65535",
		"--health-server-port 65536":           "--health-server-port: 65536 is not between 0 and 65535",
		"--admin-server-port -1":               "--admin-server-port: -1 is not between 0 and 65535",
		"--xfr-channel-size 0":                 "--xfr-channel-size: must be more than 0",
		"--keepalive-time 0":                   "--keepalive-time: must be more than 0",
		"--sync-interval 11s":                  "--sync-interval: must be more than 0, and not more than --sync-interval-cap",
		"--sync-interval 0":                    "--sync-interval: must be more than 0, and not more than --sync-interval-cap",
		"--server-count-source min":            `--server-count-source: "min" is neither default nor max`,
		"--enable-contention-profiling":        "--enable-contention-profiling: set --enable-profiling as well",
		"--agent-identifiers %":                `--agent-identifiers: invalid URL escape "%"`,
		"--agent-identifiers uid=1":            `--agent-identifiers: "uid" is none of [host cidr ipv4 ipv6 default-route]`,
		"--lease-label-selector ==":            "--lease-label-selector: ",
		"--lease-label ==":                     "--lease-label-selector: ",
		"--proxy-server-port eight":            `invalid argument "eight" for "--proxy-server-port"`,
		"extra":                                "takes flags only",
		"--log-file-max-size x --logtostderr":  "--log-file-max-size",
		"--server-count-source max --no-such=": "--no-such",
	} {
		cmd := newKonnectivityAgent()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
