package flowcontrol

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// AddFlags declares the flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	flags.Negated(fs, &c.Disabled, "enable-priority-and-fairness",
		"queue requests by FlowSchemas and PriorityLevelConfigurations. If false, only the limits of "+
			"--max-requests-inflight and --max-mutating-requests-inflight apply")
	fs.IntVar(&c.MaxReads, "max-requests-inflight", 400,
		"with API Priority and Fairness, the sum of this number and --max-mutating-requests-inflight is the maximum "+
			"number of requests in progress. Otherwise this number is the maximum of non-mutating requests (0 means "+
			"no limit)")
	fs.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", 200,
		"with API Priority and Fairness, this number is added to --max-requests-inflight. Otherwise it is the "+
			"maximum number of mutating requests in progress (0 means no limit)")
}

// Validate returns an error if a flag has an invalid value. The errors are those of kube-apiserver.
func (c *Config) Validate() error {
	switch {
	case c.MaxReads < 0:
		return errors.New("--max-requests-inflight can not be negative value")
	case c.MaxWrites < 0:
		return errors.New("--max-mutating-requests-inflight can not be negative value")
	case !c.Disabled && c.MaxReads+c.MaxWrites == 0:
		return errors.New("invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they " +
			"must add up to something positive")
	}
	return nil
}
