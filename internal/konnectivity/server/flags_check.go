package server

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// Complete validates the flags and completes the Config. An error contains the name of the flag and how to correct
// it.
func (f *Flags) Complete() (err error) {
	c := &f.Config
	c.ID = cmp.Or(c.ID, os.Getenv("PROXY_SERVER_ID"), uuid.NewString())
	c.FrontendAddress, c.AgentAddress = f.front.address(), f.agent.address()
	c.AdminAddress, c.HealthAddress = f.admin.address(), f.health.address()
	if c.Strategies, err = ParseStrategies(f.strategies); err != nil {
		return fmt.Errorf("--proxy-strategies: %w", err)
	}
	files := func() error {
		return flags.CheckFiles(f.fs, "server-cert", "server-key", "server-ca-cert", "cluster-cert", "cluster-key",
			"cluster-ca-cert", "kubeconfig")
	}
	for _, step := range []func() error{f.check, files, f.completeTLS, f.completeLease, f.completeClient} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (p port) address() string { return net.JoinHostPort(p.bind, strconv.Itoa(p.number)) }

func (p port) invalid() bool { return p.number < 0 || p.number > 65535 }

// check validates numbers and combinations of flags. The API server connects through a socket or with a client
// certificate. Agents authenticate with tokens or with client certificates.
func (f *Flags) check() error {
	const together = "must be set: to authenticate agents with tokens, set --agent-namespace, " +
		"--agent-service-account, --authentication-audience and --kubeconfig"
	const noTLS = "must be empty when --uds-name is set, because a Unix socket does not use TLS"
	const needsTLS = "must be set: the API server connects with TLS when --uds-name is not set"
	c, front, agent := &f.Config, f.FrontendTLS, f.AgentTLS
	socket, tokens, inPod := c.Socket != "", f.tokens(), os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	for _, w := range []struct {
		invalid      bool
		flag, reason string
	}{
		{c.Mode != ModeGRPC && c.Mode != ModeHTTPConnect, "mode", "must be grpc or http-connect"},
		{socket && f.front.number != 0, "server-port", "must be 0 when --uds-name is set"},
		{!socket && f.front.number == 0, "server-port", "must be a port when --uds-name is not set"},
		{f.front.invalid(), "server-port", "must be between 0 and 65535"},
		{f.agent.invalid(), "agent-port", "must be between 0 and 65535"},
		{f.admin.invalid(), "admin-port", "must be between 0 and 65535"},
		{f.health.invalid(), "health-port", "must be between 0 and 65535"},
		{socket && front.CertFile != "", "server-cert", noTLS},
		{socket && front.KeyFile != "", "server-key", noTLS},
		{socket && front.ClientCAFile != "", "server-ca-cert", noTLS},
		{!socket && front.ClientCAFile == "", "server-ca-cert",
			"must be set to the CA for the client certificate of the API server, unless --uds-name is set"},
		{!socket && front.CertFile == "", "server-cert", needsTLS},
		{!socket && front.KeyFile == "", "server-key", needsTLS},
		{agent.CertFile == "", "cluster-cert", "must be set: agents connect with TLS"},
		{agent.KeyFile == "", "cluster-key", "must be set: agents connect with TLS"},
		{tokens && agent.ClientCAFile != "", "cluster-ca-cert",
			"must be empty when agents authenticate with tokens (--agent-namespace)"},
		{tokens && f.account.Namespace == "", "agent-namespace", together},
		{tokens && f.account.Name == "", "agent-service-account", together},
		{tokens && f.account.Audience == "", "authentication-audience", together},
		{tokens && f.kubeconfig == "" && !inPod, "kubeconfig", together},
		{f.lease && f.kubeconfig == "" && !inPod, "kubeconfig", "must be set when --enable-lease-controller is set"},
		{!f.lease && len(f.leases.Addresses) > 0, "advertise-agent-address",
			"requires --enable-lease-controller, because agents read the address from the Lease"},
		{c.Count < 1, "server-count", "must be at least 1"},
		{c.KeepaliveTime <= 0, "keepalive-time", "must be greater than 0"},
		{c.FrontendKeepaliveTime <= 0, "frontend-keepalive-time", "must be greater than 0"},
		{c.GracePeriod < 0, "graceful-shutdown-timeout", "must not be negative"},
		{c.DialTimeout < 0, "backend-dial-timeout", "must not be negative"},
		{f.qps < 0, "kubeconfig-qps", "must not be negative"},
		{f.burst < 0, "kubeconfig-burst", "must not be negative"},
		{c.ContentionProfiling && !c.Profiling, "enable-contention-profiling", "requires --enable-profiling"},
	} {
		if w.invalid {
			return fmt.Errorf("--%s %q %s", w.flag, f.fs.Lookup(w.flag).Value, w.reason)
		}
	}
	return nil
}

// tokens reports whether agents authenticate with tokens. A kubeconfig without the lease controller also means
// tokens. So a server whose token flags were forgotten does not start, instead of accepting every agent.
func (f *Flags) tokens() bool {
	return f.account != (Account{}) || f.kubeconfig != "" && !f.lease
}

func (f *Flags) completeTLS() error {
	version, err := cliflag.TLSVersion(f.minVersion)
	if err != nil {
		return fmt.Errorf("--tls-min-version: %w; known versions: %s", err,
			strings.Join(cliflag.TLSPossibleVersions(), ", "))
	}
	suites, err := cliflag.TLSCipherSuites(f.cipherSuites)
	if err != nil {
		return fmt.Errorf("--cipher-suites: %w; known cipher suites: %s", err,
			strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	}
	for _, name := range f.cipherSuites {
		if _, insecure := cliflag.InsecureTLSCiphers()[name]; insecure {
			return fmt.Errorf("--cipher-suites: %s is insecure; secure cipher suites: %s", name,
				strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
		}
	}
	if version < tls.VersionTLS12 {
		f.Logger.Warn("TLS versions before 1.2 are insecure: set --tls-min-version to VersionTLS12 or "+
			"VersionTLS13",
			"tls-min-version", f.minVersion)
	}
	for _, t := range []*TLS{&f.FrontendTLS, &f.AgentTLS} {
		t.MinVersion, t.CipherSuites = version, suites
	}
	return nil
}

// completeLease validates and sets the contents of the Lease.
func (f *Flags) completeLease() error {
	if !f.lease {
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(LeasePrefix + f.ID); len(problems) > 0 {
		return fmt.Errorf("--server-id %q cannot be used in the name of a Lease: %s", f.ID, problems[0])
	}
	f.leases.Labels = map[string]string{}
	for pair := range strings.SplitSeq(f.leaseLabel, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
		if !found || len(validation.IsQualifiedName(name)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return fmt.Errorf("--lease-label: %q must have the form NAME=VALUE, such as "+
				"k8s-app=konnectivity-server", pair)
		}
		f.leases.Labels[name] = value
	}
	for _, address := range f.leases.Addresses {
		_, text, err := net.SplitHostPort(address)
		if n, invalid := strconv.ParseUint(text, 10, 16); err == nil && (invalid != nil || n == 0) {
			return fmt.Errorf("--advertise-agent-address: the port of %q must be between 1 and 65535. Without a "+
				"port, --agent-port is used", address)
		}
	}
	f.Lease = &f.leases
	return nil
}

// clientConfig returns the client configuration of --kubeconfig, or of the Pod's ServiceAccount.
func (f *Flags) clientConfig() (*rest.Config, error) {
	if f.kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("must be set, or the process must run in a Pod that has the token of a "+
			"ServiceAccount: %w", err)
	}
	return config, nil
}

// completeClient creates the client for TokenReviews and the Lease, if one of them needs it.
func (f *Flags) completeClient() error {
	if !f.tokens() && f.AgentTLS.ClientCAFile == "" {
		f.Logger.Warn("agents are not authenticated, so every client that can connect to --agent-port can act " +
			"as an agent: set --cluster-ca-cert or --agent-namespace")
	}
	if !f.tokens() && !f.lease {
		return nil
	}
	config, err := f.clientConfig()
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.Burst = cmp.Or(f.qps, reviewQPS), cmp.Or(f.burst, reviewBurst)
	config.ContentType = f.contentType
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("--kubeconfig, --kube-api-content-type: %w", err)
	}
	f.leases.Client = client
	if f.tokens() {
		f.Authenticate = f.account.Authenticate(client.AuthenticationV1().TokenReviews())
	}
	return nil
}
