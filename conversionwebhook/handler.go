// Package conversionwebhook is for people who write a conversion webhook for a CustomResourceDefinition: a handler of
// ConversionReviews and a TLS server for it, so that one function for each kind is all that is left to write. It works
// with any Kubernetes API server and knows nothing of Trellis.
package conversionwebhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Func converts one object of a kind to another version of it, such as "example.com/v1". It may modify obj and return
// it. Of metadata only labels and annotations may change; kind may not, and apiVersion is set for it. The text of an
// error reaches the client whose request needed the conversion, which fails. It is called by several goroutines at once.
type Func func(obj *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error)

// MaxBytes is how large a ConversionReview may be where Handler does not say otherwise.
const MaxBytes = 64 << 20

// Handler answers ConversionReviews of apiextensions.k8s.io/v1 and v1beta1, each in the version that it came in, as
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning describes.
// All objects of a review are converted, in their order, or the review is answered with Failed and the first error. So it
// is if a Func panics, or if there is none for an object's kind.
type Handler struct {
	// Kinds has the Func of each kind.
	Kinds map[schema.GroupKind]Func
	// MaxBytes bounds the body of a request; 0 means the constant MaxBytes.
	MaxBytes int64
	// Logger is told of panics; nil means slog.Default.
	Logger *slog.Logger
}

// review is a ConversionReview of either version: they look the same.
type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID               types.UID         `json:"uid"`
	DesiredAPIVersion string            `json:"desiredAPIVersion"`
	Objects           []json.RawMessage `json:"objects"`
}

type response struct {
	UID              types.UID                    `json:"uid"`
	Result           result                       `json:"result"`
	ConvertedObjects []*unstructured.Unstructured `json:"convertedObjects,omitempty"`
}

type result struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// ServeHTTP answers a request that is no ConversionReview with 4xx.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, code, err := h.read(w, r)
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	answer := response{UID: q.Request.UID, Result: result{Status: "Success"}}
	if answer.ConvertedObjects, err = h.convert(r, q.Request); err != nil {
		answer.Result, answer.ConvertedObjects = result{"Failed", err.Error()}, nil
	}
	data, err := json.Marshal(review{APIVersion: q.APIVersion, Kind: q.Kind, Response: &answer})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // a client that has gone needs no answer
}

// read reads a review, or returns the code that the request is answered with.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (q review, code int, err error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return q, http.StatusMethodNotAllowed, errors.New("a ConversionReview has to be POSTed")
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return q, http.StatusUnsupportedMediaType, errors.New("the Content-Type has to be application/json")
	}
	most := h.MaxBytes
	if most == 0 {
		most = MaxBytes
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return q, http.StatusRequestEntityTooLarge, err
	case err != nil:
		return q, http.StatusBadRequest, err
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return q, http.StatusBadRequest, fmt.Errorf("not a ConversionReview: %w", err)
	}
	known := q.APIVersion == apiextensionsv1.SchemeGroupVersion.String() || q.APIVersion == apiextensionsv1beta1.SchemeGroupVersion.String()
	if !known || q.Kind != "ConversionReview" || q.Request == nil {
		return q, http.StatusBadRequest, fmt.Errorf("not the request of a ConversionReview: %s, Kind=%s", q.APIVersion, q.Kind)
	}
	return q, 0, nil
}

// convert converts the objects of a request, all or none.
func (h *Handler) convert(r *http.Request, q *request) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(q.Objects))
	for i, raw := range q.Objects {
		if err := r.Context().Err(); err != nil {
			return nil, err // nobody waits for it
		}
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("object %d cannot be decoded: %w", i, err)
		}
		if obj.GetAPIVersion() != q.DesiredAPIVersion {
			var err error
			if obj, err = h.convertOne(obj, q.DesiredAPIVersion); err != nil {
				return nil, err
			}
		}
		out[i] = obj
	}
	return out, nil
}

// convertOne calls the Func of an object. A panic is an error; what it said is for the log alone.
func (h *Handler) convertOne(obj *unstructured.Unstructured, to string) (out *unstructured.Unstructured, err error) {
	kind, name := obj.GroupVersionKind(), obj.GetName()
	convert := h.Kinds[kind.GroupKind()]
	if convert == nil {
		return nil, fmt.Errorf("there is no conversion for %s", kind.GroupKind())
	}
	defer func() {
		if reason := recover(); reason != nil {
			h.logger().Error("panic in a conversion", "kind", kind, "name", name, "to", to, "panic", reason, "stack", string(debug.Stack()))
			out, err = nil, fmt.Errorf("the conversion of %s %q to %s panicked", kind.Kind, name, to)
		}
	}()
	out, err = convert(obj, to)
	if err == nil && (out == nil || out.Object == nil) {
		err = fmt.Errorf("the conversion of %s %q to %s returned nothing", kind.Kind, name, to)
	}
	if err != nil {
		return nil, err
	}
	out.SetAPIVersion(to)
	return out, nil
}

func (h *Handler) logger() *slog.Logger {
	if h.Logger == nil {
		return slog.Default()
	}
	return h.Logger
}
