package apiserver_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
)

// TestQuotaUnderRace checks that concurrent writers can fill a ResourceQuota, but never exceed it. Meanwhile the
// controller counts the objects.
func TestQuotaUnderRace(t *testing.T) {
	s := start(t, apiserver.Config{Controllers: []string{"resourcequota-controller"}})
	config := s.ClientConfig()
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config)
	quotas, maps := client.CoreV1().ResourceQuotas("default"), client.CoreV1().ConfigMaps("default")
	ctx := context.Background()
	const hard = 100
	limit := corev1.ResourceList{"configmaps": resource.MustParse(strconv.Itoa(hard))}
	q, err := quotas.Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: corev1.ResourceQuotaSpec{Hard: limit}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}
	for q.Status.Hard == nil { // a quota is not enforced before the controller has counted it
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
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(),
					"exceeded quota: few, requested: configmaps=1, used: configmaps=100, limited: configmaps=100"):
					refused.Add(1)
				// as with kube-apiserver, after three tries
				case apierrors.IsConflict(err) && strings.Contains(err.Error(), "resourcequotas"):
				default:
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() { // after each change of the spec the controller counts again
		for i := range 50 {
			patch := []byte(`{"spec":{"hard":{"secrets":"` + strconv.Itoa(i) + `"}}}`)
			if _, err := quotas.Patch(ctx, "few", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	if made.Load() != hard || refused.Load() == 0 {
		t.Errorf("created %d, rejected %d", made.Load(), refused.Load())
	}
}

// TestQuotaIsChargedOnce checks two properties of ResourceQuotas. A write with related writes blocks the count of a
// quota only until the write ends. An example is an eviction, which also updates the status of its
// PodDisruptionBudget. A create that is retried because its Namespace has changed is charged once.
func TestQuotaIsChargedOnce(t *testing.T) {
	s := start(t, apiserver.Config{Controllers: []string{"resourcequota-controller"}})
	config := s.ClientConfig()
	config.QPS = -1
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v1, limit := client.CoreV1(), corev1.ResourceList{"configmaps": resource.MustParse("1000"),
		"pods": resource.MustParse("5")}
	must(v1.ResourceQuotas("default").Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: limit}}, metav1.CreateOptions{}))
	used := func(what corev1.ResourceName) int64 {
		t.Helper()
		q, err := v1.ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{})
		must(q, err)
		if q.Status.Hard == nil {
			return -1
		}
		n := q.Status.Used[what]
		return n.Value()
	}
	for used("configmaps") < 0 {
	}
	must(v1.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod, err := v1.Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	must(pod, err)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	must(v1.Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}))
	budgets := client.PolicyV1().PodDisruptionBudgets("default")
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		}}, metav1.CreateOptions{})
	must(budget, err)
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1,
		CurrentHealthy: 1, ExpectedPods: 1}
	must(budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}))
	must(nil, v1.Pods("default").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}))
	for used("pods") > 0 { // until the controller has counted
	}

	stop, annotated := make(chan struct{}), sync.WaitGroup{}
	annotated.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			patch := []byte(`{"metadata":{"annotations":{"n":"` + strconv.Itoa(i) + `"}}}`)
			if _, err := v1.Namespaces().Patch(ctx, "default", types.MergePatchType, patch,
				metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	before := used("configmaps")
	var made sync.WaitGroup
	for range 8 {
		made.Go(func() {
			for range 25 {
				if _, err := v1.ConfigMaps("default").Create(ctx,
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}},
					metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	made.Wait()
	close(stop)
	annotated.Wait()
	if n := used("configmaps") - before; n != 200 {
		t.Errorf("200 ConfigMaps are charged as %d", n)
	}
}
