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
		"service for requests without credentials as the user system:anonymous, who may read health and version "+
			"(false means 401)")
	flags.StringVar(&c.ClientCAFile, "client-ca-file", "",
		"file of CAs of client certificates, in addition to the CA in the data directory; the common name is the "+
			"user, the "+
			"organizations are the groups")
	flags.StringVar(&c.TokenAuthFile, "token-auth-file", "", "CSV file of tokens: token,user,uid,\"group1,group2\"")
	flags.StringVar(&c.ConfigFile, "authentication-config", "",
		"file of an AuthenticationConfiguration of apiserver.config.k8s.io with JWT issuers and anonymous paths; its "+
			"anonymous section replaces --anonymous-auth")
	flags.StringSliceVar(&c.APIAudiences, "api-audiences", nil,
		"accepted audiences of tokens (empty means the issuers of service account tokens)")
	f.bindRequestHeader(flags)
	f.bindAccounts(flags)

	w := &c.Webhook
	flags.StringVar(&w.ConfigFile, "authentication-token-webhook-config-file", "",
		"kubeconfig of a server that authenticates tokens which no other authenticator recognizes")
	flags.StringVar(&w.Version, "authentication-token-webhook-version", "v1beta1",
		"version of the TokenReview that the webhook receives: v1 or v1beta1")
	flags.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute,
		"cache duration of the webhook's responses")
}

// bindRequestHeader declares the flags of an authenticating proxy.
func (f *serveFlags) bindRequestHeader(flags *pflag.FlagSet) {
	h := &f.config.Authentication.RequestHeader
	flags.StringVar(&h.CAFile, "requestheader-client-ca-file", "",
		"file of CAs of the client certificate of an authenticating proxy, which sends the user in headers; checked "+
			"before "+
			"--client-ca-file; the two files must not share a CA")
	flags.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", nil,
		"common names that the proxy's certificate may have (empty means any)")
	flags.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", []string{"x-remote-user"},
		"headers of the username; the first one that is set counts")
	flags.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", nil,
		"headers of the user's UID; X-Remote-Uid is suggested")
	flags.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", []string{"x-remote-group"},
		"headers of the user's groups")
	flags.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"x-remote-extra-"},
		"prefixes of headers with extra information about the user")
}

// bindAccounts declares the flags of service account tokens.
func (f *serveFlags) bindAccounts(flags *pflag.FlagSet) {
	a := &f.config.Authentication.Accounts
	flags.StringSliceVar(&a.Issuers, "service-account-issuer", nil,
		"issuer URLs of service account tokens; the first one issues tokens, all are accepted (empty means "+
			"https://kubernetes.default.svc.cluster.local)")
	flags.StringVar(&a.SigningKeyFile, "service-account-signing-key-file", "",
		"file of the private key that signs service account tokens (empty means a key in the data directory)")
	flags.StringArrayVar(&a.KeyFiles, "service-account-key-file", nil,
		"file of private or public keys that verify service account tokens; can be repeated (empty means the "+
			"signing key)")
	flags.DurationVar(&a.MaxExpiration, "service-account-max-token-expiration", 0,
		"maximum lifetime of a token (0 means the requested lifetime)")
	flags.StringVar(&a.JWKSURI, "service-account-jwks-uri", "",
		"URL of the public keys in the discovery document (empty means a URL of this server)")
}

// bindAggregation declares the flags of connections to aggregated API servers and webhooks.
func (f *serveFlags) bindAggregation(flags *pflag.FlagSet) {
	p := &f.config.Aggregation
	flags.StringVar(&p.ProxyClientCertFile, "proxy-client-cert-file", "",
		"file of the client certificate for aggregated API servers (empty means a certificate of a separate CA in "+
			"the data "+
			"directory)")
	flags.StringVar(&p.ProxyClientKeyFile, "proxy-client-key-file", "",
		"file of the private key of --proxy-client-cert-file")
	flags.BoolVar(&f.routing, "enable-aggregator-routing", true,
		"connections to the endpoints of the Services of aggregated API servers (false means the cluster IP, which "+
			"needs a "+
			"program such as kube-proxy)")
	flags.StringSliceVar(&f.config.LocalServices, "allow-local-services", nil,
		"NAMESPACE/NAME of each Service of type ExternalName that may refer to a loopback address, for a webhook or "+
			"an API "+
			"server on this machine (empty means none)")
}

