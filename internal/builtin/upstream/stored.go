package upstream

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Load reads the JSON of a stored object, with the defaults of the version it is stored at, as upstream does on
// every read. It has no resourceVersion; the caller knows it.
func (k *Kind) Load(json []byte) (Object, error) {
	e := k.Storage()
	obj, err := e.Type.Object(json)
	if err != nil {
		return nil, err
	}
	e.Default(obj)
	return e.Internal(obj)
}

// Stored gives obj the form in which it is stored: at the storage version, with apiVersion and kind, without
// resourceVersion. It shares memory with obj, as External does.
func (k *Kind) Stored(obj Object) (runtime.Object, error) {
	out, err := k.Storage().External(obj)
	if err != nil {
		return nil, err
	}
	md, ok := out.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("upstream: %T has no metadata", out)
	}
	md.SetResourceVersion("")
	return out, nil
}
