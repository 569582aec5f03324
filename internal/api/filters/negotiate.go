package filters

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/request"
)

// Negotiate chooses the media type of the response. It rejects a patch of an unsupported type.
func (f *Filters) Negotiate(q *request.Request) bool {
	if q.Kind == nil || q.ConnectTo != nil && !q.ConnectTo.Reads {
		return true // another handler chooses the media type
	}
	var err error
	if q.Verb == request.VerbPatch && q.ConnectTo == nil {
		err = f.checkPatchType(q)
	}
	m, ok := q.Find(q.R.Header.Get("Accept"), q.Kind)
	if !ok && err == nil {
		err = q.NotAcceptable()
	}
	if err != nil {
		q.Fail(err)
		return false
	}
	m.Pretty = (m.Pretty || q.Pretty()) && m.Format == encoding.FormatJSON
	q.Media = m
	return true
}

// checkPatchType returns an error if the kind does not support the type of the patch.
func (f *Filters) checkPatchType(q *request.Request) error {
	all := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if q.Kind.Type != nil {
		all = append(all, string(types.StrategicMergePatchType))
	}
	all = append(all, string(types.ApplyYAMLPatchType))
	if f.EnableCBOR {
		all = append(all, string(types.ApplyCBORPatchType))
	}
	sent := q.ContentType()
	q.Apply = sent == string(types.ApplyYAMLPatchType)
	if !slices.Contains(all, sent) {
		return negotiation.NewUnsupportedMediaTypeError(all)
	}
	return nil
}
