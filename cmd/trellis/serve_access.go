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

// bindAuthentication declares the flags that say whom the server believes.
func (f *serveFlags) bindAuthentication(flags *pflag.FlagSet) {
	c := &f.config.Authentication
	flags.BoolVar(&c.Anonymous, "anonymous-auth", true,
		"serve requests without credentials as system:anonymous, who may see health and version; otherwise they get 401")
	flags.StringVar(&c.ClientCAFile, "client-ca-file", "",
		"file of CAs: who has a client certificate of one is the user of its common name, in the groups of its organizations; the CA in the data directory counts too")
	flags.StringVar(&c.TokenAuthFile, "token-auth-file", "",
		"CSV file of tokens: token,user,uid,\"group1,group2\"")
	flags.StringVar(&c.ConfigFile, "authentication-config", "",
		"file of an AuthenticationConfiguration of apiserver.config.k8s.io: JWT issuers, anonymous paths; instead of --anonymous-auth where it speaks of these")
	flags.StringSliceVar(&c.APIAudiences, "api-audiences", nil,
		"what tokens must be for; by default the issuers of service account tokens")

	h := &c.RequestHeader
	flags.StringVar(&h.CAFile, "requestheader-client-ca-file", "",
		"file of CAs that sign the client certificate of a proxy which says in headers who sends a request; looked at before --client-ca-file, and to share no CA with it")
	flags.StringSliceVar(&h.AllowedNames, "requestheader-allowed-names", nil, "common names that this certificate may have; none: any")
	flags.StringSliceVar(&h.UsernameHeaders, "requestheader-username-headers", []string{"x-remote-user"}, "headers that say who, the first that is there")
	flags.StringSliceVar(&h.UIDHeaders, "requestheader-uid-headers", nil, "headers of the user's UID; X-Remote-Uid is suggested")
	flags.StringSliceVar(&h.GroupHeaders, "requestheader-group-headers", []string{"x-remote-group"}, "headers of the user's groups")
	flags.StringSliceVar(&h.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", []string{"x-remote-extra-"}, "what headers begin with that say more of the user")

	p := &f.config.Aggregation
	flags.StringVar(&p.ProxyClientCertFile, "proxy-client-cert-file", "",
		"file of the client certificate by which the API servers that APIServices name know this one; by default one of a CA in the data directory that signs nothing else")
	flags.StringVar(&p.ProxyClientKeyFile, "proxy-client-key-file", "", "file of its key")
	flags.BoolVar(&f.routing, "enable-aggregator-routing", true,
		"call them at the endpoints of their Services; false: at the cluster IP, behind which something else (kube-proxy) has to find an endpoint")

	flags.StringSliceVar(&f.config.LocalServices, "allow-local-services", nil,
		"NAMESPACE/NAME of each Service of type ExternalName that may lead to a loopback address, for a webhook or an API server on this machine (default none)")

	a := &c.Accounts
	flags.StringSliceVar(&a.Issuers, "service-account-issuer", nil,
		"who makes the tokens of service accounts, a URL; more than one: the first makes them, all are recognized (default https://kubernetes.default.svc.cluster.local)")
	flags.StringVar(&a.SigningKeyFile, "service-account-signing-key-file", "", "file of the private key that signs them; by default one in the data directory")
	flags.StringArrayVar(&a.KeyFiles, "service-account-key-file", nil, "file of keys by which they are recognized, private or public; may be repeated; by default the one that signs")
	flags.DurationVar(&a.MaxExpiration, "service-account-max-token-expiration", 0, "how long a token is good for at most; 0: as long as is asked for")
	flags.StringVar(&a.JWKSURI, "service-account-jwks-uri", "", "where others find the public keys, if not at this server")

	w := &c.Webhook
	flags.StringVar(&w.ConfigFile, "authentication-token-webhook-config-file", "", "kubeconfig of a server that is asked about tokens which nobody else knows")
	flags.StringVar(&w.Version, "authentication-token-webhook-version", "v1beta1", "version of the TokenReview that it is sent: v1 or v1beta1")
	flags.DurationVar(&w.CacheTTL, "authentication-token-webhook-cache-ttl", 2*time.Minute, "how long its answers are kept")
}

// bindKubelet declares the flags that say how kubelets are reached.
func (f *serveFlags) bindKubelet(flags *pflag.FlagSet) {
	k := &f.config.Kubelet
	flags.StringVar(&k.CAFile, "kubelet-certificate-authority", "", "file of CAs that sign the certificates of kubelets; by default the CA in the data directory")
	flags.StringVar(&k.CertFile, "kubelet-client-certificate", "", "file of the client certificate by which kubelets know this server; by default one of the CA in the data directory")
	flags.StringVar(&k.KeyFile, "kubelet-client-key", "", "file of its key")
	flags.StringSliceVar(&k.PreferredAddressTypes, "kubelet-preferred-address-types", apiserver.KubeletAddressTypes(), "types of the addresses of a node, the first that it has is the one to call its kubelet at")
	flags.DurationVar(&k.Timeout, "kubelet-timeout", 5*time.Second, "how long connecting to a kubelet may take")
}

// bindAuthorization declares the flags that say who decides what callers may do.
func (f *serveFlags) bindAuthorization(flags *pflag.FlagSet) {
	c := &f.config.Authorization
	flags.StringSliceVar(&c.Modes, "authorization-mode", []string{"Node", "RBAC"},
		"who decides what callers may do, in this order, until one allows or denies: "+strings.Join(authz.Modes, ", "))
	flags.StringVar(&c.ConfigFile, "authorization-config", "",
		"file of an AuthorizationConfiguration of apiserver.config.k8s.io, instead of --authorization-mode")
	flags.StringVar(&c.Webhook.ConfigFile, "authorization-webhook-config-file", "", "kubeconfig of a server that decides, for the mode Webhook")
	flags.StringVar(&c.Webhook.Version, "authorization-webhook-version", "v1beta1", "version of the SubjectAccessReview that it is sent: v1 or v1beta1")
	flags.DurationVar(&c.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long its yes is kept")
	flags.DurationVar(&c.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long its no is kept")
}

// bindAdmission declares the flags that say what may change or stop a write.
func (f *serveFlags) bindAdmission(flags *pflag.FlagSet) {
	c := &f.config.Admission
	all, on := plugins.Names()
	flags.StringSliceVar(&c.Enable, "enable-admission-plugins", nil, "admission plugins to enable in addition to the default ones, out of: "+strings.Join(all, ", "))
	flags.StringSliceVar(&c.Disable, "disable-admission-plugins", nil, "admission plugins to disable; enabled by default are "+plugins.NodeRestriction+" (with the Node authorizer), "+strings.Join(on, ", "))
	flags.StringVar(&c.ConfigFile, "admission-control-config-file", "", "file of an AdmissionConfiguration of apiserver.config.k8s.io: the settings of plugins, and the kubeconfigs with the credentials for webhooks")
}

// bindFairness declares the flags that say how many requests are carried out at a time, and whose turn it is.
func (f *serveFlags) bindFairness(flags *pflag.FlagSet) {
	c := &f.config.Fairness
	flags.BoolVar(&f.fairness, "enable-priority-and-fairness", true,
		"give requests their turns by FlowSchemas and PriorityLevelConfigurations; false: only count them")
	flags.IntVar(&c.MaxReads, "max-requests-inflight", 400,
		"how many requests may be carried out at a time, together with the next; without priority and fairness, of those that write nothing, 0 for no limit")
	flags.IntVar(&c.MaxWrites, "max-mutating-requests-inflight", 200,
		"and this many; without priority and fairness, of those that write, 0 for no limit")
}

// checkLocalServices validates the value of --allow-local-services.
func checkLocalServices(all []string) error {
	for _, one := range all {
		namespace, name, _ := strings.Cut(one, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("--allow-local-services: %q is not NAMESPACE/NAME of a Service", one)
		}
	}
	return nil
}

// checkFairness says what kube-apiserver says.
func (f *serveFlags) checkFairness() error {
	c := &f.config.Fairness
	c.Disabled = !f.fairness
	switch {
	case c.MaxReads < 0:
		return errors.New("--max-requests-inflight can not be negative value")
	case c.MaxWrites < 0:
		return errors.New("--max-mutating-requests-inflight can not be negative value")
	case f.fairness && c.MaxReads+c.MaxWrites == 0:
		return errors.New("invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they must add up to something positive")
	}
	return nil
}

// checkAuthorization refuses what would mean something else than it says.
func (f *serveFlags) checkAuthorization(flags *pflag.FlagSet) error {
	c := &f.config.Authorization
	switch {
	case c.ConfigFile != "" && (flags.Changed("authorization-mode") || flags.Changed("authorization-webhook-config-file")):
		return errors.New("--authorization-config: cannot go with --authorization-mode or --authorization-webhook-*")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authorization-webhook-version: must be v1 or v1beta1")
	}
	return nil
}

// checkAuthentication refuses what would mean something else than it says.
func (f *serveFlags) checkAuthentication() error {
	c := &f.config.Authentication
	switch {
	case c.RequestHeader.CAFile != "" && len(c.RequestHeader.UsernameHeaders) == 0:
		return errors.New("--requestheader-username-headers: name one, or leave --requestheader-client-ca-file out")
	case (f.config.Aggregation.ProxyClientCertFile == "") != (f.config.Aggregation.ProxyClientKeyFile == ""):
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file: name both or none")
	case (f.config.Kubelet.CertFile == "") != (f.config.Kubelet.KeyFile == ""):
		return errors.New("--kubelet-client-certificate and --kubelet-client-key: name both or none")
	case f.config.Kubelet.Timeout <= 0:
		return errors.New("--kubelet-timeout: must be more than 0")
	case c.Accounts.MaxExpiration < 0 || c.Accounts.MaxExpiration > 0 && c.Accounts.MaxExpiration < time.Hour || c.Accounts.MaxExpiration > 1<<32*time.Second:
		return errors.New("--service-account-max-token-expiration: must be between 1 hour and 2^32 seconds")
	case c.Webhook.Version != "v1" && c.Webhook.Version != "v1beta1":
		return errors.New("--authentication-token-webhook-version: must be v1 or v1beta1")
	}
	return nil
}
