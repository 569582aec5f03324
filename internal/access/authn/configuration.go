package authn

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"
)

// readConfiguration puts what --authentication-config says into kube, and returns what it says of anonymous requests, nil for nothing.
func readConfiguration(kube *kubeauthenticator.Config, c Config) (*apiserverconfig.AnonymousAuthConfig, error) {
	data, err := os.ReadFile(c.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %w", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	obj, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %s: %w", c.ConfigFile, err)
	}
	said, ok := obj.(*apiserverconfig.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("--authentication-config: %s: want an AuthenticationConfiguration, got %T", c.ConfigFile, obj)
	}
	compiler := authenticationcel.NewDefaultCompiler()
	if errs := validation.ValidateAuthenticationConfiguration(compiler, said, kube.ServiceAccountIssuers); len(errs) > 0 {
		return nil, fmt.Errorf("--authentication-config: %s: %w", c.ConfigFile, errs.ToAggregate())
	}
	kube.AuthenticationConfig, kube.AuthenticationConfigData = said, string(data)
	kube.OIDCSigningAlgs = oidc.AllValidSigningAlgorithms()
	return said.Anonymous, nil
}