// bindKubelet declares the flags of connections to kubelets.
func (f *serveFlags) bindKubelet(flags *pflag.FlagSet) {
	k := &f.config.Kubelet
	flags.StringVar(&k.CAFile, "kubelet-certificate-authority", "",
		"file of CAs of the serving certificates of kubelets (empty means the CA in the data directory)")
	flags.StringVar(&k.CertFile, "kubelet-client-certificate", "",
		"file of the client certificate for kubelets (empty means a certificate of the CA in the data directory)")
	flags.StringVar(&k.KeyFile, "kubelet-client-key", "", "file of the private key of --kubelet-client-certificate")
	flags.StringSliceVar(&k.PreferredAddressTypes, "kubelet-preferred-address-types", apiserver.KubeletAddressTypes(),
		"types of node addresses to connect to, the most preferred first")
	flags.DurationVar(&k.Timeout, "kubelet-timeout", 5*time.Second, "timeout of connecting to a kubelet")
}

// bindAuthorization declares the flags of authorization.
func (f *serveFlags) bindAuthorization(flags *pflag.FlagSet) {
	c := &f.config.Authorization
	flags.StringSliceVar(&c.Modes, "authorization-mode", []string{"Node", "RBAC"},
		"authorizers in the order in which they are called, until one allows or denies: "+
			strings.Join(authz.Modes, ", "))
	flags.StringVar(&c.ConfigFile, "authorization-config", "",
		"file of an AuthorizationConfiguration of apiserver.config.k8s.io; replaces --authorization-mode")
	flags.StringVar(&c.Webhook.ConfigFile, "authorization-webhook-config-file", "",
		"kubeconfig of the server that authorizes requests in the mode Webhook")
	flags.StringVar(&c.Webhook.Version, "authorization-webhook-version", "v1beta1",
		"version of the SubjectAccessReview that the webhook receives: v1 or v1beta1")
	flags.DurationVar(&c.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute,
		"cache duration of the webhook's positive responses")
	flags.DurationVar(&c.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second,
		"cache duration of the webhook's negative responses")
}

// bindAdmission declares the flags of admission.
func (f *serveFlags) bindAdmission(flags *pflag.FlagSet) {
	c := &f.config.Admission
	all, on := plugins.Names()
	flags.StringSliceVar(&c.Enable, "enable-admission-plugins", nil,
		"admission plugins to enable in addition to the default ones: "+strings.Join(all, ", "))
	flags.StringSliceVar(&c.Disable, "disable-admission-plugins", nil,
		"admission plugins to disable; enabled by default are "+plugins.NodeRestriction+" (with the Node authorizer), "+
			strings.Join(on, ", "))
	flags.StringVar(&c.ConfigFile, "admission-control-config-file", "",
		"file of an AdmissionConfiguration of apiserver.config.k8s.io with the settings of plugins and the "+
			"kubeconfigs of "+
			"webhooks")
}

// bindFairness declares the flags of API Priority and Fairness.
func (f *serveFlags) bindFairness(flags *pflag.FlagSet) {
	c := &f.config.Fairness
	flags.BoolVar(&f.fairness, "enable-priority-and-fairness", true,
		"queueing of requests by FlowSchemas and PriorityLevelConfigurations (false means only the two limits below)")
	flags.IntVar(&c.MaxReads, "max-requests-inflight", 400,
		"maximum number of requests in progress, to which --max-mutating-requests-inflight is added; without "+
			"priority and "+
			"fairness, of non-mutating requests (0 means no limit)")
	flags.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", 200,
		"number added to --max-requests-inflight; without priority and fairness, the maximum number of mutating "+
			"requests in "+
			"progress (0 means no limit)")
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

// checkFairness validates the flags of API Priority and Fairness. The errors are kube-apiserver's.
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
