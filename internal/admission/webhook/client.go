package webhook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
)

const (
	callTimeout      = 30 * time.Second // the maximum of timeoutSeconds
	maxResponseBytes = 8 << 20          // large enough for a patch, which is smaller than the maximum size of a request
)

// clientPool holds the clients of webhooks. Webhooks with the same destination share connections and a circuit breaker.
type clientPool struct {
	egress *egress.Dialer
	codec  runtime.NegotiatedSerializer

	mu      sync.Mutex
	clients map[destination]*pooledClient
}

// destination identifies a client.
type destination struct {
	config      string // JSON of clientConfig
	credentials *credentials.Source
}

func newClientPool(out *egress.Dialer) *clientPool {
	scheme := runtime.NewScheme()
	utilruntime.Must(admissionv1.AddToScheme(scheme))
	utilruntime.Must(admissionv1beta1.AddToScheme(scheme))
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(admissionv1.SchemeGroupVersion,
		admissionv1beta1.SchemeGroupVersion)
	return &clientPool{
		egress: out, clients: map[destination]*pooledClient{},
		codec: serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codec}),
	}
}

// pooledClient is a client for the webhook service of a clientConfig.
type pooledClient struct {
	destination
	users int // guarded by clientPool.mu
	rest  func() (*rest.RESTClient, error)
	close func() // guarded by clientPool.mu
}

// acquire returns the client of a clientConfig. The caller must release it.
func (c *clientPool) acquire(config v1.WebhookClientConfig, from *credentials.Source) *pooledClient {
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // never happens, because config was decoded from JSON
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := destination{string(text), from}
	client := c.clients[key]
	if client == nil {
		client = &pooledClient{destination: key, close: func() {}}
		client.rest = untilSuccess(func() (*rest.RESTClient, error) { return c.newClient(client, config) })
		c.clients[key] = client
	}
	client.users++
	return client
}

// untilSuccess returns a function that calls f, and caches the result when f has succeeded.
func untilSuccess(f func() (*rest.RESTClient, error)) func() (*rest.RESTClient, error) {
	var mu sync.Mutex
	var client *rest.RESTClient
	return func() (_ *rest.RESTClient, err error) {
		mu.Lock()
		defer mu.Unlock()
		if client == nil {
			client, err = f()
		}
		return client, err
	}
}

// release releases a client. It closes the idle connections of a client that has no users. Calls in progress continue.
func (c *clientPool) release(client *pooledClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client.users--; client.users == 0 {
		client.close()
		delete(c.clients, client.destination)
	}
}

// close closes the connections of all clients.
func (c *clientPool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.clients {
		client.close()
	}
}

// newClient returns an upstream client, so that its errors have upstream's wording.
func (c *clientPool) newClient(client *pooledClient, config v1.WebhookClientConfig) (*rest.RESTClient, error) {
	options := egress.Options{
		Name: "admission", CABundle: config.CABundle, Timeout: callTimeout, MaxBytes: maxResponseBytes,
	}
	out := &rest.Config{
		QPS: -1, UserAgent: "trellis-admission", WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, NegotiatedSerializer: c.codec},
	}
	switch {
	case config.Service != nil:
		s := config.Service
		options.Service = &egress.Service{Namespace: s.Namespace, Name: s.Name, Port: ptr.Deref(s.Port, 443)}
		out.Host, out.APIPath = "https://"+options.Service.HostPort(), ptr.Deref(s.Path, "")
	case config.URL != nil:
		u, err := url.Parse(*config.URL)
		if err != nil {
			return nil, fmt.Errorf("unparsable URL: %w", err)
		}
		options.Address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
		out.Host, out.APIPath = "https://"+u.Host, u.Path
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	if err := client.credentials.Add(&options); err != nil {
		return nil, err
	}
	transport, err := c.egress.NewWebhookTransport(options)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if client.close = transport.Close; client.users == 0 {
		transport.Close() // the client has been released in the meantime
	}
	return rest.UnversionedRESTClientForConfigAndClient(out, transport.Client())
}
