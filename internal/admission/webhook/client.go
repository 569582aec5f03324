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
	callTimeout    = 30 * time.Second // timeoutSeconds is at most that
	maxAnswerBytes = 8 << 20          // a patch has less than what a request may be of
)

// clientPool are how the webhooks of a server are reached. Those that say the same of that share connections and a circuit breaker.
type clientPool struct {
	egress *egress.Dialer
	codec  runtime.NegotiatedSerializer

	mu  sync.Mutex
	clients map[destination]*pooledClient
}

// destination identifies a caller.
type destination struct {
	config      string // JSON of clientConfig
	credentials *credentials.Source
}

func newClientPool(out *egress.Dialer) *clientPool {
	scheme := runtime.NewScheme()
	utilruntime.Must(admissionv1.AddToScheme(scheme))
	utilruntime.Must(admissionv1beta1.AddToScheme(scheme))
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(admissionv1.SchemeGroupVersion, admissionv1beta1.SchemeGroupVersion)
	return &clientPool{
		egress: out, clients: map[destination]*pooledClient{},
		codec: serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codec}),
	}
}

// pooledClient calls what one clientConfig names.
type pooledClient struct {
	destination
	users  int // guarded by callers.mu
	rest func() (*rest.RESTClient, error)
	close  func() // guarded by callers.mu
}

// acquire returns the caller of a clientConfig, until leave.
func (c *clientPool) acquire(config v1.WebhookClientConfig, from *credentials.Source) *pooledClient {
	text, err := json.Marshal(config)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to := destination{string(text), from}
	one := c.clients[to]
	if one == nil {
		one = &pooledClient{destination: to, close: func() {}}
		one.rest = untilSuccess(func() (*rest.RESTClient, error) { return c.newClient(one, config) })
		c.clients[to] = one
	}
	one.users++
	return one
}

// untilSuccess returns a function that calls f until it succeeds, and then returns that client.
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

// release closes the connections of a caller that nobody has taken any longer. Calls under way go on.
func (c *clientPool) release(one *pooledClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.users--; one.users == 0 {
		one.close()
		delete(c.clients, one.destination)
	}
}

// close closes the connections of all callers.
func (c *clientPool) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.clients {
		one.close()
	}
}

// newClient makes the client, which is upstream's, and so are the words of its errors.
func (c *clientPool) newClient(one *pooledClient, config v1.WebhookClientConfig) (*rest.RESTClient, error) {
	options := egress.Options{Name: "admission", CABundle: config.CABundle, Timeout: callTimeout, MaxBytes: maxAnswerBytes}
	to := &rest.Config{
		QPS: -1, UserAgent: "trellis-admission", WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON, NegotiatedSerializer: c.codec},
	}
	switch {
	case config.Service != nil:
		s := config.Service
		options.Service = &egress.Service{Namespace: s.Namespace, Name: s.Name, Port: ptr.Deref(s.Port, 443)}
		to.Host, to.APIPath = "https://"+options.Service.HostPort(), ptr.Deref(s.Path, "")
	case config.URL != nil:
		u, err := url.Parse(*config.URL)
		if err != nil {
			return nil, fmt.Errorf("unparsable URL: %w", err)
		}
		options.Address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
		to.Host, to.APIPath = "https://"+u.Host, u.Path
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	if err := one.credentials.Add(&options); err != nil {
		return nil, err
	}
	transport, err := c.egress.NewWebhookTransport(options)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.close = transport.Close; one.users == 0 {
		transport.Close() // left meanwhile
	}
	return rest.UnversionedRESTClientForConfigAndClient(to, transport.Client())
}
