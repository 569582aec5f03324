// Package compat_test runs unmodified clients against the server. They include client-go's informers and remote
// commands, controller-runtime's manager and cert-manager. Helm's patches are imitated.
package compat_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestInformers checks client-go's informers with and without WatchList, in JSON and protobuf (CRD-062 CRD-063
// CRD-068).
func TestInformers(t *testing.T) {
	for _, watchList := range []bool{true, false} {
		for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			t.Run(fmt.Sprintf("WatchList=%v,%s", watchList, contentType), func(t *testing.T) {
				featurestesting.SetFeatureDuringTest(t, features.WatchListClient, watchList)
				testInformer(t, contentType)
			})
		}
	}
}

// testInformer checks that an informer's cache of ConfigMaps follows creates, updates, deletes and a restart of the
// server.
func testInformer(t *testing.T, contentType string) {
	server := testserver.Start(t, testserver.OnDisk())
	config := rest.CopyConfig(server.Config)
	config.ContentType, config.AcceptContentTypes = contentType, contentType
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	maps := client.CoreV1().ConfigMaps("default")
	put := func(name, value string) {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
		_, err := maps.Update(ctx, m, metav1.UpdateOptions{})
		if err != nil {
			_, err = maps.Create(ctx, m, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("early", "1")

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps()
	lister := informer.Lister().ConfigMaps("default")
	informer.Informer()
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		t.Fatal("the cache did not sync")
	}
	waitFor := func(want map[string]string) {
		t.Helper()
		var got map[string]string
		err := wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) {
			got = map[string]string{}
			all, err := lister.List(labels.Everything())
			for _, m := range all {
				got[m.Name] = m.Data["value"]
			}
			return fmt.Sprint(got) == fmt.Sprint(want), err
		})
		if err != nil {
			t.Fatalf("got cache content %v, want %v", got, want)
		}
	}
	waitFor(map[string]string{"early": "1"})
	put("late", "1")
	put("early", "2")
	waitFor(map[string]string{"early": "2", "late": "1"})
	if err := maps.Delete(ctx, "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(map[string]string{"early": "2"})
	server.Restart()
	put("early", "3")
	put("after", "1")
	waitFor(map[string]string{"early": "3", "after": "1"})
}
