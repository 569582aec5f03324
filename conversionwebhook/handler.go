// Package conversionwebhook implements conversion webhooks for CustomResourceDefinitions. It has a handler of
// ConversionReviews and a TLS server. The user writes one conversion function for each kind. The package works with any
// Kubernetes API server and must not import other packages of Trellis.
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

// Func converts an object to another version of its kind, such as "example.com/v1". It may modify and return obj. It
// must not change kind or metadata, except for labels and annotations. The caller sets apiVersion. If Func returns an
// error, the client's request fails with the text of the error. Func must be safe for concurrent use.
type Func func(obj *unstructured.Unstructured, toVersion string) (*unstructured.Unstructured, error)

// MaxBytes is the default maximum size of a ConversionReview in bytes.
const MaxBytes = 64 << 20

// Handler responds to ConversionReviews of apiextensions.k8s.io/v1 and v1beta1 in the version of the request, as
// documented at
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning. It
// converts all objects of a review in their order. On the first error the status of the response is Failed. It is
// also an error if a Func panics or if a kind has no Func.
type Handler struct {
	// Kinds holds the conversion function of each kind.
	Kinds map[schema.GroupKind]Func
	// MaxBytes is the maximum size of a request body in bytes. 0 means the default in the constant MaxBytes.
	MaxBytes int64
	// Logger logs panics. nil means slog.Default.
	Logger *slog.Logger
}

// review is a ConversionReview of either version. Both versions have the same fields.
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

// ServeHTTP implements http.Handler. It responds with 4xx to a request that is not a ConversionReview.
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
	_, _ = w.Write(data) // fails only if the client has disconnected
}

// read reads a review. On an error it returns the status code of the response.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (q review, code int, err error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return q, http.StatusMethodNotAllowed, errors.New("a ConversionReview must be sent with POST")
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return q, http.StatusUnsupportedMediaType, errors.New("the Content-Type must be application/json")
	}
	limit := h.MaxBytes
	if limit == 0 {
		limit = MaxBytes
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
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
	known := q.APIVersion == apiextensionsv1.SchemeGroupVersion.String() ||
		q.APIVersion == apiextensionsv1beta1.SchemeGroupVersion.String()
	if !known || q.Kind != "ConversionReview" || q.Request == nil {
		return q, http.StatusBadRequest, fmt.Errorf("the request body is not a ConversionReview with a request: got "+
			"%s, Kind=%s", q.APIVersion,
			q.Kind)
	}
	return q, 0, nil
}

// convert converts all objects of a request. It stops at the first error.
func (h *Handler) convert(r *http.Request, q *request) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(q.Objects))
	for i, raw := range q.Objects {
		if err := r.Context().Err(); err != nil {
			return nil, err // the client has disconnected
		}
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("decode object %d: %w", i, err)
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

// convertOne calls the Func of an object. It converts a panic to an error. The panic's value is only logged.
func (h *Handler) convertOne(obj *unstructured.Unstructured, to string) (out *unstructured.Unstructured, err error) {
	kind, name := obj.GroupVersionKind(), obj.GetName()
	convert := h.Kinds[kind.GroupKind()]
	if convert == nil {
		return nil, fmt.Errorf("no conversion function for %s", kind.GroupKind())
	}
	defer func() {
		if reason := recover(); reason != nil {
			h.logger().Error("panic in a conversion function", "kind", kind, "name", name, "to", to, "panic", reason,
				"stack", string(debug.Stack()))
			out, err = nil, fmt.Errorf("convert %s %q to %s: panic in the conversion function", kind.Kind, name, to)
		}
	}()
	out, err = convert(obj, to)
	if err == nil && (out == nil || out.Object == nil) {
		err = fmt.Errorf("convert %s %q to %s: the conversion function returned no object", kind.Kind, name, to)
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
