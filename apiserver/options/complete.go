package options

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/flags"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

// Complete validates the flags and completes the Config. fs contains the flags.
func (o *Options) Complete(fs *pflag.FlagSet) error {
	if err := errors.Join(o.Authorization.Validate(fs), o.validate()); err != nil {
		return err
	}
	if err := errors.Join(append(o.Audit.Validate(), flags.CheckPairs(fs), o.Authentication.Validate(),
		o.Fairness.Validate(), o.TLS.Validate())...); err != nil {
		return err
	}
	if err := controllers.CheckControllers(o.Controllers); err != nil {
		return fmt.Errorf("--controllers: %w", err)
	}
	if err := o.ClusterSigning.Validate(); err != nil {
		return err
	}
	if err := o.Admission.Validate(); err != nil {
		return fmt.Errorf("--%w", err) // the error begins with the name of the flag
	}
	if _, err := kinds.ParseRuntimeConfig(o.RuntimeConfig); err != nil {
		return fmt.Errorf("--runtime-config: %w", err)
	}
	o.Address = net.JoinHostPort(o.bindAddress, strconv.Itoa(o.securePort))
	var err error
	if o.ServiceClusterIPRanges, err = serviceRanges(o.serviceRange); err != nil {
		return err
	}
	return o.setGates()
}

// validate validates the flags that this package declares. A Config replaces some invalid values with defaults, but a
// user must not set them.
func (o *Options) validate() error {
	switch {
	case o.DataDir == "":
		return errors.New("--data-dir must not be empty: specify a folder")
	case o.EventTTL <= 0:
		return errors.New("--event-ttl must be greater than 0")
	case o.ConversionRecheck <= 0:
		return errors.New("--conversion-recheck-interval must be greater than 0")
	case o.CompactionInterval <= 0:
		return errors.New("--etcd-compaction-interval must be greater than 0")
	case o.Etcd.MaxOps <= 0:
		return errors.New("--etcd-max-txn-ops must be greater than 0")
	case o.Etcd.MaxBytes <= 0:
		return errors.New("--etcd-max-request-bytes must be greater than 0")
	case o.ShutdownDelay < 0:
		return errors.New("--shutdown-delay-duration must not be negative")
	case !(o.GoawayChance >= 0 && o.GoawayChance <= 0.02): // also NaN
		return errors.New("--goaway-chance must be between 0 and 0.02")
	case o.HistoryBytes < 0:
		return errors.New("--history-bytes must not be negative")
	case o.Kubelet.Timeout <= 0:
		return errors.New("--kubelet-timeout must be greater than 0")
	case o.MemoryBudget < 0:
		return errors.New("--request-memory-budget must not be negative")
	case o.AcceptLossAfter < 0:
		return errors.New("--accept-data-loss-after must not be negative")
	case o.DiskReserve < 0:
		return errors.New("--disk-reserve-bytes must not be negative")
	case net.ParseIP(o.bindAddress) == nil:
		return fmt.Errorf("--bind-address %q must be an IP address", o.bindAddress)
	case o.securePort < 0 || o.securePort > 65535:
		return fmt.Errorf("--secure-port %d must be between 0 and 65535", o.securePort)
	}
	for _, one := range o.LocalServices {
		namespace, name, _ := strings.Cut(one, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("--allow-local-services: %q must be the NAMESPACE/NAME of a Service", one)
		}
	}
	return nil
}

// setGates sets the features of --feature-gates.
func (o *Options) setGates() error {
	for name, value := range o.gates {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("--feature-gates: the value of %s=%s must be true or false", name, value)
		}
		switch {
		case name == apiserver.CBORServingAndStorage:
			o.EnableCBOR = on
		case name == apiserver.CustomResourceFieldSelectors:
			o.DisableFieldSelectors = !on
		case alwaysOn(name) && on:
		case alwaysOn(name):
			return fmt.Errorf("--feature-gates: cannot set feature gate %s to false, feature is locked to true", name)
		default:
			return fmt.Errorf("--feature-gates: unrecognized feature gate: %s", name)
		}
	}
	return nil
}

// alwaysOn reports whether a feature gate existed in an older release for a feature that is now always on. Older
// documentation enables such gates.
func alwaysOn(gate string) bool {
	switch gate {
	case "CRDValidationRatcheting", // KEP-4008
		"CustomResourceDefaulting", "CustomResourcePublishOpenAPI", "CustomResourceSubresources",
		"CustomResourceValidation", "CustomResourceWebhookConversion":
		return true
	}
	return false
}

// serviceRanges parses one range, or two ranges of different IP families. The errors are those of kube-apiserver.
func serviceRanges(text string) (all []netip.Prefix, err error) {
	for word := range strings.SplitSeq(text, ",") {
		r, err := netip.ParsePrefix(strings.TrimSpace(word))
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range: %q is not a CIDR range such as %s", word,
				services.DefaultRange())
		}
		if r.Addr().BitLen()-r.Bits() < 3 {
			return nil, errors.New("--service-cluster-ip-range: the service cluster IP range must be at least 8 IP " +
				"addresses")
		}
		all = append(all, r.Masked())
	}
	switch {
	case len(all) > 2:
		return nil, errors.New("--service-cluster-ip-range must not contain more than two entries")
	case len(all) == 2 && all[0].Addr().BitLen() == all[1].Addr().BitLen():
		return nil, errors.New("--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of " +
			"different IP family")
	}
	return all, nil
}
