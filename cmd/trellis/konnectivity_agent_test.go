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

// KON-037: the program is an agent when it is called proxy-agent, as it is in the documentation's manifest.
func TestProxyAgent(t *testing.T) {
	if code, said := runs(t, "/proxy-agent", "--logtostderr=true", "--proxy-server-port=0"); code != 1 ||
		!strings.Contains(said, "error: --proxy-server-port 0 ") {
		t.Errorf("exit code %d, %s", code, said)
	}
	if code, said := runs(t, "/proxy-agent", "--no-such"); code != 1 ||
		said != "error: unknown flag: --no-such (see proxy-agent --help)\n" {
		t.Errorf("exit code %d, %s", code, said)
	}
}

// runs runs a command line, and returns the exit code and what it says on stderr.
func runs(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	to, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	stderr := os.Stderr
	os.Stderr = to
	code = run(args)
	os.Stderr = stderr
	text, err := os.ReadFile(to.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

// KON-037: all flags of the reference are there, with its defaults but for keepalive, and klog's under their names
// there.
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

// KON-034 KON-039: where servers are, and what an agent is for, as they may be written.
func TestAgentAccepts(t *testing.T) {
	for _, args := range []string{
		"--proxy-server-host=192.0.2.1", "--proxy-server-host=2001:db8::1", "--proxy-server-host=fe80::1%eth0",
		"--proxy-server-host=a.example",
		"--agent-identifiers=host=a&host=b.example&ipv4=192.0.2.1&ipv6=2001:db8::1&cidr=192.0.2.0/24&cidr=2001:db8::/64&default-route=true",
		// as one of the reference's manifests has it
		"--agent-identifiers=default-route=0", "--agent-identifiers=", "--agent-identifiers=ipv4=${HOST_IP}",
	} {
		var f agentFlags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.bind(flags)
		if err := flags.Parse([]string{args}); err != nil {
			t.Fatal(err)
		}
		if err := f.complete(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// KON-037: identifiers whose values are none of their kind are not refused, as the reference takes them, but the log
// says so.
func TestAgentWarns(t *testing.T) {
	for identifiers, want := range map[string]string{
		"ipv4=${HOST_IP}": `ipv4: "${HOST_IP}" is not an IPv4 address`,
		"ipv4=::1":        `ipv4: "::1" is not an IPv4 address`,
		"ipv6=192.0.2.1":  `ipv6: "192.0.2.1" is not an IPv6 address`,
		"cidr=192.0.2.1":  `cidr: "192.0.2.1" is not a range of addresses`,
		"host=":           `host: "" is not a host name`,
		"default-route=x": `default-route: "x" is not true or false`,
		"ipv4=192.0.2.1":  "",
	} {
		warnings, err := checkIdentifiers(identifiers)
		if got := strings.Join(warnings, "\n"); err != nil || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %v; warnings %s, want %s", identifiers, err, got, want)
		}
	}
}

// KON-037: what cannot work is refused, with its flag and what to do.
func TestAgentRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--agent-cert /dev/null":             "--agent-cert and --agent-key must be set together",
		"--agent-cert none --agent-key none": "none: no such file",
		"--ca-cert none":                     "--ca-cert: stat none: no such file or directory",
		"--service-account-token-path none":  "--service-account-token-path: stat none: no such file or directory",
		"--kubeconfig none":                  "--kubeconfig: stat none: no such file or directory",
		"--proxy-server-host=":               "--proxy-server-host must not be empty",
		"--proxy-server-host a.example:8132": `--proxy-server-host "a.example:8132" must be a host name or an address without scheme and port`,
		"--proxy-server-host https://a":      "use --proxy-server-port for the port",
		"--proxy-server-host [::1]":          "use --proxy-server-port for the port",
		"--proxy-server-port 0":              "--proxy-server-port 0 must be between 1 and 65535",
		"--health-server-port 65536":         "--health-server-port 65536 must be between 0 and 65535",
		"--admin-server-port -1":             "--admin-server-port -1 must be between 0 and 65535",
		"--xfr-channel-size 0":               `invalid argument "0" for "--xfr-channel-size" flag: only "150" is supported`,
		"--probe-interval 2s":                `only "1s" is supported`,
		"--keepalive-time 0":                 "--keepalive-time must be greater than 0",
		"--sync-interval 11s": "--sync-interval must be greater than 0 and at most " +
			"--sync-interval-cap",
		"--sync-interval 0": "--sync-interval must be greater than 0 and at most " +
			"--sync-interval-cap",
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
		ended, end := context.WithCancel(t.Context())
		end() // one that is not refused ends at once
		if err := cmd.ExecuteContext(ended); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
