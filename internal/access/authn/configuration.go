package authn

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	kubeauthenticator "k8s.io/kubernetes/pkg/kubeapiserver/authenticator"

	"github.com/trellis-k8s/trellis/internal/access"
)

// issuerPatience is how long new issuers may take to be reached, as kube-apiserver has it.
const issuerPatience = time.Minute

// configFile is the file of --authentication-config.
type configFile struct {
	path    string
	data    []byte                                                                    // at the start
	said    *apiserverconfig.AuthenticationConfiguration                              // the same
	issuers []string                                                                  // of service accounts, which no other may claim
	update  func(context.Context, *apiserverconfig.AuthenticationConfiguration) error // has other issuers believed
}

// readConfiguration puts what the file says into kube.
func readConfiguration(kube *kubeauthenticator.Config, c Config) (f *configFile, err error) {
	f = &configFile{path: c.ConfigFile, issuers: kube.ServiceAccountIssuers}
	if f.data, err = os.ReadFile(c.ConfigFile); err == nil {
		f.said, err = f.read(f.data)
	}
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %s: %w", c.ConfigFile, err)
	}
	kube.AuthenticationConfig, kube.AuthenticationConfigData = f.said, string(f.data)
	kube.OIDCSigningAlgs = oidc.AllValidSigningAlgorithms()
	return f, nil
}

// read is what data says, if that can be done.
func (f *configFile) read(data []byte) (*apiserverconfig.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	obj, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	said, ok := obj.(*apiserverconfig.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("want an AuthenticationConfiguration, got %T", obj)
	}
	errs := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), said, f.issuers)
	if f.said != nil && !reflect.DeepEqual(f.said.Anonymous, said.Anonymous) {
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	return said, errs.ToAggregate()
}

// follow reads the file again when it changes, until ctx is done.
func (f *configFile) follow(ctx context.Context, report func(error)) {
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo("", string(f.data))
	use := func(ctx context.Context, data []byte) error {
		said, err := f.read(data)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, issuerPatience)
		defer cancel()
		if err := f.update(ctx, said); err != nil {
			return fmt.Errorf("%w: %w", access.ErrRetry, err)
		}
		return nil
	}
	access.Reload(ctx, f.path, f.data, use, report, metrics.RecordAuthenticationConfigAutomaticReloadSuccess, metrics.RecordAuthenticationConfigAutomaticReloadFailure)
}
