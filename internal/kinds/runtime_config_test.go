package kinds

import (
	"slices"
	"strings"
	"testing"
)

// served returns the API version and the plural name of each built-in kind that is served with the settings.
func served(t *testing.T, settings ...string) (all []string) {
	t.Helper()
	enabled, err := ParseRuntimeConfig(runtimeConfig(settings))
	if err != nil {
		t.Fatalf("%q: %v", settings, err)
	}
	for _, d := range Definitions(Config{Enabled: enabled}) {
		for _, v := range d.Versions {
			if v.Served {
				all = append(all, v.APIVersion+" "+d.Names.Plural)
			}
		}
	}
	return all
}

func runtimeConfig(settings []string) map[string]string {
	out := map[string]string{}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		out[key] = value
	}
	return out
}

// TestRuntimeConfig checks that --runtime-config disables versions and resources, and that specific settings override
// general ones (EXT-001).
func TestRuntimeConfig(t *testing.T) {
	all := served(t)
	for _, c := range []struct {
		settings string
		disabled func(name string) bool
	}{
		{"api/all=true", func(string) bool { return false }},
		{"api/alpha=false,api/legacy=false", func(string) bool { return false }},
		{"api/beta=false", func(name string) bool { return strings.Contains(name, "beta") }},
		{"apps/v1=false", func(name string) bool { return strings.HasPrefix(name, "apps/v1 ") }},
		{"batch/v1/cronjobs=0", func(name string) bool { return name == "batch/v1 cronjobs" }},
		{"batch/v1=false,batch/v1/jobs=", func(name string) bool { return name == "batch/v1 cronjobs" }},
		{"api/all=false,v1=true,apps/v1", func(name string) bool {
			return !strings.HasPrefix(name, "v1 ") && !strings.HasPrefix(name, "apps/v1 ")
		}},
		{"api/ga=false,api/v1=true", func(name string) bool {
			return !strings.HasPrefix(name, "v1 ") && !strings.Contains(name, "beta")
		}},
		{"api/all=false,v1=true,apiextensions.k8s.io/v1=true", func(name string) bool {
			return !strings.HasPrefix(name, "v1 ") && name != "apiextensions.k8s.io/v1 customresourcedefinitions"
		}},
	} {
		want := slices.DeleteFunc(slices.Clone(all), c.disabled)
		if got := served(t, strings.Split(c.settings, ",")...); !slices.Equal(got, want) {
			t.Errorf("%s:\ngot  %q\nwant %q", c.settings, got, want)
		}
	}
}

// TestRuntimeConfigErrors checks that invalid settings fail with upstream's messages (EXT-001).
func TestRuntimeConfigErrors(t *testing.T) {
	for settings, want := range map[string]string{
		"foo/v1=true,bar/v2/x=false": "unknown api groups bar/v2,foo/v1",
		"api/all=false":              "invalid runtime-config with only api/all=false",
		"apps/v9=true":               "group version apps/v9 that has not been registered",
		"apps/v1=perhaps":            `invalid value of apps/v1: perhaps, err: strconv.ParseBool: parsing "perhaps": invalid syntax`,
		"batch/v1/CronJobs=false":    `invalid key batch/v1/CronJobs: group/version/resource and resource is always lowercase plural, not "CronJobs"`,
		"api/all=maybe":              "invalid value api/all=maybe",
		"a/b/c/d=true":               "runtime-config invalid key a/b/c/d",
		// upstream serves networking.k8s.io/v1beta1, and panics without v1
		"networking.k8s.io/v1beta1=true": "group version networking.k8s.io/v1beta1 is not served by this server",
		"v1=false":                       "the core group v1 cannot be disabled",
	} {
		if _, err := ParseRuntimeConfig(runtimeConfig(strings.Split(settings, ","))); err == nil ||
			err.Error() != want {
			t.Errorf("%s: got error %v, want %s", settings, err, want)
		}
	}
}
