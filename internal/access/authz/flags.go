package authz

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// AddFlags declares the flags.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Modes, "authorization-mode", []string{"Node", "RBAC"},
		"authorizers, in the order of their calls, until one of them allows or denies the request: "+
			strings.Join(Modes, ", "))
	fs.StringVar(&c.ConfigFile, "authorization-config", "",
		"file of an AuthorizationConfiguration of apiserver.config.k8s.io; replaces --authorization-mode")
	fs.StringVar(&c.Webhook.ConfigFile, "authorization-webhook-config-file", "",
		"kubeconfig of the webhook for the authorization mode Webhook")
	fs.StringVar(&c.Webhook.Version, "authorization-webhook-version", "v1beta1",
		"version of the SubjectAccessReview that the webhook receives: v1 or v1beta1")
	fs.DurationVar(&c.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute,
		"time for which positive responses of the webhook are cached")
	fs.DurationVar(&c.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second,
		"time for which negative responses of the webhook are cached")
}

// Validate returns an error if a flag has an invalid value. fs contains the flags.
func (c *Config) Validate(fs *pflag.FlagSet) error {
	switch {
	case c.ConfigFile != "" && (fs.Changed("authorization-mode") || fs.Changed("authorization-webhook-config-file")):
		return errors.New("--authorization-config cannot be combined with --authorization-mode or " +
			"--authorization-webhook-*")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authorization-webhook-version must be v1 or v1beta1")
	}
	return nil
}
