package apiserver_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
)

// However many writers race, and while the controller counts what there is, a ResourceQuota is filled and never exceeded.
func TestQuotaUnderRace(t *testing.T) {
	s := start(t, apiserver.Config{Controllers: []string{"resourcequota-controller"}})
	config := s.ClientConfig()
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config)
	quotas, maps := client.CoreV1().ResourceQuotas("default"), client.CoreV1().ConfigMaps("default")
	ctx := context.Background()
	const hard = 100
	limit := corev1.ResourceList{"configmaps": resource.MustParse(strconv.Itoa(hard))}
	q, err := quotas.Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: corev1.ResourceQuotaSpec{Hard: limit}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}
	for q.Status.Hard == nil { // until it is counted for the first time, nothing is enforced
		if q, err = quotas.Get(ctx, "few", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var made, refused atomic.Int32
	var writers sync.WaitGroup
	for range 64 {
		writers.Go(func() {
			for range 4 {
				_, err := maps.Create(ctx, one.DeepCopy(), metav1.CreateOptions{})
				switch {
				case err == nil:
					made.Add(1)
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: few, requested: configmaps=1, used: configmaps=100, limited: configmaps=100"):
					refused.Add(1)
				case apierrors.IsConflict(err) && strings.Contains(err.Error(), "resourcequotas"): // as with kube-apiserver, after three tries
				default:
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() { // each change of the spec has it counted anew
		for i := range 50 {
			patch := []byte(`{"spec":{"hard":{"secrets":"` + strconv.Itoa(i) + `"}}}`)
			if _, err := quotas.Patch(ctx, "few", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	if made.Load() != hard || refused.Load() == 0 {
		t.Errorf("made %d, refused %d", made.Load(), refused.Load())
	}
}
