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
	decoded, kind, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	said, ok := decoded.(*apiserver.EgressSelectorConfiguration)
	if !ok {
		return nil, fmt.Errorf("want an EgressSelectorConfiguration of %s, got %s", v1beta1.SchemeGroupVersion, kind)
	}
	return said, nil
}
