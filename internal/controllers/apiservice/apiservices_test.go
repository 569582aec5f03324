package apiservice

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// TestServersReportDifferentAvailability checks two servers with the same storage. Only one of them can reach the API
// server of an APIService. Each writes a changed availability at once, and repeats an unchanged one at most every 30
// seconds. If only their messages differ, each writes its own once.
func TestServersReportDifferentAvailability(t *testing.T) {
	const name = "v1alpha1.wardle.example.com"
	store := fake.NewSimpleClientset(&apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group:   "wardle.example.com",
			Version: "v1alpha1",
			Service: &apiregistrationv1.ServiceReference{Namespace: "wardle", Name: "server"},
		},
	})
	clock := clocktesting.NewFakePassiveClock(time.Now())
	load := fixture.Open(t, kinds.Config{}).Live.Load
	one, two := New(load), New(load)
	one.clock, two.clock = clock, clock
	one.CatalogChanged()
	two.CatalogChanged()
	writes := func() (n int) {
		store.ClearActions()
		for range 50 {
			for _, s := range []*Controller{one, two} {
				if err := s.sync(t.Context(), store.ApiregistrationV1().APIServices(), name); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, action := range store.Actions() {
			if action.GetSubresource() == "status" {
				n++
			}
		}
		return n
	}
	is := func() bool {
		s, err := store.ApiregistrationV1().APIServices().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available)
	}
	report := func(s *Controller, available bool) {
		s.Report(&catalog.APIService{Name: name, UID: "1"}, aggregation.Condition{Available: available, Reason: "R"})
	}
	report(one, true)
	report(two, false)
	if n := writes(); n != 2 || is() {
		t.Errorf("different reports: got %d writes, available %v, want 2, false", n, is())
	}
	clock.SetTime(clock.Now().Add(29 * time.Second))
	if n := writes(); n != 0 {
		t.Errorf("after 29 seconds: got %d writes, want none", n)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	if n := writes(); n != 2 {
		t.Errorf("after 30 seconds: got %d writes, want 2", n)
	}
	report(two, true)
	if n := writes(); n != 1 || !is() {
		t.Errorf("equal reports: got %d writes, available %v, want 1, true", n, is())
	}
	report(one, false)
	if n := writes(); n != 1 || is() {
		t.Errorf("changed report: got %d writes, available %v, want 1, false", n, is())
	}
	for i, s := range []*Controller{one, two} {
		s.Report(&catalog.APIService{Name: name, UID: "1"}, aggregation.Condition{Reason: "R", Message: fmt.Sprint(i)})
	}
	if n := writes(); n != 2 {
		t.Errorf("different messages: got %d writes, want 2", n)
	}
	clock.SetTime(clock.Now().Add(time.Hour))
	if n := writes(); n != 0 {
		t.Errorf("an hour after different messages: got %d writes, want none", n)
	}
}

// TestReportForRecreatedAPIService checks that a report for a new APIService is not lost if it arrives while the
// controller still handles the deletion of one with the same name.
func TestReportForRecreatedAPIService(t *testing.T) {
	const name = "v1alpha1.wardle.example.com"
	load := fixture.Open(t, kinds.Config{}).Live.Load
	store := fake.NewSimpleClientset().ApiregistrationV1().APIServices()
	c := New(load)
	c.CatalogChanged()
	c.Report(&catalog.APIService{Name: name, UID: "1"}, aggregation.Condition{Reason: "R"})
	reported := make(chan struct{})
	c.catalog = func() *catalog.Catalog {
		before := load() // does not contain the new APIService yet
		go func() {
			defer close(reported)
			c.Report(&catalog.APIService{Name: name, UID: "2"}, aggregation.Condition{Reason: "R"})
		}()
		select {
		case <-reported:
		case <-time.After(50 * time.Millisecond):
		}
		return before
	}
	if err := c.sync(t.Context(), store, name); err != nil {
		t.Fatal(err)
	}
	<-reported
	_, err := store.Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "2"},
		Spec:       apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Name: "server"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.sync(t.Context(), store, name); err != nil {
		t.Fatal(err)
	}
	s, err := store.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available) == nil {
		t.Errorf("got %+v, %v, want the condition Available", s, err)
	}
}
