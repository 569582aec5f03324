package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
)

// bindAuthentication declares the flags of authentication.
func (f *serveFlags) bindAuthentication(flags *pflag.FlagSet) {
	c := &f.config.Authentication
	flags.BoolVar(&c.Anonymous, "anonymous-auth", true,
		"accept requests without credentials, as the user system:anonymous. This user may read only health and "+
			"version by default. If false, such requests get 401")
	flags.StringVar(&c.ClientCAFile, "client-ca-file", "",
		"file of CAs for client certificates, in addition to the CA in the data directory. The common name of a "+
			"certificate is the user, and its organizations are the groups")
	flags.StringVar(&c.TokenAuthFile, "token-auth-file", "", "CSV file of tokens: token,user,uid,\"group1,group2\"")
	flags.StringVar(&c.ConfigFile, "authentication-config", "",
		"file of an AuthenticationConfiguration of apiserver.config.k8s.io with JWT issuers and anonymous paths. Its "+
			"section anonymous replaces --anonymous-auth")
	flags.StringSliceVar(&c.APIAudiences, "api-audiences", nil,
		"audiences of the API server. A token must have one of them (empty means the issuers of service account "+
			"tokens)")
	f.bindRequestHeader(flags)
	f.bindAccounts(flags)

	w := &c.Webhook
	flags.StringVar(&w.ConfigFile, "authentication-token-webhook-config-file", "",
		"kubeconfig of a webhook that authenticates a token if no other authenticator recognizes the token")
	flags.StringVar(&w.Version, "authentication-token-webhook-version", "v1beta1",
		"version of the TokenReview that the webhook receives: v1 or v1beta1")
	flags.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
		"time for which responses of the webhook are cached")
}

// bindRequestHeader declares the flags of an authenticating proxy.
func (f *serveFlags) bindRequestHeader(flags *pflag.FlagSet) {
	h := &f.config.Authentication.RequestHeader
	flags.StringVar(&h.CAFile, "requestheader-client-ca-file", "",
		"file of CAs for the client certificate of an authenticating proxy. The proxy sends the user in headers. "+
			"These CAs are checked before those of --client-ca-file. The two files must have no CA in common")
	flags.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", nil,
		"allowed common names of the client certificate of the proxy (empty means any name)")
	flags.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", []string{"x-remote-user"},
		"headers that can contain the name of the user. The first header that is set is used")
	flags.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", nil,
		"headers that can contain the UID of the user, such as X-Remote-Uid")
	flags.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", []string{"x-remote-group"},
		"headers that contain the groups of the user")
	flags.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"x-remote-extra-"},
		"prefixes of headers that contain extra information about the user")
}

// bindAccounts declares the flags of service account tokens.
func (f *serveFlags) bindAccounts(flags *pflag.FlagSet) {
	a := &f.config.Authentication.Accounts
	flags.StringSliceVar(&a.Issuers, "service-account-issuer", nil,
		"issuer URLs of service account tokens. The server issues tokens with the first URL and accepts tokens with "+
			"any of them (empty means https://kubernetes.default.svc.cluster.local)")
	flags.StringVar(&a.SigningKeyFile, "service-account-signing-key-file", "",
		"file of the private key that signs service account tokens (empty means a key in the data directory)")
	flags.StringArrayVar(&a.KeyFiles, "service-account-key-file", nil,
		"file of private or public keys that verify service account tokens; can be repeated (empty means the "+
			"signing key)")
	flags.DurationVar(&a.MaxExpiration, "service-account-max-token-expiration", 0,
		"maximum lifetime of a service account token (0 means no maximum)")
	flags.StringVar(&a.JWKSURI, "service-account-jwks-uri", "",
		"URL of the public keys in the discovery document of the token issuer (empty means a URL of this server)")
}

// bindAggregation declares the flags of connections to aggregated API servers and webhooks.
func (f *serveFlags) bindAggregation(flags *pflag.FlagSet) {
	p := &f.config.Aggregation
	flags.StringVar(&p.ProxyClientCertFile, "proxy-client-cert-file", "",
		"file of the client certificate for requests to aggregated API servers (empty means a certificate of a "+
			"separate CA in the data directory)")
	flags.StringVar(&p.ProxyClientKeyFile, "proxy-client-key-file", "",
		"file of the private key of --proxy-client-cert-file")
	flags.BoolVar(&f.routing, "enable-aggregator-routing", true,
		"connect to aggregated API servers at the endpoints of their Services. If false, connect to the cluster IP, "+
			"which needs a program such as kube-proxy")
	flags.StringSliceVar(&f.config.LocalServices, "allow-local-services", nil,
		"Services of type ExternalName, as NAMESPACE/NAME, that may refer to a loopback address. They are needed for "+
			"a webhook or an aggregated API server on this machine (empty means none)")
}

// bindKubelet declares the flags of connections to kubelets.
func (f *serveFlags) bindKubelet(flags *pflag.FlagSet) {
	k := &f.config.Kubelet
	flags.StringVar(&k.CAFile, "kubelet-certificate-authority", "",
		"file of CAs for the serving certificates of kubelets (empty means the CA in the data directory)")
	flags.StringVar(&k.CertFile, "kubelet-client-certificate", "",
		"file of the client certificate for kubelets (empty means a certificate of the CA in the data directory)")
	flags.StringVar(&k.KeyFile, "kubelet-client-key", "", "file of the private key of --kubelet-client-certificate")
	flags.StringSliceVar(&k.PreferredAddressTypes, "kubelet-preferred-address-types", apiserver.KubeletAddressTypes(),
		"types of the node addresses to connect to, in order of preference")
	flags.DurationVar(&k.Timeout, "kubelet-timeout", 5*time.Second, "timeout for a connection to a kubelet")
}

