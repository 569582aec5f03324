package upstream

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestInformersStopAfterControllers checks that a controller which is created while the server stops can still add
// handlers to a shared informer. Upstream's constructors panic if they cannot.
func TestInformersStopAfterControllers(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	firstRuns := make(chan struct{})
	triggers := []schema.GroupKind{namespaceKind}
	table["test-first"] = entry{triggers, func(_ context.Context, u *Manager) (func(context.Context), error) {
		u.informers.Core().V1().Namespaces().Informer()
		return func(ctx context.Context) {
			close(firstRuns)
			<-ctx.Done()
		}, nil
	}}
	table["test-second"] = entry{triggers, func(_ context.Context, u *Manager) (func(context.Context), error) {
		<-firstRuns
		cancel()
		shared := u.informers.Core().V1().Namespaces().Informer()
		for stop := time.After(time.Second / 2); !shared.IsStopped(); {
			select {
			case <-stop:
				_, err := shared.AddEventHandler(cache.ResourceEventHandlerFuncs{})
				return func(context.Context) {}, err
			case <-time.After(time.Millisecond):
			}
		}
		t.Error("got a stopped informer while a controller starts")
		return func(context.Context) {}, nil
	}}
	defer delete(table, "test-first")
	defer delete(table, "test-second")
	u := New(Config{Controllers: []string{"test-first", "test-second"}, Logger: slog.New(slog.DiscardHandler)})
	u.present[namespaceKind] = true
	u.objectsAppeared <- struct{}{}
	if err := u.Run(ctx, &rest.Config{Host: server.URL}); err != nil {
		t.Error(err)
	}
}
