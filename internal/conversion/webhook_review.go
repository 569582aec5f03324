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

// How a call fails, as upstream's metrics name it.
const (
	callFailure      = "conversion_webhook_call_failure"
	malformedFailure = "conversion_webhook_malformed_response_failure"
	partialFailure   = "conversion_webhook_partial_response_failure"
	objectFailure    = "conversion_webhook_invalid_converted_object_failure"
)

// convert makes one call and checks what comes back.
func (c *caller) convert(ctx context.Context, to *resource.Version, b batch) ([]object.Tree, error) {
	if c.review == "" {
		return nil, errors.New("no supported conversion review versions")
	}
	start := time.Now()
	crd := to.Definition.Names.Plural + "." + to.Definition.Group
	from := kindOf(b.objects[0])
	out, failure, err := c.call(ctx, crd, to, b)
	c.webhooks.config.Observe(Call{CRD: crd, From: from.Version, To: to.GroupVersion.Version, Duration: time.Since(start), Failure: failure})
	if err = bounded(err); failure == callFailure {
		err = unreachable{err}
	}
	return out, err
}

// bounded cuts off what a webhook would have each caller told: its answer, which an error may quote, can be of many
// megabytes.
func bounded(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxFailureBytes {
		return err
	}
	return errors.New(strings.ToValidUTF8(text[:maxFailureBytes], "") + "...")
}

// call is convert without its metrics. failure is how it failed.
func (c *caller) call(ctx context.Context, crd string, to *resource.Version, b batch) (out []object.Tree, failure string, err error) {
	from := kindOf(b.objects[0])
	uid := uuid.NewString()
	data, err := c.exchange(ctx, crd, c.request(uid, to.APIVersion, b))
	if err != nil {
		return nil, callFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	answer, err := c.decode(data)
	if err != nil {
		return nil, callFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	if err := c.verify(answer, uid); err != nil {
		return nil, malformedFailure, fmt.Errorf("conversion webhook for %v failed: %w", from, err)
	}
	if got, want := len(answer.objects), len(b.objects); got != want {
		return nil, partialFailure, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", from, got, want)
	}
	out = make([]object.Tree, len(b.objects))
	for i, original := range b.objects {
		if out[i], err = accept(original, answer.objects[i], to); err != nil {
			return nil, objectFailure, worded(err, kindOf(original), i, len(b.objects))
		}
	}
	return out, "", nil
}

// exchange sends a request and returns the answer.
func (c *caller) exchange(ctx context.Context, crd string, body []byte) ([]byte, error) {
	data, replied, err := c.post(ctx, body)
	switch {
	case replied:
		c.webhooks.reach.called(c, crd, nil)
	case !errors.Is(ctx.Err(), context.Canceled): // who asked is still there, or has waited in vain
		c.webhooks.reach.called(c, crd, err)
	}
	return data, err
}

func kindOf(o object.Tree) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(object.String(o, "apiVersion"), object.String(o, "kind"))
}

// request is the ConversionReview that asks for b at a version.
func (c *caller) request(uid, apiVersion string, b batch) []byte {
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

// answer is what matters of a ConversionReview that came back.
type answer struct {
	kind     schema.GroupVersionKind
	response bool // there is one
	uid      string
	result   metav1.Status
	objects  []any
}

// decode reads a response. A plain one is read as a tree, which is what the objects are needed as. Whatever else there
// is, is left to the decoder of the API's types, for its words and its patience.
func (c *caller) decode(data []byte) (answer, error) {
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
	return answer{kind: c.kind(), response: true, uid: uid, result: metav1.Status{Status: status}, objects: objects}, nil
}

// kind is what requests and responses are.
func (c *caller) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: apiextensionsv1.GroupName, Version: c.review, Kind: "ConversionReview"}
}

// decodeTyped reads a response as upstream's client does.
func (c *caller) decodeTyped(data []byte) (a answer, err error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(apiextensionsv1.AddToScheme(scheme), apiextensionsv1beta1.AddToScheme(scheme)); err != nil {
		return a, err
	}
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(apiextensionsv1.SchemeGroupVersion, apiextensionsv1beta1.SchemeGroupVersion)
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

// verify checks a response as a whole. As upstream, it lets those of v1beta1 have any uid, and no kind.
func (c *caller) verify(a answer, uid string) error {
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
