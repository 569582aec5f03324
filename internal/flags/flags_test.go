package flags

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFlags checks the values, the defaults and the errors of all kinds of flags.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args     string
		disabled bool
		want     string // error
	}{
		{"", false, ""},
		{"--on", false, ""},
		{"--on=false", true, ""},
		{"--on=x", false, `invalid argument "x" for "--on" flag`},
		{"--version v1 --cache", false, ""},
		{"--version v2", false, `invalid argument "v2" for "--version" flag: only "v1" is supported`},
		{"--cert a --key b", false, ""},
		{"--cert a", false, "--cert and --key must be set together"},
		{"--key b", false, "--cert and --key must be set together"},
		{"--file " + os.DevNull, false, ""},
		{"--file missing", false, "--file: stat missing: no such file or directory"},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		disabled := false
		Negated(fs, &disabled, "on", "enable it")
		Fixed(fs, "version", "string", "v1", "version")
		Fixed(fs, "cache", "bool", "true", "use a cache")
		for _, name := range []string{"cert", "key", "file"} {
			fs.String(name, "", "file")
		}
		Pair(fs, "cert", "key")
		err := fs.Parse(strings.Fields(c.args))
		if err == nil {
			err = CheckPairs(fs)
		}
		if err == nil {
			err = CheckFiles(fs, "file")
		}
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.args, err, c.want)
		}
		if err == nil && disabled != c.disabled {
			t.Errorf("%s: disabled is %v", c.args, disabled)
		}
		if usage := fs.FlagUsages(); !strings.Contains(usage, "--on ") || !strings.Contains(usage, "(default true)") {
			t.Errorf("usage:\n%s", usage)
		}
	}
}
