package conversion

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/egress"
)

// Supported versions of ConversionReview.
const (
	reviewV1      = "v1"
	reviewV1beta1 = "v1beta1"
)

// webhookClient calls the webhook of one configuration.
type webhookClient struct {
	webhooks  *Webhooks
	text      string // JSON of the configuration
	review    string // "v1" or "v1beta1"; "" if the webhook supports neither
	url       string
	transport *egress.Transport
	client    *http.Client // uses transport
	used      time.Time    // guarded by Webhooks.mu
}

// newWebhookClient returns a client for the JSON of spec.conversion.webhook. The configuration must come from a
// valid CRD.
func newWebhookClient(text string, w *Webhooks) (*webhookClient, error) {
	var c apiextensionsv1.WebhookConversion
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("spec.conversion.webhook: %w", err)
	}
	if c.ClientConfig == nil || c.ClientConfig.Service == nil && c.ClientConfig.URL == nil {
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	out := &webhookClient{webhooks: w, text: text}
	if i := slices.IndexFunc(c.ConversionReviewVersions, isSupportedReview); i >= 0 {
		out.review = c.ConversionReviewVersions[i]
	}
	options := egress.Options{
		Name: "conversion", CABundle: c.ClientConfig.CABundle,
		Timeout: min(callTimeout, w.config.Timeout), MaxBytes: maxResponseBytes,
		Replayable:   true, // a conversion may be repeated
		Disconnected: func() { w.config.Disconnected(text) },
	}
	var address string
	if s := c.ClientConfig.Service; s != nil {
		options.Service = &egress.Service{Namespace: s.Namespace, Name: s.Name, Port: ptr.Deref(s.Port, 443)}
		address = "https://" + options.Service.HostPort() + "/" + strings.TrimPrefix(ptr.Deref(s.Path, ""), "/")
	} else {
		address = *c.ClientConfig.URL
	}
	var err error
	if out.url, options.Address, err = withTimeout(address, options.Timeout); err != nil {
		return nil, err
	}
	if err := w.config.Credentials.Add(&options); err != nil {
		return nil, err
	}
	if out.transport, err = w.config.Egress.NewWebhookTransport(options); err != nil {
		return nil, err
	}
	out.client = out.transport.Client()
	return out, nil
}

func isSupportedReview(version string) bool { return version == reviewV1 || version == reviewV1beta1 }

// withTimeout returns the URL of the webhook with the timeout as a query parameter, as upstream does. It also returns
// the network address to connect to.
func withTimeout(text string, timeout time.Duration) (out, address string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", "", fmt.Errorf("parse the webhook URL: %w", err)
	}
	if u.Path == "" {
		u.Path = "/"
	}
	u.RawQuery, u.Fragment = "timeout="+timeout.String(), ""
	return u.String(), net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), nil
}

// post sends body and returns the body of the response. replied reports whether the webhook sent any response, even
// an invalid one.
func (c *webhookClient) post(ctx context.Context, body []byte) (data []byte, replied bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", "trellis")
	defer compute.Pause(ctx)()
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	data, err = readAll(resp)
	switch {
	case err != nil:
		return nil, errors.Is(err, egress.ErrTooLarge), err
	case resp.StatusCode != http.StatusOK:
		return nil, true, responseError(resp, data)
	case len(data) == 0:
		return nil, true, fmt.Errorf("0-length response with status code: %d and content type: %s", resp.StatusCode,
			cmp.Or(resp.Header.Get("Content-Type"), "application/json"))
	}
	return data, true, nil
}

// readAll reads the body of a response into a buffer. The initial size of the buffer is the Content-Length.
func readAll(resp *http.Response) ([]byte, error) {
	var into bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= maxResponseBytes {
		into.Grow(int(n) + bytes.MinRead)
	}
	_, err := into.ReadFrom(resp.Body)
	if err != nil && !errors.Is(err, egress.ErrTooLarge) {
		err = fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	}
	return into.Bytes(), err
}

// responseError returns the error for a response with a status code other than 200, in the words of upstream's
// client. It uses the Status in the body if there is one, and the status code otherwise.
func responseError(resp *http.Response, body []byte) error {
	var status apierrors.StatusError
	if err := json.Unmarshal(body, &status.ErrStatus); err == nil && status.ErrStatus.Kind == "Status" &&
		status.ErrStatus.Message != "" {
		return &status
	}
	const most = 2048
	message := "unknown"
	if t := resp.Header.Get("Content-Type"); t == "" || strings.HasPrefix(t, "text/") {
		message = strings.TrimSpace(string(body[:min(len(body), most)]))
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, 0,
		true)
}
