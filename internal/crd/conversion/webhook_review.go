package conversion

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Kinds of failures of a call, in the words of upstream's metrics.
const (
	callFailure      = "conversion_webhook_call_failure"
	malformedFailure = "conversion_webhook_malformed_response_failure"
	partialFailure   = "conversion_webhook_partial_response_failure"
	objectFailure    = "conversion_webhook_invalid_converted_object_failure"
)

// convert converts the objects of a batch with one call, and validates the results.
func (c *webhookClient) convert(ctx context.Context, to *resource.Version, b batch) ([]object.Tree, error) {
	if c.review == "" {
		return nil, errors.New("no supported conversion review versions")
	}
	start := time.Now()
	crd := to.Definition.Names.Plural + "." + to.Definition.Group
	from := kindOf(b.objects[0])
	out, failure, err := c.call(ctx, crd, to, b)
	c.webhooks.config.Observe(Call{CRD: crd, From: from.Version, To: to.GroupVersion.Version,
		Duration: time.Since(start), Failure: failure})
	if err = truncateError(err); failure == callFailure {
		err = unreachable{err}
	}
	return out, err
}

// truncateError limits the size of an error, because it may quote a response of many megabytes.
func truncateError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxFailureBytes {
		return err
	}
	return errors.New(strings.ToValidUTF8(text[:maxFailureBytes], "") + "...")
}

// call does the work of convert except the metrics. failure is the kind of failure, or "" if there is none.
func (c *webhookClient) call(ctx context.Context, crd string, to *resource.Version, b batch) (out []object.Tree,
	failure string, err error) {
	from := kindOf(b.objects[0])
	uid := uuid.NewString()
	data, err := c.exchange(ctx, crd, c.request(uid, to.APIVersion, b))
	if err != nil {
		return nil, callFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	result, err := c.decode(data)
	if err != nil {
		return nil, callFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	if err := c.verify(result, uid); err != nil {
		return nil, malformedFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	if got, want := len(result.objects), len(b.objects); got != want {
		return nil, partialFailure, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", from, got,
			want)
	}
	out = make([]object.Tree, len(b.objects))
	for i, original := range b.objects {
		if out[i], err = validateConverted(original, result.objects[i], to); err != nil {
			return nil, objectFailure, objectError(err, kindOf(original), i, len(b.objects))
		}
	}
	return out, "", nil
}

// exchange sends a request and returns the response.
func (c *webhookClient) exchange(ctx context.Context, crd string, body []byte) ([]byte, error) {
	data, replied, err := c.post(ctx, body)
	switch {
	case replied:
		c.webhooks.reach.recordCall(c, crd, nil)
	case !errors.Is(ctx.Err(), context.Canceled): // the caller has not canceled the request
		c.webhooks.reach.recordCall(c, crd, err)
	}
	return data, err
}

func kindOf(o object.Tree) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(object.String(o, "apiVersion"), object.String(o, "kind"))
}

// request returns the ConversionReview that requests the conversion of b to a version.
func (c *webhookClient) request(uid, apiVersion string, b batch) []byte {
	body := make([]byte, 0, len(b.json)+256)
	body = append(body, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/`...)
	body = append(body, c.review...)
	body = append(body, `","request":{"uid":"`...)
	body = append(body, uid...)
	body = append(body, `","desiredAPIVersion":`...)
	body = object.AppendString(body, apiVersion)
	body = append(body, `,"objects":[`...)
	body = append(body, b.json...)
	return append(body, "]}}"...)
}

// reviewResult holds the relevant fields of a ConversionReview in a response.
type reviewResult struct {
	kind     schema.GroupVersionKind
	response bool // response is set
	uid      string
	result   metav1.Status
	objects  []any
}

// decode decodes a response. The fast path decodes a plain response as a tree, because the objects are needed as
// trees. Any other response goes to the decoder of the API types, which accepts unusual responses and has upstream's
// error messages.
func (c *webhookClient) decode(data []byte) (reviewResult, error) {
	t, _, err := object.DecodeJSON(data)
	if err != nil || kindOf(t) != c.kind() {
		return c.decodeTyped(data)
	}
	response, _ := t["response"].(object.Tree)
	result, _ := response["result"].(object.Tree)
	uid, plainUID := response["uid"].(string)
	status, plainStatus := result["status"].(string)
	objects, plainObjects := response["convertedObjects"].([]any)
	if !plainUID || !plainStatus || len(result) > 1 || !plainObjects {
		return c.decodeTyped(data)
	}
	return reviewResult{kind: c.kind(), response: true, uid: uid, result: metav1.Status{Status: status},
		objects: objects}, nil
}

// kind returns the group, version and kind of requests and responses.
func (c *webhookClient) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: apiextensionsv1.GroupName, Version: c.review, Kind: "ConversionReview"}
}

// decodeTyped decodes a response as upstream's client does.
func (c *webhookClient) decodeTyped(data []byte) (a reviewResult, err error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(apiextensionsv1.AddToScheme(scheme), apiextensionsv1beta1.AddToScheme(scheme)); err != nil {
		return a, err
	}
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(apiextensionsv1.SchemeGroupVersion,
		apiextensionsv1beta1.SchemeGroupVersion)
	var raw []runtime.RawExtension
	if c.review == reviewV1beta1 {
		var into apiextensionsv1beta1.ConversionReview
		_, _, err = codec.Decode(data, nil, &into)
		if r := into.Response; r != nil {
			a.response, a.uid, a.result, raw = true, string(r.UID), r.Result, r.ConvertedObjects
		}
	} else {
		var into apiextensionsv1.ConversionReview
		_, _, err = codec.Decode(data, nil, &into)
		a.kind = into.GroupVersionKind()
		if r := into.Response; r != nil {
			a.response, a.uid, a.result, raw = true, string(r.UID), r.Result, r.ConvertedObjects
		}
	}
	for _, r := range raw {
		var value any
		if t, _, err := object.DecodeJSON(r.Raw); err == nil {
			value = t
		} else if kjson.UnmarshalCaseSensitivePreserveInts(r.Raw, &value) != nil {
			value = nil
		}
		a.objects = append(a.objects, value)
	}
	return a, err
}

// verify validates a response except its objects. As upstream does, it ignores uid and kind of a v1beta1 response.
func (c *webhookClient) verify(a reviewResult, uid string) error {
	if c.review == reviewV1 && a.kind != c.kind() {
		return fmt.Errorf("expected webhook response of %v, got %v", c.kind(), a.kind)
	}
	switch {
	case !a.response:
		return errors.New("no response provided")
	case c.review == reviewV1 && a.uid != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, a.uid)
	case a.result.Status == metav1.StatusSuccess:
		return nil
	case a.result.Message != "":
		return errors.New(a.result.Message)
	}
	return fmt.Errorf("response.result.status was '%s', not 'Success'", a.result.Status)
}
