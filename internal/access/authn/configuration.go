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

// issuerTimeout limits the time to connect to reloaded issuers. It equals kube-apiserver's.
const issuerTimeout = time.Minute

// configFile is the file of --authentication-config.
type configFile struct {
	path    string
	data    []byte                                       // content at the start
	config  *apiserverconfig.AuthenticationConfiguration // decoded from data; nil while data is being decoded
	issuers []string                                     // of service account tokens; not allowed in the file
	// update replaces the issuers in force.
	update func(context.Context, *apiserverconfig.AuthenticationConfiguration) error
}

// loadConfiguration reads the file and sets its configuration in kube.
func loadConfiguration(kube *kubeauthenticator.Config, c Config) (f *configFile, err error) {
	f = &configFile{path: c.ConfigFile, issuers: kube.ServiceAccountIssuers}
	if f.data, err = os.ReadFile(c.ConfigFile); err == nil {
		f.config, err = f.decode(f.data)
	}
	if err != nil {
		return nil, fmt.Errorf("--authentication-config: %s: %w", c.ConfigFile, err)
	}
	kube.AuthenticationConfig, kube.AuthenticationConfigData = f.config, string(f.data)
	kube.OIDCSigningAlgs = oidc.AllValidSigningAlgorithms()
	return f, nil
}

// decode decodes and validates an AuthenticationConfiguration. It returns an error if data changes the configuration of
// anonymous requests.
func (f *configFile) decode(data []byte) (*apiserverconfig.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	obj, err := runtime.Decode(codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*apiserverconfig.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("got %T, want an AuthenticationConfiguration", obj)
	}
	errs := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config, f.issuers)
	if f.config != nil && !reflect.DeepEqual(f.config.Anonymous, config.Anonymous) {
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	return config, errs.ToAggregate()
}

// reload reloads the file when it changes. It blocks until ctx is done. report receives the errors of reloads.
func (f *configFile) reload(ctx context.Context, report func(error)) {
	metrics.RegisterMetrics()
	metrics.RecordAuthenticationConfigLastConfigInfo("", string(f.data))
	apply := func(ctx context.Context, data []byte) error {
		config, err := f.decode(data)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
		defer cancel()
		if err := f.update(ctx, config); err != nil {
			return fmt.Errorf("%w: %w", access.ErrRetry, err)
		}
		return nil
	}
	access.Reload(ctx, f.path, f.data, apply, report,
		metrics.RecordAuthenticationConfigAutomaticReloadSuccess,
		metrics.RecordAuthenticationConfigAutomaticReloadFailure)
}
