package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// konnectivityFlags parses and completes the flags of the command. THERE in args stands for a file that is there.
func konnectivityFlags(t *testing.T, args ...string) (*konnectivityServer, error) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, []byte(kubeconfigForFlags), 0o600); err != nil {
		t.Fatal(err)
	}
	f, flags := &konnectivityServer{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	f.bind(flags)
	f.config.Logger = slog.New(slog.DiscardHandler)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "THERE", there)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f, f.complete()
}

const kubeconfigForFlags = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}]}`

var (
	agentsByTLS = []string{"--cluster-cert=THERE", "--cluster-key=THERE"}
	bySocket    = append([]string{"--uds-name=/run/s", "--server-port=0"}, agentsByTLS...)
	byTCP       = append([]string{"--server-cert=THERE", "--server-key=THERE", "--server-ca-cert=THERE"},
		agentsByTLS...)
	byTokens = append([]string{"--kubeconfig=THERE", "--agent-namespace=kube-system",
		"--agent-service-account=konnectivity-agent",
		"--authentication-audience=system:konnectivity-server"}, bySocket...)
)

// without is args without those that begin so.
func without(args []string, prefix string) (left []string) {
	for _, a := range args {
		if !strings.HasPrefix(a, prefix) {
			left = append(left, a)
		}
	}
	return left
}

func with(args []string, more ...string) []string {
	return append(append([]string(nil), args...), more...)
}

// KON-033: what does not go together, and what cannot be, is an error at the start that names the flag.
func TestKonnectivityServerMistakes(t *testing.T) {
	for _, c := range []struct {
		flag string
		args []string
	}{
		{"mode", with(bySocket, "--mode=tcp")},
		{"server-port", with(bySocket, "--server-port=8090")},
		{"server-port", with(byTCP, "--server-port=65536")},
		{"server-port", with(byTCP, "--server-port=0")},
		{"agent-port", with(bySocket, "--agent-port=-1")},
		{"admin-port", with(bySocket, "--admin-port=70000")},
		{"health-port", with(bySocket, "--health-port=70000")},
		{"server-ca-cert", without(byTCP, "--server-ca-cert")},
		{"server-cert", without(byTCP, "--server-cert")},
		{"server-key", without(byTCP, "--server-key")},
		{"server-cert", with(bySocket, "--server-cert=THERE")},
		{"server-key", with(bySocket, "--server-key=THERE")},
		{"server-ca-cert", with(bySocket, "--server-ca-cert=THERE")},
		{"cluster-cert", without(bySocket, "--cluster-cert")},
		{"cluster-key", without(bySocket, "--cluster-key")},
		{"cluster-ca-cert", with(byTokens, "--cluster-ca-cert=THERE")},
		{"agent-namespace", without(byTokens, "--agent-namespace")},
		{"agent-namespace", with(bySocket, "--kubeconfig=THERE")},
		{"cluster-ca-cert", with(bySocket, "--kubeconfig=THERE", "--cluster-ca-cert=THERE")},
		{"agent-service-account", without(byTokens, "--agent-service-account")},
		{"authentication-audience", without(byTokens, "--authentication-audience")},
		{"kubeconfig", without(byTokens, "--kubeconfig")},
		{"server-cert", with(without(byTCP, "--server-cert"), "--server-cert=/none")},
		{"server-key", with(byTCP, "--server-key=/none")},
		{"server-ca-cert", with(byTCP, "--server-ca-cert=/none")},
		{"cluster-cert", with(bySocket, "--cluster-cert=/none")},
		{"cluster-key", with(bySocket, "--cluster-key=/none")},
		{"cluster-ca-cert", with(bySocket, "--cluster-ca-cert=/none")},
		{"kubeconfig", with(byTokens, "--kubeconfig=/none")},
		{"cipher-suites", with(bySocket, "--cipher-suites=TLS_NONE")},
		{"cipher-suites", with(bySocket,
			"--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA")},
		{"tls-min-version", with(bySocket, "--tls-min-version=VersionTLS14")},
		{"proxy-strategies", with(bySocket, "--proxy-strategies=nearest")},
		{"server-count", with(bySocket, "--server-count=0")},
		{"keepalive-time", with(bySocket, "--keepalive-time=0s")},
		{"frontend-keepalive-time", with(bySocket, "--frontend-keepalive-time=0s")},
		{"graceful-shutdown-timeout", with(bySocket, "--graceful-shutdown-timeout=-1s")},
		{"backend-dial-timeout", with(bySocket, "--backend-dial-timeout=-1s")},
		{"kubeconfig-qps", with(byTokens, "--kubeconfig-qps=-1")},
		{"kubeconfig-burst", with(byTokens, "--kubeconfig-burst=-1")},
		{"enable-contention-profiling", with(bySocket, "--enable-contention-profiling")},
		{"kubeconfig", with(bySocket, "--enable-lease-controller")},
		{"server-id", with(byTokens, "--enable-lease-controller", "--server-id=A_B")},
		{"lease-label", with(byTokens, "--enable-lease-controller", "--lease-label=x")},
		{"advertise-agent-address", with(byTokens, "--advertise-agent-address=192.0.2.1")},
		{"advertise-agent-address", with(byTokens, "--enable-lease-controller",
			"--advertise-agent-address=192.0.2.1:0")},
		{"advertise-agent-address", with(byTokens, "--enable-lease-controller",
			"--advertise-agent-address=192.0.2.1:http")},
	} {
		if _, err := konnectivityFlags(t, c.args...); err == nil || !strings.HasPrefix(err.Error(), "--"+c.flag) {
			t.Errorf("%v: %v, want an error of --%s", c.args, err, c.flag)
		}
	}
}

// KON-033: in a Pod without the token of a ServiceAccount, the error names the flag that is missing.
func TestKonnectivityServerInPodWithoutToken(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "") // there may be a token where this runs
	f := &konnectivityServer{account: server.Account{Namespace: "kube-system", Name: "konnectivity-agent",
		Audience: "system:konnectivity-server"}}
	if err := f.completeClient(); err == nil || !strings.HasPrefix(err.Error(),
		"--kubeconfig: must be set, or the Pod must have the token of a ServiceAccount") {
		t.Error(err)
	}
}

// KON-034: TLS that has been broken is warned of.
func TestKonnectivityServerOldTLS(t *testing.T) {
	for version, warns := range map[string]bool{"VersionTLS10": true, "VersionTLS11": true, "VersionTLS12": false,
		"VersionTLS13": false, "": false} {
		var said strings.Builder
		f := &konnectivityServer{minVersion: version}
		f.config.Logger = slog.New(slog.NewTextHandler(&said, nil))
		if err := f.completeTLS(); err != nil || warns != strings.Contains(said.String(), "--tls-min-version") {
			t.Errorf("%q: %v, %q", version, err, said.String())
		}
	}
}

// KON-019: called by the reference's name, it is known by it, in what it says of mistakes and in its help.
func TestProxyServer(t *testing.T) {
	cmd := named("proxy-server", newKonnectivityServer())
	var help strings.Builder
	cmd.SetOut(&help)
	if code := execute(cmd, []string{"--help"}); code != 0 ||
		!strings.Contains(help.String(), "\n  proxy-server [flags]\n") {
		t.Errorf("exit code %d, %s", code, help.String())
	}
	if code, said := runs(t, "/proxy-server", "--no-such"); code != 1 ||
		said != "error: unknown flag: --no-such (see proxy-server --help)\n" {
		t.Errorf("exit code %d, %s", code, said)
	}
}

// A command that there is not is told as such, with the nearest that there is, whatever flags are with it.
func TestKonnectivityCommands(t *testing.T) {
	for _, args := range [][]string{{"sever"}, {"sever", "--uds-name", "x"}} {
		want := "error: unknown command \"sever\"; did you mean server? (see trellis konnectivity --help)\n"
		if code, said := runs(t, append([]string{"trellis", "konnectivity"}, args...)...); code != 1 || said != want {
			t.Errorf("%q: exit code %d, %s", args, code, said)
		}
	}
	if code, said := runs(t, "trellis", "konnectivity", "--no-such"); code != 1 ||
		said != "error: unknown flag: --no-such (see trellis konnectivity --help)\n" {
		t.Errorf("exit code %d, %s", code, said)
	}
}

// KON-019, KON-020, KON-022 to KON-030: the command of the documentation.
func TestKonnectivityServerOfTheDocumentation(t *testing.T) {
	f, err := konnectivityFlags(t, "--logtostderr=true",
		"--uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket", "--delete-existing-uds-file",
		"--cluster-cert=THERE", "--cluster-key=THERE", "--mode=grpc", "--server-port=0", "--agent-port=8132",
		"--admin-port=8133", "--health-port=8134",
		"--agent-namespace=kube-system", "--agent-service-account=konnectivity-agent", "--kubeconfig=THERE",
		"--authentication-audience=system:konnectivity-server")
	if err != nil {
		t.Fatal(err)
	}
	c := f.config
	if c.Socket == "" || !c.ReplaceSocket || c.AgentAddress != ":8132" || c.AdminAddress != "127.0.0.1:8133" ||
		c.HealthAddress != ":8134" || c.Mode != server.ModeGRPC ||
		c.Authenticate == nil || f.account != (server.Account{Audience: "system:konnectivity-server",
		Namespace: "kube-system", Name: "konnectivity-agent"}) || c.Lease != nil {
		t.Errorf("got %+v", c)
	}
	if qps := f.leases.Client.CoreV1().RESTClient().GetRateLimiter().QPS(); qps != reviewQPS {
		t.Errorf("%v requests a second, want %d", qps, reviewQPS)
	}
}

// KON-034: the flags of TCP, several servers and strategies; and those of the reference that have one value here.
func TestKonnectivityServerOthers(t *testing.T) {
	t.Setenv("PROXY_SERVER_ID", "from-environment")
	f, err := konnectivityFlags(t, with(byTCP, "--mode=http-connect", "--cluster-ca-cert=THERE",
		"--server-bind-address=::1", "--server-count=3", "--proxy-strategies=destHost,default",
		"--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "--tls-min-version=VersionTLS13",
		"--xfr-channel-size=10", "--warn-on-channel-limit=false", "-v=4", "--log-file=",
		"--enable-lease-controller", "--kubeconfig=THERE", "--lease-label=a=b,c=d",
		"--advertise-agent-address=192.0.2.1,[2001:db8::1]:9")...)
	if err != nil {
		t.Fatal(err)
	}
	c := f.config
	if c.Mode != server.ModeHTTPConnect || c.FrontendAddress != "[::1]:8090" || c.ID != "from-environment" ||
		c.Count != 3 || len(c.Strategies) != 2 || c.FrontendTLS.MinVersion != 0x304 ||
		len(c.AgentTLS.CipherSuites) != 1 || c.KeepaliveTime != 30*time.Second ||
		c.FrontendKeepaliveTime != 30*time.Second || c.Authenticate != nil {
		t.Errorf("got %+v", c)
	}
	if l := c.Lease; l == nil || l.Namespace != "kube-system" || l.Labels["a"] != "b" || l.Labels["c"] != "d" ||
		strings.Join(l.Addresses, " ") != "192.0.2.1 [2001:db8::1]:9" {
		t.Errorf("got %+v", l)
	}
	if f, err = konnectivityFlags(t, with(bySocket, "--server-id=typed")...); err != nil || f.config.ID != "typed" {
		t.Errorf("ID %s, %v", f.config.ID, err)
	}
}

// KON-045: however much is to be logged, client-go does not log what it sends, tokens among it.
func TestKonnectivityServerLogsNoBodies(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	logger := klogFlags(flags)
	v := flags.Lookup("v")
	before := v.Value.String()
	t.Cleanup(func() { _ = v.Value.Set(before) })
	if err := flags.Parse([]string{"-v=9"}); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse([]string{"--vmodule=*=9"}); err == nil {
		t.Error("--vmodule is accepted")
	}
	logger()
	if v.Value.String() != "7" || klog.V(8).Enabled() {
		t.Errorf("verbosity %s, want 7, and no more anywhere", v.Value)
	}
}