// bindAuthorization declares the flags of authorization.
func (f *serveFlags) bindAuthorization(flags *pflag.FlagSet) {
	c := &f.config.Authorization
	flags.StringSliceVar(&c.Modes, "authorization-mode", []string{"Node", "RBAC"},
		"authorizers, in the order of their calls, until one of them allows or denies the request: "+
			strings.Join(authz.Modes, ", "))
	flags.StringVar(&c.ConfigFile, "authorization-config", "",
		"file of an AuthorizationConfiguration of apiserver.config.k8s.io; replaces --authorization-mode")
	flags.StringVar(&c.Webhook.ConfigFile, "authorization-webhook-config-file", "",
		"kubeconfig of the webhook for the authorization mode Webhook")
	flags.StringVar(&c.Webhook.Version, "authorization-webhook-version", "v1beta1",
		"version of the SubjectAccessReview that the webhook receives: v1 or v1beta1")
	flags.DurationVar(&c.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute,
		"time for which positive responses of the webhook are cached")
	flags.DurationVar(&c.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second,
		"time for which negative responses of the webhook are cached")
}

// bindAdmission declares the flags of admission.
func (f *serveFlags) bindAdmission(flags *pflag.FlagSet) {
	c := &f.config.Admission
	all, on := plugins.Names()
	flags.StringSliceVar(&c.Enable, "enable-admission-plugins", nil,
		"admission plugins to enable in addition to those that are enabled by default. All plugins: "+
			""+strings.Join(all, ", "))
	flags.StringSliceVar(&c.Disable, "disable-admission-plugins", nil,
		"admission plugins to disable. Plugins that are enabled by default: "+
			""+plugins.NodeRestriction+" (if the Node authorizer is used), "+
			strings.Join(on, ", "))
	flags.StringVar(&c.ConfigFile, "admission-control-config-file", "",
		"file of an AdmissionConfiguration of apiserver.config.k8s.io. It contains settings of plugins and the "+
			"kubeconfigs for webhooks")
}

// bindFairness declares the flags of API Priority and Fairness.
func (f *serveFlags) bindFairness(flags *pflag.FlagSet) {
	c := &f.config.Fairness
	flags.BoolVar(&f.fairness, "enable-priority-and-fairness", true,
		"queue requests by FlowSchemas and PriorityLevelConfigurations. If false, only the limits of "+
			"--max-requests-inflight and --max-mutating-requests-inflight apply")
	flags.IntVar(&c.MaxReads, "max-requests-inflight", 400,
		"with API Priority and Fairness, the sum of this number and --max-mutating-requests-inflight is the maximum "+
			"number of requests in progress. Otherwise this number is the maximum of non-mutating requests (0 means "+
			"no limit)")
	flags.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", 200,
		"with API Priority and Fairness, this number is added to --max-requests-inflight. Otherwise it is the "+
			"maximum number of mutating requests in progress (0 means no limit)")
}

// checkLocalServices validates the value of --allow-local-services.
func checkLocalServices(all []string) error {
	for _, one := range all {
		namespace, name, _ := strings.Cut(one, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("--allow-local-services: %q must be the NAMESPACE/NAME of a Service", one)
		}
	}
	return nil
}

// checkFairness validates the flags of API Priority and Fairness. The errors are those of kube-apiserver.
func (f *serveFlags) checkFairness() error {
	c := &f.config.Fairness
	c.Disabled = !f.fairness
	switch {
	case c.MaxReads < 0:
		return errors.New("--max-requests-inflight can not be negative value")
	case c.MaxWrites < 0:
		return errors.New("--max-mutating-requests-inflight can not be negative value")
	case f.fairness && c.MaxReads+c.MaxWrites == 0:
		return errors.New("invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they " +
			"must add up to something positive")
	}
	return nil
}

// checkAuthorization validates the flags of authorization.
func (f *serveFlags) checkAuthorization(flags *pflag.FlagSet) error {
	c := &f.config.Authorization
	switch {
	case c.ConfigFile != "" && (flags.Changed("authorization-mode") ||
		flags.Changed("authorization-webhook-config-file")):
		return errors.New("--authorization-config cannot be combined with --authorization-mode or " +
			"--authorization-webhook-*")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authorization-webhook-version must be v1 or v1beta1")
	}
	return nil
}

// checkAuthentication validates the flags of authentication, aggregation and kubelets.
func (f *serveFlags) checkAuthentication() error {
	c := &f.config.Authentication
	switch {
	case c.RequestHeader.CAFile != "" && len(c.RequestHeader.UsernameHeaders) == 0:
		return errors.New("--requestheader-username-headers must not be empty with --requestheader-client-ca-file")
	case (f.config.Aggregation.ProxyClientCertFile == "") != (f.config.Aggregation.ProxyClientKeyFile == ""):
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file must be set together")
	case (f.config.Kubelet.CertFile == "") != (f.config.Kubelet.KeyFile == ""):
		return errors.New("--kubelet-client-certificate and --kubelet-client-key must be set together")
	case f.config.Kubelet.Timeout <= 0:
		return errors.New("--kubelet-timeout must be greater than 0")
	case c.Accounts.MaxExpiration != 0 &&
		(c.Accounts.MaxExpiration < time.Hour || c.Accounts.MaxExpiration > 1<<32*time.Second):
		return errors.New("--service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authentication-token-webhook-version must be v1 or v1beta1")
	}
	return nil
}
