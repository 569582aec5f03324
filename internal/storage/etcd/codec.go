package etcd

import (
	"bytes"
	"fmt"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// encode returns the value of a write as etcd stores it, or nil for a deletion.
func (s *Store) encode(w *storage.Write) ([]byte, error) {
	if w.Value == nil {
		return nil, nil
	}
	codec, ok := s.options.Codecs.Of(w.Key)
	if !ok {
		return w.Value, nil
	}
	data, err := codec.Encode(w.Value)
	if err != nil {
		return nil, fmt.Errorf("%w: encode the value of %s: %w", storage.ErrInvalid, w.Key, err)
	}
	return data, nil
}

// decode returns the JSON of a value in etcd. kube-apiserver ends its JSON with a newline.
func (s *Store) decode(key string, data []byte) ([]byte, error) {
	codec, ok := s.options.Codecs.Of(key)
	if !ok {
		return bytes.TrimSuffix(data, []byte("\n")), nil
	}
	return codec.Decode(data)
}
