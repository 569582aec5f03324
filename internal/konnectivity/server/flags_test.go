package server

import (
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// konnectivityFlags parses and completes the flags of the command. FILE in args is replaced by the path of an existing
// file.
func konnectivityFlags(t *testing.T, args ...string) (*Flags, error) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(kubeconfigForFlags), 0o600); err != nil {
		t.Fatal(err)
	}
	f, flags := &Flags{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddFlags(flags)
	logging := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(logging)
	flags.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	flags.AddGoFlagSet(logging)
	f.Logger = slog.New(slog.DiscardHandler)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "FILE", file)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f, f.Complete()
}

const kubeconfigForFlags = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}]}`

var (
	agentTLSFlags = []string{"--cluster-cert=FILE", "--cluster-key=FILE"}
	socketFlags   = append([]string{"--uds-name=/run/s", "--server-port=0"}, agentTLSFlags...)
	tcpFlags      = append([]string{"--server-cert=FILE", "--server-key=FILE", "--server-ca-cert=FILE"},
		agentTLSFlags...)
	tokenFlags = append([]string{"--kubeconfig=FILE", "--agent-namespace=kube-system",
		"--agent-service-account=konnectivity-agent",
		"--authentication-audience=system:konnectivity-server"}, socketFlags...)
)

// without returns args without the arguments that start with prefix.
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

// TestKonnectivityServerInvalidFlags checks that the start fails if a flag or a combination of flags is invalid. The
// error names the flag. KON-033
func TestKonnectivityServerInvalidFlags(t *testing.T) {
	for _, c := range []struct {
		flag string
		args []string
	}{
		{"mode", with(socketFlags, "--mode=tcp")},
		{"server-port", with(socketFlags, "--server-port=8090")},
		{"server-port", with(tcpFlags, "--server-port=65536")},
		{"server-port", with(tcpFlags, "--server-port=0")},
		{"agent-port", with(socketFlags, "--agent-port=-1")},
		{"admin-port", with(socketFlags, "--admin-port=70000")},
		{"health-port", with(socketFlags, "--health-port=70000")},
		{"server-ca-cert", without(tcpFlags, "--server-ca-cert")},
		{"server-cert", without(tcpFlags, "--server-cert")},
		{"server-key", without(tcpFlags, "--server-key")},
		{"server-cert", with(socketFlags, "--server-cert=FILE")},
		{"server-key", with(socketFlags, "--server-key=FILE")},
		{"server-ca-cert", with(socketFlags, "--server-ca-cert=FILE")},
		{"cluster-cert", without(socketFlags, "--cluster-cert")},
		{"cluster-key", without(socketFlags, "--cluster-key")},
		{"cluster-ca-cert", with(tokenFlags, "--cluster-ca-cert=FILE")},
		{"agent-namespace", without(tokenFlags, "--agent-namespace")},
		{"agent-namespace", with(socketFlags, "--kubeconfig=FILE")},
		{"cluster-ca-cert", with(socketFlags, "--kubeconfig=FILE", "--cluster-ca-cert=FILE")},
		{"agent-service-account", without(tokenFlags, "--agent-service-account")},
		{"authentication-audience", without(tokenFlags, "--authentication-audience")},
		{"kubeconfig", without(tokenFlags, "--kubeconfig")},
		{"server-cert", with(without(tcpFlags, "--server-cert"), "--server-cert=/none")},
		{"server-key", with(tcpFlags, "--server-key=/none")},
		{"server-ca-cert", with(tcpFlags, "--server-ca-cert=/none")},
		{"cluster-cert", with(socketFlags, "--cluster-cert=/none")},
		{"cluster-key", with(socketFlags, "--cluster-key=/none")},
		{"cluster-ca-cert", with(socketFlags, "--cluster-ca-cert=/none")},
		{"kubeconfig", with(tokenFlags, "--kubeconfig=/none")},
		{"cipher-suites", with(socketFlags, "--cipher-suites=TLS_NONE")},
		{"cipher-suites", with(socketFlags,
			"--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_RC4_128_SHA")},
		{"tls-min-version", with(socketFlags, "--tls-min-version=VersionTLS14")},
		{"proxy-strategies", with(socketFlags, "--proxy-strategies=nearest")},
		{"server-count", with(socketFlags, "--server-count=0")},
		{"keepalive-time", with(socketFlags, "--keepalive-time=0s")},
		{"frontend-keepalive-time", with(socketFlags, "--frontend-keepalive-time=0s")},
		{"graceful-shutdown-timeout", with(socketFlags, "--graceful-shutdown-timeout=-1s")},
		{"backend-dial-timeout", with(socketFlags, "--backend-dial-timeout=-1s")},
		{"kubeconfig-qps", with(tokenFlags, "--kubeconfig-qps=-1")},
		{"kubeconfig-burst", with(tokenFlags, "--kubeconfig-burst=-1")},
		{"enable-contention-profiling", with(socketFlags, "--enable-contention-profiling")},
		{"kubeconfig", with(socketFlags, "--enable-lease-controller")},
		{"server-id", with(tokenFlags, "--enable-lease-controller", "--server-id=A_B")},
		{"lease-label", with(tokenFlags, "--enable-lease-controller", "--lease-label=x")},
		{"advertise-agent-address", with(tokenFlags, "--advertise-agent-address=192.0.2.1")},
		{"advertise-agent-address", with(tokenFlags, "--enable-lease-controller",
			"--advertise-agent-address=192.0.2.1:0")},
		{"advertise-agent-address", with(tokenFlags, "--enable-lease-controller",
			"--advertise-agent-address=192.0.2.1:http")},
	} {
		if _, err := konnectivityFlags(t, c.args...); err == nil || !strings.HasPrefix(err.Error(), "--"+c.flag) {
			t.Errorf("%v: %v, want an error of --%s", c.args, err, c.flag)
		}
	}
}

// TestKonnectivityServerInPodWithoutToken checks the error in a Pod that has no token of a ServiceAccount. It names
// the missing flag. KON-033
func TestKonnectivityServerInPodWithoutToken(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "") // the test may run in a Pod with a token
	f := &Flags{account: Account{Namespace: "kube-system", Name: "konnectivity-agent",
		Audience: "system:konnectivity-server"}}
	if err := f.completeClient(); err == nil || !strings.HasPrefix(err.Error(),
		"--kubeconfig: must be set, or the process must run in a Pod that has the token of a ServiceAccount") {
		t.Error(err)
	}
}

// TestKonnectivityServerOldTLS checks that the server logs a warning about insecure versions of TLS.
// KON-034
func TestKonnectivityServerOldTLS(t *testing.T) {
	for version, warn := range map[string]bool{"VersionTLS10": true, "VersionTLS11": true, "VersionTLS12": false,
		"VersionTLS13": false, "": false} {
		var log strings.Builder
		f := &Flags{minVersion: version}
		f.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if err := f.completeTLS(); err != nil || warn != strings.Contains(log.String(), "--tls-min-version") {
			t.Errorf("%q: %v, %q", version, err, log.String())
		}
	}
}

// TestKonnectivityServerDocumentedFlags checks the flags of the command in the documentation. KON-019, KON-020,
// KON-022 to KON-030
func TestKonnectivityServerDocumentedFlags(t *testing.T) {
	f, err := konnectivityFlags(t, "--logtostderr=true",
		"--uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket", "--delete-existing-uds-file",
		"--cluster-cert=FILE", "--cluster-key=FILE", "--mode=grpc", "--server-port=0", "--agent-port=8132",
		"--admin-port=8133", "--health-port=8134",
		"--agent-namespace=kube-system", "--agent-service-account=konnectivity-agent", "--kubeconfig=FILE",
		"--authentication-audience=system:konnectivity-server")
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if c.Socket == "" || !c.ReplaceSocket || c.AgentAddress != ":8132" || c.AdminAddress != "127.0.0.1:8133" ||
		c.HealthAddress != ":8134" || c.Mode != ModeGRPC ||
		c.Authenticate == nil || f.account != (Account{Audience: "system:konnectivity-server",
		Namespace: "kube-system", Name: "konnectivity-agent"}) || c.Lease != nil {
		t.Errorf("got %+v", c)
	}
	if qps := f.leases.Client.CoreV1().RESTClient().GetRateLimiter().QPS(); qps != reviewQPS {
		t.Errorf("got %v requests per second, want %d", qps, reviewQPS)
	}
}

// TestKonnectivityServerTCPFlags checks the flags for TCP, several servers and proxy strategies. It also sets flags
// of the reference proxy-server of which Trellis supports only the default. KON-034
func TestKonnectivityServerTCPFlags(t *testing.T) {
	t.Setenv("PROXY_SERVER_ID", "from-environment")
	f, err := konnectivityFlags(t, with(tcpFlags, "--mode=http-connect", "--cluster-ca-cert=FILE",
		"--server-bind-address=::1", "--server-count=3", "--proxy-strategies=destHost,default",
		"--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "--tls-min-version=VersionTLS13",
		"--xfr-channel-size=10", "--warn-on-channel-limit=false", "-v=4", "--log-file=",
		"--enable-lease-controller", "--kubeconfig=FILE", "--lease-label=a=b,c=d",
		"--advertise-agent-address=192.0.2.1,[2001:db8::1]:9")...)
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if c.Mode != ModeHTTPConnect || c.FrontendAddress != "[::1]:8090" || c.ID != "from-environment" ||
		c.Count != 3 || len(c.Strategies) != 2 || c.FrontendTLS.MinVersion != 0x304 ||
		len(c.AgentTLS.CipherSuites) != 1 || c.KeepaliveTime != 30*time.Second ||
		c.FrontendKeepaliveTime != 30*time.Second || c.Authenticate != nil {
		t.Errorf("got %+v", c)
	}
	if l := c.Lease; l == nil || l.Namespace != "kube-system" || l.Labels["a"] != "b" || l.Labels["c"] != "d" ||
		strings.Join(l.Addresses, " ") != "192.0.2.1 [2001:db8::1]:9" {
		t.Errorf("got %+v", l)
	}
	if f, err = konnectivityFlags(t, with(socketFlags, "--server-id=typed")...); err != nil || f.ID != "typed" {
		t.Errorf("ID %s, %v", f.ID, err)
	}
}
