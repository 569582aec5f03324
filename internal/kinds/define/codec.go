package define

import (
	"fmt"

	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Codec returns the codec of a built-in kind's values in etcd. Encode returns the form in which kube-apiserver stores
// them, which is protobuf at the storage version. Decode accepts protobuf, JSON and YAML at all versions, also at those
// that are no longer served, and returns the JSON at the storage version with its defaults. (k8s.io/apiserver,
// pkg/storage/etcd3)
func Codec(d *resource.Definition) storage.Codec {
	v := d.Storage
	return storage.Codec{
		Encode: func(value []byte) ([]byte, error) {
			message, err := v.Type.Protobuf(value)
			if err != nil {
				return nil, err
			}
			return resource.AppendMessage(nil, v.APIVersion, d.Names.Kind, message)
		},
		Decode: func(data []byte) ([]byte, error) {
			obj, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
			if err != nil {
				return nil, err
			}
			if gvk.Kind != d.Names.Kind {
				return nil, fmt.Errorf("the value is of kind %s, not %s", gvk.Kind, d.Names.Kind)
			}
			legacyscheme.Scheme.Default(obj)
			internal, err := v.Type.Internal(obj)
			if err != nil {
				return nil, err
			}
			t, err := v.Type.Stored(internal)
			if err != nil {
				return nil, err
			}
			return object.Pack(t, 0).JSON(), nil
		},
	}
}
