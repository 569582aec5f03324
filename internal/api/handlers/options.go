package handlers

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/read"
)

// invalidOptions returns a 422 for errs, or nil if errs is empty.
func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// listOptions are the query options of list, watch and deletecollection.
type listOptions struct{ internalversion.ListOptions }

func (q call) listOptions() (*listOptions, error) {
	o := &listOptions{}
	if q.R.URL.RawQuery != "" {
		if err := request.DecodeOptions(q.Query(), &o.ListOptions); err != nil {
			return nil, err
		}
	}
	o.Watch = q.Verb == request.VerbWatch
	internalversion.SetListOptionsDefaults(&o.ListOptions, true)
	if q.Name == "" {
		return o, nil
	}
	if o.FieldSelector == nil || o.FieldSelector.Empty() {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", q.Name)
	} else if name, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); !ok || name != q.Name {
		return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return o, nil
}

func (o *listOptions) engine() read.ListOptions {
	return read.ListOptions{
		Labels:               o.LabelSelector,
		Fields:               o.FieldSelector,
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		Limit:                o.Limit,
		Continue:             o.Continue,
		AllowWatchBookmarks:  o.AllowWatchBookmarks,
		SendInitialEvents:    o.SendInitialEvents,
	}
}

// getOptions decodes the query options of a get.
func (q call) getOptions() (*metav1.GetOptions, error) {
	o, query := &metav1.GetOptions{}, q.Query()
	if export := query["export"]; len(export) > 0 {
		if v := strings.ToLower(export[0]); v != "false" && v != "0" {
			return nil, apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
		}
	}
	return o, request.DecodeOptions(query, o)
}

// deleteOptions decodes DeleteOptions from the body, or from the query if there is no body.
func (q call) deleteOptions() (*metav1.DeleteOptions, error) {
	body, err := q.readBudgetedBody()
	if err != nil {
		return nil, err
	}
	defer q.ReleaseMemory()
	o := &metav1.DeleteOptions{}
	if len(body) > 0 {
		if err := q.decodeDeleteOptions(body, o); err != nil {
			return nil, err
		}
		q.AuditRequestBody(func() ([]byte, error) {
			audited := *o
			audited.APIVersion = internalversion.SchemeGroupVersion.String() // as in upstream's audit events
			return json.Marshal(&audited)
		})
	} else if err := request.DecodeOptions(q.Query(), o); err != nil {
		return nil, err
	}
	errs := validation.ValidateDeleteOptions(o)
	o.IgnoreStoreReadErrorWithClusterBreakingPotential = nil // its feature gate is off
	return o, invalidOptions("DeleteOptions", errs)
}

func (q call) decodeDeleteOptions(body []byte, o *metav1.DeleteOptions) error {
	offer, err := q.OfBody(q.R.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	info, ok := runtime.SerializerInfoForMediaType(internalscheme.Codecs.SupportedMediaTypes(), offer.MediaType)
	if !ok {
		return q.UnsupportedBody("")
	}
	obj, _, err := internalscheme.Codecs.DecoderToVersion(info.Serializer, kind.GroupVersion()).Decode(body, &kind, o)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if obj != o {
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	return nil
}

// fieldManager returns the field manager of a write. It returns the query parameter manager. If manager is "", it
// returns the part of the User-Agent before the first slash.
func fieldManager(manager, userAgent string) string {
	if manager != "" {
		return manager
	}
	first, _, _ := strings.Cut(userAgent, "/")
	var b strings.Builder
	for _, r := range first {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > validation.FieldManagerMaxLength {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
