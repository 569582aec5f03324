package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// TestProxyServer checks that the program with the name proxy-server uses this name in its help and its errors.
// KON-019
func TestProxyServer(t *testing.T) {
	cmd := named("proxy-server", newKonnectivityServer())
	var help strings.Builder
	cmd.SetOut(&help)
	if code := execute(cmd, []string{"--help"}); code != 0 ||
		!strings.Contains(help.String(), "\n  proxy-server [flags]\n") {
		t.Errorf("exit code %d, %s", code, help.String())
	}
	if code, stderr := runCommand(t, "/proxy-server", "--no-such"); code != 1 ||
		stderr != "error: unknown flag: --no-such (see proxy-server --help)\n" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestKonnectivityCommands checks that the error for an unknown command suggests a similar command, with and without
// flags.
func TestKonnectivityCommands(t *testing.T) {
	for _, args := range [][]string{{"sever"}, {"sever", "--uds-name", "x"}} {
		want := "error: unknown command \"sever\"; did you mean server? (see trellis konnectivity --help)\n"
		if code, stderr := runCommand(t, append([]string{"trellis", "konnectivity"}, args...)...); code != 1 ||
			stderr != want {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
	if code, stderr := runCommand(t, "trellis", "konnectivity", "--no-such"); code != 1 ||
		stderr != "error: unknown flag: --no-such (see trellis konnectivity --help)\n" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestKonnectivityServerLogsNoBodies checks that client-go logs no request bodies, which contain tokens, at any
// verbosity.
// KON-045
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
		t.Errorf("got verbosity %s, want 7", v.Value)
	}
}
