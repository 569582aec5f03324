package agent

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestAgentID checks that the agent gets its ID from the flag, or else from the environment. If neither is set, it
// generates an ID. KON-037
func TestAgentID(t *testing.T) {
	for _, c := range []struct{ flag, env, want string }{{"flag", "env", "flag"}, {"", "env", "env"}, {"", "", ""}} {
		t.Setenv("PROXY_AGENT_ID", c.env)
		var f Flags
		f.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
		f.ID = c.flag
		if err := f.Complete(); err != nil || c.want != "" && f.ID != c.want || len(f.ID) == 0 {
			t.Errorf("%+v: %q, %v", c, f.ID, err)
		}
	}
}

// TestAgentAccepts checks the accepted values of the server's host and of the agent's identifiers.
// KON-034 KON-039
func TestAgentAccepts(t *testing.T) {
	for _, args := range []string{
		"--proxy-server-host=192.0.2.1", "--proxy-server-host=2001:db8::1", "--proxy-server-host=fe80::1%eth0",
		"--proxy-server-host=a.example",
		"--agent-identifiers=host=a&host=b.example&ipv4=192.0.2.1&ipv6=2001:db8::1&cidr=192.0.2.0/24&cidr=2001:db8::/64&default-route=true",
		// a value in a manifest of the reference proxy-agent
		"--agent-identifiers=default-route=0", "--agent-identifiers=", "--agent-identifiers=ipv4=${HOST_IP}",
	} {
		var f Flags
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddFlags(flags)
		if err := flags.Parse([]string{args}); err != nil {
			t.Fatal(err)
		}
		if err := f.Complete(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestAgentWarns checks that identifiers with an invalid value cause a warning. They are not rejected, because the
// reference proxy-agent accepts them. KON-037
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
