package flowcontrol_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
)

// upstreamFilter is upstream's API Priority and Fairness filter with given FlowSchemas.
type upstreamFilter struct{ utilflowcontrol.Interface }

func newUpstreamFilter(t *testing.T, schemas []*flowcontrolv1.FlowSchema) *upstreamFilter {
	client := fake.NewClientset()
	for _, s := range schemas {
		if err := client.Tracker().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations,
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		if err := client.Tracker().Add(l); err != nil {
			t.Fatal(err)
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	o := &upstreamFilter{utilflowcontrol.New(factory, client.FlowcontrolV1(), 600)}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	go func() { _ = o.Run(t.Context().Done()) }()
	for o.names(by("marker")) != "marker" { // wait until the filter has received all objects
		runtime.Gosched()
	}
	return o
}

// names returns the name of the FlowSchema of a request.
func (o *upstreamFilter) names(a *access.Attributes) (schema string) {
	info := &apirequest.RequestInfo{
		IsResourceRequest: a.Resource, Path: a.Path, Verb: a.Verb, APIGroup: a.Group, APIVersion: a.Version,
		Namespace: a.Namespace, Resource: a.Plural, Subresource: a.Subresource, Name: a.Name,
	}
	o.Handle(context.Background(), utilflowcontrol.RequestDigest{RequestInfo: info, User: a.User},
		func(s *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			schema = s.Name
		},
		func() fcrequest.WorkEstimate { return fcrequest.WorkEstimate{InitialSeats: 1} }, nil, func() {})
	return schema
}

func some(all ...string) string { return all[rand.N(len(all))] }

var (
	users = []string{"jane", "system:serviceaccount:ns:sa", "system:serviceaccount:ns:other",
		"system:serviceaccount:n:sa", "system:serviceaccount:ns", "system:kube-scheduler", "*", ""}
	groups = []string{"devs", "system:masters", "system:nodes", "system:serviceaccounts", "system:authenticated",
		"system:unauthenticated"}
	paths = []string{"/", "/healthz", "/healthz/etcd", "/healthzz", "/apis", "/apis/a", "/metrics"}
)

func randomSchema(i int) *flowcontrolv1.FlowSchema {
	subject := func() flowcontrolv1.Subject {
		switch rand.N(3) {
		case 0:
			return flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: some(users...)}}
		case 1:
			return flowcontrolv1.Subject{
				Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: some(append(groups, "*")...)},
			}
		}
		return flowcontrolv1.Subject{
			Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{
				Namespace: some("ns", "n"), Name: some("sa", "*"),
			},
		}
	}
	rule := flowcontrolv1.PolicyRulesWithSubjects{Subjects: []flowcontrolv1.Subject{subject(), subject()}}
	rule.ResourceRules = []flowcontrolv1.ResourcePolicyRule{{
		Verbs: []string{some("get", "list", "*")}, APIGroups: []string{some("", "apps",
			"*")}, ClusterScope: rand.N(2) == 0,
		Resources: []string{some("pods", "pods/log", "pods/", "*"),
			"nodes"}[:1+rand.N(2)], Namespaces: [][]string{{"*"}, {"ns"}, {"a", "ns"}, nil}[rand.N(4)],
	}}
	rule.NonResourceRules = []flowcontrolv1.NonResourcePolicyRule{
		{
			Verbs: []string{some("get", "*")}, NonResourceURLs: []string{
				some(append(paths, "*", "/*", "/healthz/*", "/apis/")...),
			},
		},
	}
	return &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i), UID: types.UID(fmt.Sprint(i))},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 2 + rand.Int32N(20), Rules: []flowcontrolv1.PolicyRulesWithSubjects{rule},
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{
				Name: some("workload-low", "global-default", "exempt", "none"),
			},
		},
	}
}

func randomRequest() *access.Attributes {
	a := &access.Attributes{
		User: &user.DefaultInfo{Name: some(users...), Groups: []string{some(groups...), some(groups...)}},
		Verb: some("get", "list", "watch"),
	}
	if a.Resource = rand.N(4) > 0; !a.Resource {
		a.Path = some(paths...)
		return a
	}
	a.Plural, a.Subresource = some("pods", "nodes", "leases"), some("", "", "log")
	a.Group, a.Namespace = some("", "apps"), some("", "ns", "kube-system")
	return a
}

// TestClassifiesAsUpstream checks that requests have the same FlowSchemas as with upstream's filter, with the default
// FlowSchemas and with additional random ones.
func TestClassifiesAsUpstream(t *testing.T) {
	marker := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "marker"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "exempt"},
			MatchingPrecedence:         1,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "marker"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{
					{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"},
						Namespaces: []string{"*"}},
				},
			}},
		}}
	for _, additional := range []int{0, 20, 40, 60} {
		schemas := append([]*flowcontrolv1.FlowSchema{marker},
			append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...)...)
		for i := range additional {
			schemas = append(schemas, randomSchema(i))
		}
		fx, seen := newFixture(t, flowcontrol.Config{MaxReads: 600}), map[string]bool{}
		for _, s := range schemas {
			fx.put("flowschemas", s.Name, s.Spec)
		}
		for _, l := range append(bootstrap.MandatoryPriorityLevelConfigurations,
			bootstrap.SuggestedPriorityLevelConfigurations...) {
			fx.put("prioritylevelconfigurations", l.Name, l.Spec)
		}
		o := newUpstreamFilter(t, schemas)
		for range 2000 {
			a := randomRequest()
			got, _ := fx.Names(a)
			want := o.names(a)
			if seen[want] = true; got != want {
				t.Fatalf("%+v of %+v: got FlowSchema %s, want %s", a, a.User, got, want)
			}
		}
		if len(seen) < 5 {
			t.Errorf("got only the FlowSchemas %v, want at least 5", seen)
		}
	}
}
