package plugins

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// Options holds the values of the flags that select and configure admission plugins.
type Options struct {
	Enable, Disable []string // names of plugins, in addition to the defaults
	ConfigFile      string   // path of an AdmissionConfiguration of apiserver.config.k8s.io; "" means none
}

// AddFlags declares the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	all, on := Names()
	fs.StringSliceVar(&o.Enable, "enable-admission-plugins", nil,
		"admission plugins to enable in addition to those that are enabled by default. All plugins: "+
			strings.Join(all, ", "))
	fs.StringSliceVar(&o.Disable, "disable-admission-plugins", nil,
		"admission plugins to disable. Plugins that are enabled by default: "+
			NodeRestriction+" (if the Node authorizer is used), "+
			strings.Join(on, ", "))
	fs.StringVar(&o.ConfigFile, "admission-control-config-file", "",
		"file of an AdmissionConfiguration of apiserver.config.k8s.io. It contains settings of plugins and the "+
			"kubeconfigs for webhooks")
}

// Validate returns an error if Enable or Disable contains an unknown name, or if both contain the same name.
func (o *Options) Validate() error {
	all, _ := Names()
	for _, name := range o.Enable {
		if !slices.Contains(all, name) {
			return fmt.Errorf("enable-admission-plugins plugin %q is unknown", name)
		}
		if slices.Contains(o.Disable, name) {
			return fmt.Errorf("enable-admission-plugins and --disable-admission-plugins both contain %s", name)
		}
	}
	for _, name := range o.Disable {
		if name == (admission.Lifecycle{}).Name() {
			return fmt.Errorf("disable-admission-plugins: %s cannot be disabled", name)
		}
		if !slices.Contains(all, name) {
			return fmt.Errorf("disable-admission-plugins plugin %q is unknown", name)
		}
	}
	return nil
}
