package selector

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
)

// read decodes an EgressSelectorConfiguration of apiserver.k8s.io/v1beta1 or v1alpha1, as upstream does, or of
// apiserver.config.k8s.io/v1beta1, which documents have and upstream does not know. No unknown field is accepted.
func read(text []byte) (*apiserver.EgressSelectorConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	scheme.AddKnownTypes(v1beta1.ConfigSchemeGroupVersion, &v1beta1.EgressSelectorConfiguration{})
	utilruntime.Must(scheme.SetVersionPriority(v1beta1.SchemeGroupVersion))
	decoded, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(text, nil, nil)
	said, ok := decoded.(*apiserver.EgressSelectorConfiguration)
	switch {
	case runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) || err == nil && !ok:
		return nil, errOther // upstream's names a file of its source
	case err != nil:
		return nil, err
	}
	return said, nil
}

var errOther = fmt.Errorf("it is no configuration that is known here: want \"apiVersion: %s\" and \"kind: EgressSelectorConfiguration\"", v1beta1.SchemeGroupVersion)
