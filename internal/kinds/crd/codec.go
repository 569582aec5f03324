package crd

import (
	"bytes"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Codec returns the codec of CustomResourceDefinitions in etcd. kube-apiserver stores them as JSON in v1beta1 and also
// reads v1, so Encode returns the value unchanged. Decode converts v1beta1 to v1.
func Codec() storage.Codec {
	return storage.Codec{
		Encode: func(value []byte) ([]byte, error) { return value, nil },
		Decode: func(data []byte) ([]byte, error) {
			data = bytes.TrimSpace(data)
			p := object.Unpack(data)
			if !p.MustDecode() && !p.HasAPIVersion(v1beta1.SchemeGroupVersion.String()) {
				return data, nil
			}
			t, _, err := object.DecodeJSON(data)
			if err != nil {
				return nil, err
			}
			if object.String(t, "apiVersion") == v1beta1.SchemeGroupVersion.String() {
				defaultLegacyCRD(t)
				if t, err = fromLegacyCRD(t); err != nil {
					return nil, err
				}
				defaultCRD(t)
			}
			return object.Pack(t, 0).JSON(), nil
		},
	}
}
