package encoding

import (
	"bytes"
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestErrorEventsAreEncoded checks that ERROR events have the encoding of the watch (CRD-062).
func TestErrorEventsAreEncoded(t *testing.T) {
	m := &Media{Offer: offers(true)[2]}
	e := NewEvents(m, nil)
	s := &metav1.Status{Code: 410}
	if got, err := e.AppendError(nil, s); err != nil || !bytes.Contains(got, []byte("k8s\x00")) {
		t.Errorf("protobuf: got %q, error %v, want a protobuf envelope", got, err)
	}
	m.Offer = offers(true)[3]
	if got, err := e.AppendError(nil, s); err != nil || !bytes.HasPrefix(got, cborTag) {
		t.Errorf("CBOR: got %q, error %v, want the CBOR tag", got, err)
	}
	m.Offer = offers(true)[0]
	got, err := e.AppendError(nil, s)
	if err != nil || !json.Valid(got) || !bytes.HasPrefix(got, []byte(`{"type":"ERROR","object":{`)) {
		t.Errorf("JSON: got %q, error %v, want an ERROR event", got, err)
	}
}
