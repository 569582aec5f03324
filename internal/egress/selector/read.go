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

// read decodes an EgressSelectorConfiguration. It accepts apiserver.k8s.io/v1beta1 and v1alpha1, as upstream does, and
// apiserver.config.k8s.io/v1beta1, which documentation uses but upstream rejects. Unknown fields are errors.
func read(text []byte) (*apiserver.EgressSelectorConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	scheme.AddKnownTypes(v1beta1.ConfigSchemeGroupVersion, &v1beta1.EgressSelectorConfiguration{})
	utilruntime.Must(scheme.SetVersionPriority(v1beta1.SchemeGroupVersion))
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	decoded, _, err := codecs.UniversalDecoder().Decode(text, nil, nil)
	config, ok := decoded.(*apiserver.EgressSelectorConfiguration)
	switch {
	case runtime.IsNotRegisteredError(err) || runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) ||
		err == nil && !ok:
		return nil, errUnknown // upstream's error contains the path of a Go source file
	case err != nil:
		return nil, err
	}
	return config, nil
}

var errUnknown = fmt.Errorf("unknown configuration: want \"apiVersion: %s\" and \"kind: EgressSelectorConfiguration\"",
	v1beta1.SchemeGroupVersion)
